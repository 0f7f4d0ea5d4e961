"""What copies come to: each counted once, in the right cell, and bandwidth as it was made."""

from __future__ import annotations

from itertools import product

import pytest
from story import Story

from kvready.advisor.copy_account import (
    AWAITED,
    Beside,
    CopyAccount,
    CopyPath,
    CopySize,
    path_of,
    size_of,
)
from kvready.advisor.requests import Copy
from kvready.collectors.records import CopyMethod, LoadDecided, LoadFinished, Tier

MIB = 1 << 20


def ended(
    size: int = MIB,
    *,
    source: Tier = Tier.HOST,
    to: Tier = Tier.HBM,
    seconds: float = 0.5,
    shared: float | None = 0.0,
    step_seconds: float = 0.0,
    method: CopyMethod | None = None,
) -> tuple[Copy, LoadFinished, float | None]:
    """A copy that was ordered at 1 s, taken up at 2 s, and took so long."""
    copy = Copy(LoadDecided(1, "r", source, to, 64, size, 4, 1.0))
    copy.started_seconds = None if shared is None else 2.0
    copy.ready_seconds = 2.0 + seconds
    copy.step_seconds = step_seconds
    finish = LoadFinished(1, source, to, copy.started_seconds, 2.0 + seconds, method=method)
    return copy, finish, shared


@pytest.mark.parametrize(
    ("source", "to", "path"),
    [
        (Tier.HOST, Tier.HBM, CopyPath.LOAD),
        (Tier.DISK, Tier.HBM, CopyPath.LOAD),
        (Tier.DISK, Tier.HOST, CopyPath.FETCH),
        (Tier.REMOTE, Tier.HOST, CopyPath.FETCH),
        (Tier.HBM, Tier.HOST, CopyPath.BACKUP),
        (Tier.HBM, Tier.DISK, CopyPath.BACKUP),
        (Tier.HOST, Tier.DISK, CopyPath.SPILL),
        (Tier.DISK, Tier.REMOTE, CopyPath.OTHER),
        (Tier.REMOTE, Tier.DISK, CopyPath.OTHER),
    ],
)
def test_a_copy_is_for_what_it_goes_to(source: Tier, to: Tier, path: CopyPath) -> None:
    assert path_of(source, to) is path


def test_every_pair_of_tiers_has_a_path() -> None:
    assert {path_of(*pair) for pair in product(Tier, Tier)} == set(CopyPath)


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (0, CopySize.BELOW_1_MIB),
        (MIB - 1, CopySize.BELOW_1_MIB),
        (MIB, CopySize.BELOW_8_MIB),
        (64 * MIB, CopySize.BELOW_512_MIB),
        (1 << 47, CopySize.FROM_512_MIB),
    ],
)
def test_a_size_belongs_to_the_bin_whose_lower_end_it_reaches(
    size: int, expected: CopySize
) -> None:
    assert size_of(size) is expected


@pytest.mark.parametrize(
    ("shared", "step_seconds", "beside"),
    [
        (0.0, 0.0, Beside.NOTHING),
        (0.0, 0.1, Beside.COMPUTE),
        (0.1, 0.0, Beside.COPIES),
        (1.0, 0.1, Beside.COPIES),
    ],
)
def test_bandwidth_alone_and_contended_is_told_apart(
    shared: float, step_seconds: float, beside: Beside
) -> None:
    account = CopyAccount()
    for _ in range(3):
        account.finish(*ended(shared=shared, step_seconds=step_seconds))
    cell = CopyPath.LOAD, CopySize.BELOW_8_MIB, beside
    assert account.transfer_bytes == {cell: 3 * MIB}
    assert account.transfer_seconds == {cell: pytest.approx(1.5)}


def test_a_copy_whose_start_nobody_told_makes_no_bandwidth() -> None:
    account = CopyAccount()
    account.finish(*ended(shared=None))
    assert account.untimed == {CopyPath.LOAD: 1}
    assert not account.transfer_bytes
    assert not account.mover_seconds
    assert account.usable[CopyPath.LOAD].count == 1  # when it was usable is known all the same


def test_what_requests_wait_for_is_timed_from_its_order() -> None:
    account = CopyAccount()
    account.finish(*ended(seconds=0.25))
    account.finish(*ended(source=Tier.DISK, to=Tier.HOST, seconds=0.75))
    account.finish(*ended(source=Tier.HBM, to=Tier.HOST))
    account.finish(*ended(source=Tier.HOST, to=Tier.DISK))
    assert [account.usable[path].total for path in AWAITED] == [1.25, 1.75]
    assert [account.start_wait_seconds[path] for path in AWAITED] == [1.0, 1.0]
    example = next(filter(None, account.usable[CopyPath.LOAD].examples))
    assert (example.request_id, example.seconds) == ("r", 2.25)


def test_a_movers_cost_of_a_piece_follows_from_its_sums() -> None:
    account = CopyAccount()
    for seconds in (0.1, 0.3):
        account.finish(*ended(seconds=seconds, method=CopyMethod.GATHER))
    account.finish(*ended(seconds=1.0, method=CopyMethod.DMA_PER_PAGE))
    mover = CopyPath.LOAD, CopyMethod.GATHER
    assert account.mover_seconds[mover] / account.mover_fragments[mover] == pytest.approx(0.4 / 8)
    assert account.mover_bytes[mover] == 2 * MIB


def test_a_pipelines_cells_add_up_to_its_totals(told_story: Story) -> None:
    copies, totals = told_story.pipeline.copies, told_story.pipeline.totals
    assert sum(copies.transfer_bytes.values()) == sum(totals.copy_bytes.values()) > 0
    assert sum(copies.transfer_seconds.values()) == pytest.approx(sum(totals.copy_seconds.values()))
    assert sum(copies.mover_bytes.values()) == sum(totals.copy_bytes.values())
    assert copies.usable[CopyPath.LOAD].count == totals.copies[Tier.HOST, Tier.HBM]


def test_a_link_is_as_long_busy_as_one_loads_after_the_other_take(told_story: Story) -> None:
    [rank] = told_story.pipeline.ranks.values()
    loads = told_story.pipeline.totals.copy_seconds[Tier.HOST, Tier.HBM]
    assert rank.link.busy_seconds == pytest.approx(loads, rel=0.1)
