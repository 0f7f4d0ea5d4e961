"""The bundled recordings of a real engine with two movers and with a disk tier."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from kvready.advisor.ledger import PairState, Target
from kvready.advisor.playback import play
from kvready.advisor.waits import WaitState
from kvready.collectors.recording import read_recording
from kvready.collectors.records import CopyMethod, LoadFinished, Tier

RECORDINGS = Path(__file__).parents[1] / "examples" / "recordings"
MOVERS = RECORDINGS / "vllm-0.32-cpu-kv-heavy-movers.kvr"
DISK = RECORDINGS / "vllm-0.32-cpu-kv-heavy-disk.kvr"


@pytest.mark.parametrize("recording", [MOVERS, DISK], ids=lambda path: path.stem)
def test_both_movers_ran_in_one_engine_life(recording: Path) -> None:
    methods = Counter(
        item.record.method
        for item in read_recording(recording)
        if isinstance(item.record, LoadFinished) and item.record.destination is Tier.HBM
    )
    assert set(methods) == {CopyMethod.DMA_PER_PAGE, CopyMethod.GATHER}
    assert min(methods.values()) > 50


def test_requests_waited_for_fetches_and_every_fetch_was_forecast() -> None:
    pipeline = play(DISK).pipeline
    totals = pipeline.totals
    fetches = totals.copies[Tier.DISK, Tier.HOST]
    counts = pipeline.ledger.counts
    assert fetches > 100
    assert sum(counts[Target.FETCH, s] for s in (PairState.PAIRED, PairState.LATE)) == fetches
    assert counts[Target.FETCH, PairState.LATE] < fetches / 10
    assert 0 < totals.wait_seconds[WaitState.FETCH] < totals.wait_seconds[WaitState.LOAD]
    assert totals.unattributed_seconds < 0.02 * sum(totals.wait_seconds.values())
    assert (totals.checked_loads, totals.mismatched_loads) == (3, 0)
