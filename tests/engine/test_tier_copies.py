"""Copies between a host pool and a cache: every mover brings the same bytes, and lies are found."""

from __future__ import annotations

import logging
import os
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from test_copy_thread import Notes  # noqa: E402

from kvready.kernels.engine.copy_thread import Copied, CopyThread  # noqa: E402
from kvready.kernels.engine.host_pool import HbmTensor, HostPool, tensor_bytes  # noqa: E402
from kvready.kernels.engine.mover_choice import (  # noqa: E402
    MoverFile,
    MoverName,
    MoverSettings,
    read_settings,
)
from kvready.kernels.engine.pages import Page, TensorPage, pages  # noqa: E402
from kvready.kernels.engine.tier_copies import TierCopies  # noqa: E402
from kvready.kernels.errors import MoveError  # noqa: E402
from kvready.kernels.per_page_cpu import PerPageMover  # noqa: E402
from kvready.kernels.pools import Move, Pools  # noqa: E402

BLOCKS = 24
CHUNKS = 9
GATHER = MoverSettings(MoverName.GATHER, MoverName.GATHER)


class FragmentMover(PerPageMover):
    """Moves by addresses, as a gather does."""

    name = "gather"

    def __init__(self) -> None:
        self.moves = 0
        self.closed = 0

    def move(self, pools: Pools, move: Move) -> int:
        self.moves += 1
        return super().move(pools, move)

    def close(self) -> None:
        self.closed += 1


class CorruptingMover(FragmentMover):
    """Flips a byte of the last page that it moves, from its n-th move on."""

    def __init__(self, hbm: HbmTensor, good_moves: int) -> None:
        super().__init__()
        self._hbm = hbm
        self._good_moves = good_moves

    def move(self, pools: Pools, move: Move) -> int:
        moved = super().move(pools, move)
        if self.moves > self._good_moves:
            self._hbm.rows[move.hbm_pages[-1], -1] ^= 1
        return moved


