"""What counts as served is set once, kept with a recording, and told with every figure."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from story import Story

from kvready.advisor.bounded_names import UNNAMED
from kvready.advisor.compute import GENERIC_PRIOR
from kvready.advisor.load_priors import NO_PROFILE
from kvready.advisor.pipeline import Pipeline
from kvready.advisor.playback import play
from kvready.advisor.report import build_report
from kvready.advisor.served import Served
from kvready.advisor.service.runner import open_recording
from kvready.advisor.settings import load_settings
from kvready.collectors.errors import RecordingError, SettingsError
from kvready.collectors.recording import (
    Provenance,
    RecordingHeader,
    RecordingWriter,
    read_recording,
)
from kvready.collectors.service_targets import NO_TARGETS, ServiceTargets

TTFT = "targets.target_ttft_seconds"
PACE = "targets.target_output_tokens_per_second"


def test_targets_come_from_the_settings_and_none_is_none() -> None:
    assert load_settings().settings.targets.service_targets is None
    set_ = load_settings(flags={TTFT: 2.5, PACE: 20.0}).settings.targets.service_targets
    assert set_ == ServiceTargets(2.5, 20.0)


@pytest.mark.parametrize("name", [TTFT, PACE])
@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf"), 1e12])
def test_a_target_that_nobody_can_mean_is_refused(name: str, value: float) -> None:
    with pytest.raises(SettingsError, match=name):
        load_settings(flags={name: value})


@pytest.mark.parametrize(
    ("targets", "text"),
    [
        (NO_TARGETS, "none set"),
        (ServiceTargets(ttft_seconds=2.0), "2 s"),
        (ServiceTargets(output_tokens_per_second=20.0), "20 output tokens/s"),
        (ServiceTargets(0.25, 12.5), "0.25 s, 12.5 output tokens/s"),
    ],
)
def test_every_figure_carries_the_targets_that_it_holds_under(
    told_story: Story, targets: ServiceTargets, text: str
) -> None:
    pipeline = Pipeline(targets=targets)
    for item in told_story.told:
        pipeline.ingest(item)
    assert build_report(pipeline).conditions["TTFT target"] == text
    assert all(report.conditions["TTFT target"] == text for report in build_report(pipeline).gates)


def test_a_recording_replays_under_the_targets_that_it_was_made_under(
    told_story: Story, tmp_path: Path
) -> None:
    targets = ServiceTargets(ttft_seconds=0.028)
    live = Pipeline(targets=targets)
    path = tmp_path / "day.kvr"
    with open_recording(path, NO_PROFILE, GENERIC_PRIOR, targets) as writer:
        for item in told_story.told:
            live.ingest(item)
            writer.write(item)
    played = play(path).pipeline
    assert dict(played.service.served) == dict(live.service.served)
    assert (
        played.service.served[UNNAMED, Served.LATE]
        > 0
        < played.service.served[UNNAMED, Served.GOOD]
    )
    assert msgspec.json.encode(build_report(played)) == msgspec.json.encode(build_report(live))


def test_a_recording_made_without_targets_asks_nothing(recording: Path) -> None:
    assert play(recording).pipeline.service.targets == NO_TARGETS


def test_a_header_with_targets_that_nobody_can_mean_is_no_recording(tmp_path: Path) -> None:
    path = tmp_path / "bad.kvr"
    header = RecordingHeader(Provenance.SIMULATED, 0.0, "test", targets=ServiceTargets(-1.0))
    with RecordingWriter(path, header):
        pass
    with pytest.raises(RecordingError):
        read_recording(path)
