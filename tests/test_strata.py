"""The intended batch is the paper's, word by word; what the paper leaves open is bounded."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from chains import Chains
from hypothesis import given
from hypothesis import strategies as st

from kvready.advisor.adaptive_ratio import HIGHEST_RATIO, LOWEST_RATIO, AdaptiveRatio
from kvready.advisor.load_start_order import load_start_order
from kvready.advisor.shared_loads import SharedLoads
from kvready.advisor.strata import (
    ENGINE_ALONE,
    MAX_FILL_STEPS,
    PAPER,
    Admission,
    BatchLimits,
    LoadBudget,
    Plan,
    Reason,
    Settings,
    Waiting,
    fill_steps,
    intended_batch,
)

BLOCK = 16
CHAINS = Chains()
PATHS = st.lists(st.sampled_from("ab"), max_size=7).map(CHAINS.chain)


@st.composite
def queues(draw: st.DrawFn) -> list[Waiting]:
    """Waiting requests whose loads share beginnings, some of them awaited."""
    return [
        Waiting(
            f"r{number}",
            draw(st.sampled_from((1, 3, 40, 700))),
            load_tokens=len(chain) * BLOCK,
            load_hashes=chain,
            awaited_tokens=draw(st.sampled_from((0, 0, 0, 100, 101, 4_000))),
            held_seconds=draw(st.sampled_from((0.0, 0.0, 0.0, 29.9, 30.0, 31.0))),
            context_tokens=len(chain) * BLOCK,
            blocks_needed=len(chain) + draw(st.integers(0, 3)),
        )
        for number, chain in enumerate(draw(st.lists(PATHS, max_size=9)))
    ]


LIMITS = st.builds(
    BatchLimits,
    batch_tokens=st.sampled_from((None, 1, 50, 800)),
    batch_requests=st.sampled_from((None, 1, 3)),
    free_blocks=st.sampled_from((None, 0, 6, 12)),
    request_tokens=st.sampled_from((None, 32)),
    block_tokens=st.just(BLOCK),
)
SETTINGS = st.builds(
    Settings,
    dedup=st.booleans(),
    balance=st.booleans(),
    load_ratio=st.sampled_from((0.5, 4.0, 100.0)),
    bundle_tokens=st.sampled_from((1, 17, 60)),
)


class PaperBatch:
    """The paper's batch over plain sets: slow, and close to its words."""

    def __init__(self, limits: BatchLimits, settings: Settings) -> None:
        self.members: list[tuple[Waiting, Reason, int, int]] = []
        self.blocks: set[int] = set()
        self.limits, self.settings = limits, settings
        self.pinned = 0

    @property
    def load(self) -> int:
        return len(self.blocks) * BLOCK

    @property
    def compute(self) -> int:
        return sum(new for _, _, new, _ in self.members)

    def chunk(self, r: Waiting) -> int:
        most = [r.compute_tokens]
        if self.limits.request_tokens is not None:
            most.append(self.limits.request_tokens)
        if self.limits.batch_tokens is not None:
            most.append(self.limits.batch_tokens - self.compute)
        return min(most)

    def full(self, r: Waiting) -> bool:
        limits = self.limits
        if limits.batch_tokens is not None and self.compute >= limits.batch_tokens:
            return True
        if limits.batch_requests is not None and len(self.members) >= limits.batch_requests:
            return True
        needed = r.blocks_needed - len(self.blocks & set(r.load_hashes))
        return limits.free_blocks is not None and self.pinned + needed > limits.free_blocks

    def add(self, r: Waiting, reason: Reason) -> None:
        new = self.chunk(r)
        beyond = set(r.load_hashes) - self.blocks
        shared = len(r.load_hashes) - len(beyond)
        self.pinned += max(0, r.blocks_needed - shared)
        self.blocks |= beyond
        self.members.append((r, reason, new, len(beyond) * BLOCK))

    def add_bundle_hits(self, queue: list[Waiting], member: Waiting) -> None:
        if not self.settings.balance:
            return
        for r in list(queue):
            with_member = set(r.load_hashes) & set(member.load_hashes)
            shared = len(set(r.load_hashes) & self.blocks) * BLOCK
            if with_member and shared >= self.settings.bundle_tokens and not self.full(r):
                self.add(r, Reason.BUNDLE)
                queue.remove(r)

    def ratio_exceeded(self, r: Waiting) -> bool:
        load = len(self.blocks | set(r.load_hashes)) * BLOCK
        return load / (self.compute + self.chunk(r)) > self.settings.load_ratio


