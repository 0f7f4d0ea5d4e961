"""From a mover that corrupts pages to what the sidecar counts: the report reaches its reader."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from story import Story

pytest.importorskip("torch")

from test_tier_copies import Tier

from kvready.collectors.engine.transfers import TransferPublisher
from kvready.collectors.records import (
    AnyRecord,
    CopyMethod,
    LoadChecked,
    LoadFinished,
    LoadStarted,
)
from kvready.collectors.records import Tier as Place
from kvready.kernels.engine.copy_thread import CopyThread
from kvready.kernels.engine.mover_choice import MoverName, MoverSettings


class Collected:
    """A publisher that keeps what it is given."""

    def __init__(self) -> None:
        self.records: list[AnyRecord] = []

    def open(self) -> None:
        """Nothing to open."""

    def publish(self, records: Sequence[AnyRecord]) -> None:
        self.records += records


def test_a_checked_load_that_differed_is_a_record_and_a_count() -> None:
    tier = Tier(settings=MoverSettings(MoverName.GATHER, check_every=2), corrupt_after=1)
    published = Collected()
    thread = CopyThread(True, TransferPublisher(published))  # type: ignore[arg-type]
    for job in range(4):
        thread.submit(job, lambda job=job: tier.copies.load(tier.some_pages(job)))  # type: ignore[misc]
    thread.wait(range(4))
    thread.shutdown()
    assert thread.observer_failures == 0
    assert [r for r in published.records if isinstance(r, LoadChecked)] == [
        LoadChecked(0, Place.HOST, Place.HBM, mismatched=False),
        LoadChecked(2, Place.HOST, Place.HBM, mismatched=True),
    ]
    ends = [r for r in published.records if isinstance(r, LoadFinished)]
    assert [end.method for end in ends] == [CopyMethod.GATHER] * 2 + [CopyMethod.DMA_PER_PAGE] * 2
    # A load is told checked before it is told usable.
    kinds = [type(r) for r in published.records if getattr(r, "load_id", None) == 2]
    assert kinds == [LoadStarted, LoadChecked, LoadFinished]
    story = Story()
    for record in published.records:
        story.tell(1.0, record, "observer-mover-0")
    totals = story.pipeline.totals
    assert (totals.checked_loads, totals.mismatched_loads) == (2, 1)
