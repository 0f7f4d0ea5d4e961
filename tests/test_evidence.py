"""What a simulated engine leads to is called simulated wherever it is shown (design law 4)."""

from __future__ import annotations

import io
from pathlib import Path

import msgspec
from rich.console import Console
from story import ENGINE, Story, prefill

from kvready.advisor.contract import Evidence
from kvready.advisor.model_cards import model_cards
from kvready.advisor.playback import play
from kvready.advisor.report import build_report
from kvready.advisor.report_text import print_report
from kvready.advisor.service.snapshot import pipeline_values
from kvready.collectors.asked import AskedCandidate
from kvready.collectors.names import SIMULATED_ENGINE, SIMULATED_RELEASE
from kvready.collectors.recording import Provenance, RecordingHeader, RecordingWriter
from kvready.collectors.records import CountersScraped, ReadinessAsked

SIMULATED = msgspec.structs.replace(ENGINE, engine=SIMULATED_ENGINE)


def told(engine: object = SIMULATED) -> Story:
    """A story whose engine has loaded, computed and answered."""
    story = Story()
    story.tell(0.0, engine)  # type: ignore[arg-type]
    return story


def test_an_engine_that_says_it_is_simulated_makes_everything_so() -> None:
    story = told()
    assert story.pipeline.evidence is Evidence.SIMULATED
    assert build_report(story.pipeline).evidence == Evidence.SIMULATED
    assert Story().pipeline.evidence is Evidence.MEASURED


def test_a_page_of_counters_alone_says_it_too() -> None:
    story = Story()
    story.tell(1.0, CountersScraped(1.0, "vllm", f"0.32.0{SIMULATED_RELEASE}"), tap="metrics")
    assert story.pipeline.evidence is Evidence.SIMULATED


def test_the_report_says_so_before_any_figure() -> None:
    out = io.StringIO()
    print_report(build_report(told().pipeline), Console(file=out, width=120))
    assert out.getvalue().lstrip().startswith("SIMULATED")
    out = io.StringIO()
    print_report(build_report(Story().pipeline), Console(file=out, width=120))
    assert "SIMULATED" not in out.getvalue()


def test_a_recording_that_began_before_the_engine_was_known_is_read_as_simulated(
    tmp_path: Path,
) -> None:
    header = RecordingHeader(Provenance.REAL, 0.0, "1")
    path = tmp_path / "run.kvr"
    with RecordingWriter(path, header) as writer:
        for item in told().told:
            writer.write(item)
    assert play(path).header.provenance is Provenance.SIMULATED
    path = tmp_path / "real.kvr"
    with RecordingWriter(path, header) as writer:
        for item in Story().told:
            writer.write(item)
    assert play(path).header.provenance is Provenance.REAL


def test_no_model_of_a_simulated_engine_is_called_measured() -> None:
    story = told()
    story.arrives(1.0, "a", [1, 2])
    story.scheduled(1.0, "a")
    story.batch(1.0, 1.1)
    cards = model_cards(story.pipeline.ranks.values(), story.pipeline.ledger).models
    assert Evidence.MEASURED not in {card.evidence for card in cards}
    assert Evidence.SIMULATED in {card.evidence for card in cards}


def test_no_answer_about_a_simulated_engine_is_called_measured() -> None:
    asked = ReadinessAsked((AskedCandidate(block_hashes=(5, 6), prompt_tokens=64),))
    kinds = []
    for engine in (ENGINE, SIMULATED):
        story = told(engine)
        story.arrives(1.0, "a", [1, 2])
        story.scheduled(1.0, "a")
        story.batch(1.0, 1.1, prefill("a", 72))
        story.tell(1.2, asked, tap="api")
        answers = story.pipeline.readiness.latest
        assert answers is not None
        kinds.append(answers.answers[0].evidence)
    assert kinds == [Evidence.MEASURED, Evidence.SIMULATED]


def test_metrics_say_what_kind_of_facts_they_are() -> None:
    for engine, kind in ((ENGINE, "measured"), (SIMULATED, "simulated")):
        values = pipeline_values(told(engine).pipeline)
        assert values["kvready_evidence_info"] == {(kind,): 1}