def paper_plan(waiting: Sequence[Waiting], limits: BatchLimits, settings: Settings) -> Plan:
    """Deferral, then Algorithm 1; those held too long come first and are not passed over again."""
    overdue = [r for r in waiting if r.held_seconds >= settings.hold_seconds]
    others = [r for r in waiting if r.held_seconds < settings.hold_seconds]
    late = [r for r in others if settings.dedup and r.awaited_tokens > settings.delay_tokens]
    queue = sorted(overdue, key=lambda r: r.held_seconds, reverse=True)
    queue += [r for r in others if r not in late]
    batch = PaperBatch(limits, settings)
    left: list[Waiting] = []
    while queue and not batch.full(queue[0]):
        r = queue.pop(0)
        if not batch.members or r in overdue:
            batch.add(r, Reason.HEAD)
        elif settings.balance and batch.ratio_exceeded(r):
            left.append(r)
            continue
        else:
            batch.add(r, Reason.FITS)
        batch.add_bundle_hits(queue, r)
    while left and not batch.full(left[0]):
        batch.add(left.pop(0), Reason.LEFTOVER)
    return Plan(
        tuple(Admission(r.request_id, reason, new, load) for r, reason, new, load in batch.members),
        tuple(r.request_id for r in late),
        tuple(r.request_id for r in left),
        batch.load,
        batch.compute,
    )


@given(queues(), LIMITS, SETTINGS)
def test_the_plan_is_the_paper_s(
    queue: list[Waiting], limits: BatchLimits, settings: Settings
) -> None:
    assert intended_batch(queue, limits, settings) == paper_plan(queue, limits, settings)


@given(queues(), LIMITS)
def test_with_every_policy_off_it_is_first_come_first_served(
    queue: list[Waiting], limits: BatchLimits
) -> None:
    for waiting in queue:
        waiting.held_seconds = 0.0
    plan = intended_batch(queue, limits, ENGINE_ALONE)
    names = [waiting.request_id for waiting in queue]
    assert [admission.request_id for admission in plan.admitted] == names[: len(plan.admitted)]
    assert plan.deferred == plan.deprioritised == ()


@given(queues(), LIMITS, SETTINGS)
def test_the_head_of_those_that_may_run_is_always_taken(
    queue: list[Waiting], limits: BatchLimits, settings: Settings
) -> None:
    plan = intended_batch(queue, limits, settings)
    may_run = [w for w in queue if w.request_id not in plan.deferred]
    overdue = [w for w in may_run if w.held_seconds >= settings.hold_seconds]
    head = max(overdue, key=lambda w: w.held_seconds) if overdue else next(iter(may_run), None)
    if head is not None and (
        limits.free_blocks is None or head.blocks_needed <= limits.free_blocks
    ):
        assert plan.admitted[0].request_id == head.request_id


@given(queues(), LIMITS, SETTINGS)
def test_a_batch_that_has_room_leaves_nobody_out(
    queue: list[Waiting], limits: BatchLimits, settings: Settings
) -> None:
    roomy = BatchLimits(block_tokens=BLOCK)
    plan = intended_batch(queue, roomy, settings)
    assert len(plan.admitted) + len(plan.deferred) == len(queue)
    assert plan.deprioritised == ()


@given(queues(), LIMITS, SETTINGS)
def test_each_request_has_one_fate_and_loads_count_once(
    queue: list[Waiting], limits: BatchLimits, settings: Settings
) -> None:
    plan = intended_batch(queue, limits, settings)
    admitted = [admission.request_id for admission in plan.admitted]
    passed_over = [w.request_id for w in queue if w.request_id not in {*admitted, *plan.deferred}]
    assert set(plan.deprioritised) <= set(passed_over)
    assert sorted([*admitted, *plan.deferred, *passed_over]) == sorted(w.request_id for w in queue)
    union = {h for w in queue if w.request_id in admitted for h in w.load_hashes}
    assert plan.load_tokens == len(union) * BLOCK
    assert plan.load_tokens == sum(admission.load_tokens for admission in plan.admitted)