@dataclass
class Tier:
    """A cache, a host pool and what copies between them."""

    page_bytes: Sequence[int] = (96, 96, 96)
    slots: int = 1
    settings: MoverSettings = GATHER
    padding: int = 0
    mover: FragmentMover | None = None
    corrupt_after: int | None = None
    opened: list[FragmentMover] = field(default_factory=list)

    def __post_init__(self) -> None:
        torch.manual_seed(1)
        self.hbm = [
            HbmTensor(noise(BLOCKS, width + self.padding), width + self.padding)
            for width in self.page_bytes
        ]
        self.groups = [[TensorPage(n, width) for n, width in enumerate(self.page_bytes)]]
        self.host = HostPool.allocate(CHUNKS, self.slots, tensor_bytes(len(self.hbm), self.groups))
        for tensor in self.host.tensors:
            tensor.copy_(noise(*tensor.shape))
        self.pools = self.host.pools(self.hbm, self.groups)
        self.copies = TierCopies(
            self.host, self.hbm, self.pools, self.slots, self.settings, self._open
        )

    def _open(self, threads: int) -> FragmentMover:
        if self.corrupt_after is None:
            mover = FragmentMover()
        else:
            mover = CorruptingMover(self.hbm[-1], self.corrupt_after)
        self.opened.append(mover)
        return mover

    def some_pages(self, seed: int, count: int = 7) -> list[Page]:
        chance = random.Random(seed)
        first = chance.randrange(self.slots)
        chunks = chance.sample(range(CHUNKS), -(-(count + first) // self.slots))
        blocks = chance.sample(range(BLOCKS), count)
        return pages(blocks, chunks, [count], [first], self.groups, self.slots)

    def holds(self, wanted: Sequence[Page]) -> bool:
        """Whether both sides of every page are equal now."""
        return all(
            torch.equal(
                self.hbm[page.tensor].rows[page.hbm_block, : page.page_bytes],
                self.host.tensors[page.tensor][page.host_chunk, page.slot, : page.page_bytes],
            )
            for page in wanted
        )


def noise(*shape: int) -> torch.Tensor:
    return torch.randint(-128, 128, shape, dtype=torch.int8)


@given(
    st.integers(1, 4), st.integers(1, 5), st.integers(1, 9), st.sampled_from([0, 32]), st.integers()
)
@settings(max_examples=40)
def test_both_movers_bring_exactly_the_named_pages(
    slots: int, tensors: int, count: int, padding: int, seed: int
) -> None:
    for mover in MoverName:
        tier = Tier([64] * tensors, slots, MoverSettings(mover, mover), padding)
        wanted = tier.some_pages(seed, min(count, slots * (CHUNKS - 1)))
        before = [entry.rows.clone() for entry in tier.hbm]
        moved = tier.copies.load(wanted)
        assert moved == Copied(
            64 * len(wanted), len(wanted), mover, None if mover == "dma_per_page" else False
        )
        assert tier.holds(wanted)
        touched = {page.hbm_block for page in wanted}
        others = [block for block in range(BLOCKS) if block not in touched]
        for now, then in zip(tier.hbm, before, strict=True):
            assert torch.equal(now.rows[others], then[others])
            assert torch.equal(now.rows[:, 64:], then[:, 64:])  # padding stays
        for entry in tier.hbm:
            entry.rows.copy_(noise(*entry.rows.shape))
        assert tier.copies.store(wanted).method == mover
        assert tier.holds(wanted)


def test_all_of_a_block_is_one_range_of_the_host_pool() -> None:
    tier = Tier(slots=2)
    first, second, third = (tensor.data_ptr() for tensor in tier.host.tensors)
    assert (second - first, third - first) == (96, 192)
    assert isinstance(tier.pools, Pools)
    assert tier.pools.host_page_stride_bytes == 320  # 3 x 96, up to a whole cache line
    assert tier.pools.host_pages == 2 * CHUNKS


@pytest.mark.parametrize(
    ("page_bytes", "groups", "reason"),
    [
        ((64, 96), [[TensorPage(0, 64), TensorPage(1, 96)]], "differ in size"),
        ((64, 64), [[TensorPage(0, 64)], [TensorPage(1, 64)]], "2 groups"),
        ((64,), [[TensorPage(0, 64), TensorPage(0, 64)]], "shared between layers"),
    ],
)
def test_caches_of_several_kinds_stay_page_by_page_and_say_why(
    page_bytes: Sequence[int],
    groups: list[list[TensorPage]],
    reason: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    hbm = [HbmTensor(noise(BLOCKS, width), width) for width in page_bytes]
    host = HostPool.allocate(CHUNKS, 1, tensor_bytes(len(hbm), groups))
    why = host.pools(hbm, groups)
    assert isinstance(why, str)
    assert reason in why
    copies = TierCopies(host, hbm, why, 1, GATHER, lambda _: pytest.fail("no gather is opened"))
    assert reason in caplog.text
    first = [TensorPage(*page) for page in groups[0]]
    wanted = pages([3], [4], [1], [0], [first], 1)
    assert copies.load(wanted).method == "dma_per_page"


def test_a_mover_that_corrupts_is_found_repaired_reported_and_turned_off(
    caplog: pytest.LogCaptureFixture,
) -> None:
    tier = Tier(settings=MoverSettings(MoverName.GATHER, check_every=10), corrupt_after=15)
    notes = Notes()
    thread = CopyThread(True, notes)
    broken = []
    for job in range(30):
        wanted = tier.some_pages(job)
        thread.submit(job, lambda wanted=wanted: tier.copies.load(wanted))  # type: ignore[misc]
        thread.wait([job])
        if not tier.holds(wanted):
            broken.append(job)
    thread.shutdown()
    # Loads 0, 10 and 20 are checked; from 15 on the mover lies, at 20 it is found out.
    assert broken == [15, 16, 17, 18, 19]
    assert [entry[1:] for entry in notes.told if entry[0] == "checked"] == [
        (0, True, False),
        (10, True, False),
        (20, True, True),
    ]
    assert notes.methods == ["gather"] * 20 + ["dma_per_page"] * 10
    assert "differed from per-page copies" in caplog.text
    assert tier.copies.gather_off
    assert [mover.moves for mover in tier.opened] == [21, 0]
    tier.copies.close()
    assert [mover.closed for mover in tier.opened] == [1, 1]


def test_a_gather_that_is_refused_costs_one_load_its_speed_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> int:
        raise MoveError("not today")

    tier = Tier()
    with monkeypatch.context() as patched:
        patched.setattr(FragmentMover, "move", refuse)
        for seed in range(3):
            wanted = tier.some_pages(seed)
            assert tier.copies.load(wanted).method == "dma_per_page"
            assert tier.holds(wanted)
    assert tier.copies.gather_failures == 3
    assert caplog.text.count("not today") == 1
    assert tier.copies.load(tier.some_pages(9)).method == "gather"


def test_a_word_in_a_file_switches_the_mover_of_loads_at_run_time(tmp_path: Path) -> None:
    file = tmp_path / "mover"
    tier = Tier(settings=MoverSettings(mover_file=file, check_every=1))
    seen = []
    for turn, word in enumerate(["gather", "dma_per_page\n", "gather ", "nonsense", "gather"]):
        write(file, word, turn)
        wanted = tier.some_pages(turn)
        seen += [tier.copies.load(wanted).method, tier.copies.load(wanted).method]
        assert tier.holds(wanted)
        assert tier.copies.store(wanted).method == "dma_per_page"  # it has a setting of its own
    assert seen == [
        *("gather", "gather"),
        *("dma_per_page", "dma_per_page"),
        *("gather", "gather"),
        *("dma_per_page", "dma_per_page"),
        *("gather", "gather"),
    ]


def write(file: Path, word: str, turn: int) -> None:
    """Make a change that shows in the times whatever the clock's step."""
    file.write_text(word)
    later = time.time_ns() + turn * 1_000_000_000
    os.utime(file, ns=(later, later))


@pytest.mark.parametrize("content", [None, b"", b"gather dma", b"\xff\xfe", b"g" * 1_000])
def test_a_bad_or_absent_file_leaves_the_configured_mover_counted_and_logged_once(
    tmp_path: Path, content: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "mover"
    if content is not None:
        file.write_bytes(content)
    choice = MoverFile(MoverName.GATHER, file)
    with caplog.at_level(logging.WARNING):
        assert [choice.current() for _ in range(3)] == [MoverName.GATHER] * 3
    assert choice.failures == 3
    assert caplog.text.count("names no mover") == 1
    file.write_text("dma_per_page")
    assert choice.current() is MoverName.DMA_PER_PAGE
    file.unlink()
    assert choice.current() is MoverName.GATHER


def test_movers_are_read_from_the_connectors_settings() -> None:
    assert read_settings({}) == MoverSettings()
    assert not read_settings({}).may_gather
    told = read_settings(
        {"mover": "gather", "store_mover": "gather", "mover_file": "/x", "check_every": 5}
    )
    assert told == MoverSettings(MoverName.GATHER, MoverName.GATHER, Path("/x"), 5)
    assert read_settings({"mover_file": "/x"}).may_gather


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("mover", "memcpy"),
        ("store_mover", 3),
        ("check_every", 0),
        ("check_every", "often"),
        ("gather_threads", True),
        ("gather_threads", 65),
    ],
)
def test_a_wrong_setting_is_named(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=rf"{name}=.* in kv_connector_extra_config"):
        read_settings({name: value})
