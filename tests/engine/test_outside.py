"""`look` and `doctor` beside a real engine that is well, while it serves."""

from __future__ import annotations

import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import load
import msgspec
import pytest
from engine import Engine
from prometheus_client.parser import text_string_to_metric_families

from kvready.advisor.diagnosis import Diagnosis
from kvready.advisor.look import COMPUTED, Look
from kvready.collectors.records import Tier

pytestmark = pytest.mark.engine

LOOK_SECONDS = 36
LEAD_SECONDS = 4.0  # until a look has made its first scrape
DOCTOR_SECONDS = 8
ENDING_SECONDS = 120
SOURCES = {Tier.HBM: "device", Tier.HOST: "host", Tier.DISK: "disk", Tier.REMOTE: "p2p"}


@dataclass
class Watched:
    """What both commands said of one load, and the engine's own pages around it."""

    look: Look
    doctor: Diagnosis
    codes: tuple[int, int]
    before: dict[tuple[str, str], float]
    after: dict[tuple[str, str], float]
    answers: list[load.Answer]


def counters(url: str) -> dict[tuple[str, str], float]:
    """Counters by name and source, as the reference parser reads them."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    return {
        (sample.name, sample.labels.get("source", "")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name.startswith("vllm:") and sample.name.endswith("_total")
    }


def command(*arguments: object) -> subprocess.Popen[bytes]:
    line = [sys.executable, "-m", "kvready.advisor.cli", *map(str, arguments), "--json"]
    return subprocess.Popen(line, stdout=subprocess.PIPE)


@pytest.fixture(scope="module")
def watched(engine_python: Path, models: Path) -> Iterator[Watched]:
    with Engine(engine_python, models / "kv-heavy") as engine:
        before = counters(engine.url)
        look = command("look", engine.url, "--seconds", LOOK_SECONDS, "--interval", 2)
        time.sleep(LEAD_SECONDS)
        doctor = command("doctor", engine.url, "--seconds", DOCTOR_SECONDS)
        shape = replace(load.SHAPES["small"], seed=7, questions=30, sessions=1)
        answers = load.run(engine.url, "kv-heavy", shape)
        assert look.poll() is None, "the load outlasted the look"
        said, diagnosis = (
            process.communicate(timeout=ENDING_SECONDS)[0] for process in (look, doctor)
        )
        after = counters(engine.url)
    yield Watched(
        msgspec.json.decode(said, type=Look),
        msgspec.json.decode(diagnosis, type=Diagnosis),
        (look.returncode, doctor.returncode),
        before,
        after,
        answers,
    )


def test_the_doctor_finds_nothing_on_an_engine_that_is_well(watched: Watched) -> None:
    assert watched.doctor.findings == ()
    assert watched.codes[1] == 0
    assert watched.doctor.busy
    assert watched.doctor.next_level is None
    rows = {row.tap: row for row in watched.doctor.coverage}
    assert set(rows) == {"metrics", "kv-events", "observer"}
    assert all(row.tiers[Tier.HBM] != "nothing" for row in rows.values())
    assert rows["kv-events"].tiers[Tier.HOST] != "nothing"


def test_hits_by_tier_are_the_engine_s_own(watched: Watched) -> None:
    def gained(name: str, source: str) -> float:
        return watched.after[name, source] - watched.before[name, source]

    said = {source.source: source.tokens for source in watched.look.prompt}
    for tier, source in SOURCES.items():
        assert said[tier] == gained("vllm:prompt_tokens_cached_by_source_total", source), tier
    assert said[COMPUTED] == gained("vllm:prompt_tokens_by_source_total", "local_compute")
    assert said[Tier.HBM] > 0
    assert said[Tier.HOST] > 0
    assert not watched.look.refused


def test_loads_and_first_tokens_are_the_engine_s_own(watched: Watched) -> None:
    look = watched.look
    assert look.loads is not None
    loaded = ("vllm:kv_offload_load_bytes_total", "")
    assert look.loads.payload_bytes == watched.after[loaded] - watched.before.get(loaded, 0.0)
    assert look.load_bytes_per_second is not None
    assert look.ttft_p50 is not None
    assert look.ttft_p95 is not None
    answered = [answer for answer in watched.answers if answer.ttft_seconds is not None]
    assert look.requests is not None
    assert len(answered) <= look.requests <= len(watched.answers)