@given(st.lists(PATHS, max_size=12))
def test_shared_blocks_are_those_of_the_union(chains: list[tuple[int, ...]]) -> None:
    loads, union = SharedLoads(), set[int]()
    for chain in chains:
        parting = loads.parting(chain)
        assert parting.shared_blocks == len(union & set(chain))
        loads.add(chain, parting)
        union |= set(chain)


def test_a_budget_of_time_weighs_seconds_not_tokens() -> None:
    class Costs:
        def load_seconds(self, tokens: int) -> float:
            return tokens * 1e-3

        def batch_seconds(self) -> float:
            return 0.004

        def compute_seconds(self, new_tokens: int, context_tokens: int) -> float:
            return new_tokens * 1e-2

    queue = [
        Waiting("head", 10),
        Waiting("heavy", 1, load_tokens=200, load_hashes=CHAINS.chain("heavy")),
        Waiting("light", 1, load_tokens=100, load_hashes=CHAINS.chain("light")),
    ]
    settings = Settings(budget=LoadBudget.TIME)
    limits = BatchLimits(batch_requests=2)
    # 0.004 s and 11 tokens of 0.01 s hide a load of 0.1 s, not one of 0.2 s
    plan = intended_batch(queue, limits, settings, Costs())
    assert [admission.request_id for admission in plan.admitted] == ["head", "light"]
    assert plan.deprioritised == ("heavy",)
    with pytest.raises(TypeError, match="costs"):
        intended_batch(queue, limits, settings)


def test_an_adaptive_ratio_falls_with_stalls_and_rises_with_what_it_keeps_out() -> None:
    ratio = AdaptiveRatio(Settings(budget=LoadBudget.ADAPTIVE))
    assert ratio.settings.load_ratio == PAPER.load_ratio
    kept_out = Plan((), (), ("late",), 0, 0)
    for _ in range(200):
        ratio.see(kept_out, 0.5, 1.0)
    assert ratio.settings.load_ratio == LOWEST_RATIO
    nobody = Plan((), (), (), 0, 0)
    ratio.see(nobody, 0.0, 1.0)
    assert ratio.settings.load_ratio == LOWEST_RATIO
    for _ in range(200):
        ratio.see(kept_out, 0.0, 1.0)
    assert ratio.settings.load_ratio == HIGHEST_RATIO
    assert AdaptiveRatio(PAPER).settings is PAPER


@pytest.mark.parametrize(
    ("load", "compute", "step", "steps"),
    [
        (1.0, 0.375, 0.125, 5),
        (1.0, 0.95, 0.1, 0),  # not even one step would be hidden
        (0.4, 1.0, 0.1, 0),  # nothing stalls
        (1.0, 0.4, 0.0, 0),  # nobody decodes
        (100.0, 0.4, 0.1, MAX_FILL_STEPS),
    ],
)
def test_decode_fills_only_what_would_stall(
    load: float, compute: float, step: float, steps: int
) -> None:
    assert fill_steps(load, compute, step) == steps
    # the prefill ends no later than without them: its compute fits in what is left of the load
    assert steps * step <= max(0.0, load - compute) + 1e-9


@given(queues(), st.sampled_from((None, 0, 6, 12, 30)), st.booleans())
def test_loads_start_first_as_far_as_their_blocks_leave_room_for_the_head(
    queue: list[Waiting], free_blocks: int | None, balance: bool
) -> None:
    settings = Settings(balance=balance)
    order = load_start_order(queue, BatchLimits(free_blocks=free_blocks), settings)
    assert sorted(w.request_id for w in order) == sorted(w.request_id for w in queue)
    overdue = [w for w in queue if w.held_seconds >= settings.hold_seconds]
    others = [w for w in queue if w not in overdue]
    assert order[: len(overdue)] == sorted(overdue, key=lambda w: -w.held_seconds)
    rest = order[len(overdue) :]
    if not balance:
        assert rest == others
        return
    for kind in (True, False):
        assert [w for w in rest if (w.load_tokens > 0) is kind] == [
            w for w in others if (w.load_tokens > 0) is kind
        ]
    computing = next((place for place, w in enumerate(rest) if not w.load_tokens), None)
    if free_blocks is not None and computing is not None:
        overtook = [w for w in rest[:computing] if others.index(w) > others.index(rest[computing])]
        if overtook:
            assert sum(w.blocks_needed for w in overdue + rest[: computing + 1]) <= free_blocks
