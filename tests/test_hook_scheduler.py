"""The hook in a scheduler: whom it holds, for how long, and that it leaves nothing behind."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest
from fake_vllm import BLOCK, FakeRequest, FakeVllm, Status
from hypothesis import given, settings
from hypothesis import strategies as st

from kvready.advisor.flags import Split
from kvready.advisor.hooks.held_requests import LEAST_SECONDS, PATIENCE, HeldRequests, LeaderSpeed
from kvready.advisor.hooks.lease import NOTHING, Held, Switch
from kvready.advisor.hooks.load_limit import LoadLimit
from kvready.advisor.hooks.queue_planner import NEW_BLOCKS_PER_PASS, STANDS_PASSES
from kvready.advisor.hooks.vllm_hook import VllmHook
from kvready.advisor.hooks.vllm_view import prefix_group
from kvready.advisor.ledger import Target
from kvready.advisor.policies import Policy
from kvready.advisor.shape_cells import inflight_cell, load_cell, told_cell
from kvready.advisor.strata import PAPER
from kvready.collectors.names import Tier

PREFIX = tuple(range(1_000, 1_075))  # 2,400 tokens
STEP_SECONDS = 0.01
HOLD_SECONDS = 10.0
ON = Switch(is_on=True)


class Flags:
    """What the sidecar says, and the time by which it holds."""

    def __init__(self) -> None:
        self.now = 100.0
        self.held = NOTHING

    def say(self, switches: Mapping[str, Switch], seconds: float = 1e9) -> None:
        self.held = Held(MappingProxyType(dict(switches)), self.now, self.now + seconds)


class Engine:
    """A fake engine with a hook, and time that passes with its steps."""

    def __init__(self, hold_seconds: float = HOLD_SECONDS, **shape: object) -> None:
        self.vllm = FakeVllm(**shape)  # type: ignore[arg-type]
        self.flags = Flags()
        self.hook = VllmHook(
            self.vllm, "0.32.0", lambda: self.flags.held, hold_seconds, lambda: self.flags.now
        )
        self.vllm.hook = self.hook
        self.held_at: dict[str, list[float]] = {}

    def step(self, passes: int = 1) -> None:
        for _ in range(passes):
            self.vllm.step()
            for name in self.hook.held:
                self.held_at.setdefault(name, []).append(self.flags.now)
            self.flags.now += STEP_SECONDS

    def run(self) -> None:
        passes = 3_000
        while self.vllm.requests and passes:
            self.step()
            passes -= 1
        assert not self.vllm.requests, "somebody never ran"

    @property
    def computed(self) -> int:
        return sum(self.vllm.computed.values())


def convoy(
    followers: int = 3, prefix: tuple[int, ...] = PREFIX, name: str = "r"
) -> list[FakeRequest]:
    """A leader and its followers; each prompt ends with a block of its own."""
    numbers = range(followers + 1)
    return [FakeRequest(f"{name}{number}", (*prefix, 2_000 + number)) for number in numbers]


def fresh(name: str, number: int, blocks: int = 40, output_tokens: int = 1) -> FakeRequest:
    """A prompt of its own."""
    begin = 10_000 + 1_000 * number
    return FakeRequest(f"{name}{number}", tuple(range(begin, begin + blocks)), 1, output_tokens)


def into_host(engine: Engine, *requests: FakeRequest, is_ready: bool = True) -> None:
    """All but the last block of their prompts."""
    for one in requests:
        for digest in one.block_hashes[:-1]:
            engine.vllm.host.chunks[digest + bytes(4)] = SimpleNamespace(is_ready=is_ready)


def ideal(requests: list[FakeRequest]) -> int:
    """What must be computed: each block once, and what is no whole block."""
    blocks = {digest for one in requests for digest in one.block_hashes}
    return len(blocks) * BLOCK + sum(one.tail_tokens for one in requests)


def test_followers_wait_for_what_their_leader_computes() -> None:
    stock, held = Engine(), Engine()
    held.flags.say({Policy.DEDUP: ON})
    for engine in (stock, held):
        engine.vllm.add(*convoy())
        engine.run()
    assert held.computed == ideal(convoy())
    assert stock.computed > 2 * held.computed
    assert set(held.held_at) == {"r1", "r2", "r3"}
    assert stock.held_at == {}
    assert held.hook.failures == 0


def test_who_asks_for_something_else_is_not_held() -> None:
    engine = Engine()
    engine.flags.say({Policy.DEDUP: ON})
    others = [fresh("o", number) for number in range(3)]
    requests = convoy()
    engine.vllm.add(requests[0], others[0], requests[1], others[1], requests[2], others[2])
    engine.run()
    assert set(engine.held_at) == {"r1", "r2"}


def test_with_the_flag_off_again_the_next_pass_is_a_stock_one() -> None:
    engine = Engine()
    engine.flags.say({Policy.DEDUP: ON})
    engine.vllm.add(*convoy())
    engine.step(3)
    assert engine.hook.held
    engine.flags.say({})
    engine.step()
    assert not engine.hook.held
    assert engine.hook.planner is None
    assert {one.request_id for one in engine.vllm.running} == {"r0", "r1", "r2", "r3"}
    assert not engine.vllm.deferred_waiting


def test_at_the_end_of_the_lease_nobody_is_held_any_more() -> None:
    engine = Engine(cap=16)
    engine.flags.say({Policy.DEDUP: ON}, seconds=5.5 * STEP_SECONDS)
    began = engine.flags.now
    engine.vllm.add(FakeRequest("other", (1,), output_tokens=500), *convoy())
    engine.run()
    assert max(max(times) for times in engine.held_at.values()) < began + 5.5 * STEP_SECONDS


def test_switched_on_in_mid_prefill_it_finds_who_leads() -> None:
    engine = Engine()
    requests = convoy()
    engine.vllm.add(FakeRequest("other", (1,), output_tokens=500), requests[0])
    engine.step(4)
    engine.flags.say({Policy.DEDUP: ON})
    engine.vllm.add(*requests[1:])
    engine.step()
    assert engine.hook.held == {"r1", "r2", "r3"}


def test_an_aborted_leader_s_first_follower_leads_the_others() -> None:
    engine = Engine()
    engine.flags.say({Policy.DEDUP: ON})
    engine.vllm.add(FakeRequest("other", (1,), output_tokens=500), *convoy())
    engine.step(4)
    assert engine.hook.held == {"r1", "r2", "r3"}
    engine.vllm.abort("r0")
    engine.step()
    assert engine.hook.held == {"r2", "r3"}
    assert engine.vllm.requests["r1"].status is Status.RUNNING
    engine.vllm.abort("other")
    engine.run()
    assert engine.vllm.ends["r3"] is Status.FINISHED_STOPPED


def test_a_preempted_leader_leads_nobody_and_is_held_for_nobody() -> None:
    engine = Engine()
    engine.flags.say({Policy.DEDUP: ON})
    engine.vllm.add(FakeRequest("other", (1,), output_tokens=500), *convoy())
    engine.step(4)
    engine.vllm.preempt("r0")
    engine.step()
    assert engine.hook.held == {"r2", "r3"}
    assert engine.vllm.requests["r0"].status is Status.RUNNING


def test_a_cancelled_follower_is_gone_at_once() -> None:
    engine = Engine()
    engine.flags.say({Policy.DEDUP: ON})
    engine.vllm.add(*convoy())
    engine.step(2)
    engine.vllm.abort("r2")
    engine.step()
    assert engine.hook.held == {"r1", "r3"}
    engine.run()
    assert engine.vllm.ends["r2"] is Status.FINISHED_ABORTED


@pytest.mark.parametrize("steps", [17, 18, 19, 20])
def test_a_leader_that_makes_no_progress_holds_nobody_beyond_the_bound(steps: int) -> None:
    engine = Engine(hold_seconds=(steps - 0.5) * STEP_SECONDS)
    engine.flags.say({Policy.DEDUP: ON})
    # Half of its prompt is there, it runs, and it is passed over for ever.
    leader, follower = convoy(1)
    engine.vllm.add(leader)
    engine.step()
    engine.vllm._compute = lambda *_: 0  # type: ignore[method-assign]
    engine.vllm.add(follower)
    engine.step(40)
    times = engine.held_at["r1"]
    assert len(times) == steps
    assert follower.status is Status.RUNNING
    assert engine.hook.planner is not None
    assert engine.hook.planner.holds.counts() == {"holds": 1, "overdue": 1}


def test_a_hold_is_given_as_long_as_computing_would_take_and_some_patience() -> None:
    speed = LeaderSpeed()
    for _ in range(50):
        speed.saw(128, 0.1)
    assert speed.tokens_per_second == pytest.approx(1_280)
    holds = HeldRequests(HOLD_SECONDS, speed)
    deadline = PATIENCE * 2_400 / 1_280
    assert holds.may_hold("r", 2_400, 0.0)
    assert holds.may_hold("r", 96, deadline - 0.01), "set once, by what was awaited at first"
    assert not holds.may_hold("r", 96, deadline)
    assert not holds.may_hold("r", 2_400, deadline)
    assert holds.overdue == 1
    assert holds.may_hold("short", 32, LEAST_SECONDS - 0.01)
    assert not holds.may_hold("long", 1 << 20, HOLD_SECONDS)


def test_a_split_holds_the_groups_that_it_draws_and_no_others() -> None:
    split = Split("seed", 0.5)
    engine = Engine(budget=4_096)
    engine.flags.say({Policy.DEDUP: Switch(split=split)})
    groups: dict[str, int | None] = {}
    for number in range(12):
        prefix = tuple(range(10_000 * (number + 1), 10_000 * (number + 1) + 40))
        requests = convoy(1, prefix, f"g{number}-")
        engine.vllm.add(*requests)
        groups |= {one.request_id: prefix_group(one) for one in requests}
    engine.run()
    drawn = {name for name, group in groups.items() if group is not None and split.treats(group)}
    followers = {name for name in groups if name.endswith("-1")}
    assert engine.held_at.keys() == drawn & followers
    assert 0 < len(engine.held_at) < 12


def test_nobody_is_held_on_a_prediction_that_stays_bad() -> None:
    bad = told_cell(Target.INFLIGHT_READY, inflight_cell("batch", 2_400))
    engine = Engine()
    engine.flags.say({Policy.DEDUP: Switch(is_on=True, outside=frozenset({bad}))})
    engine.vllm.add(*convoy())
    engine.step()
    assert not engine.hook.held


def test_who_was_preempted_or_reads_no_cache_or_fetches_its_own_is_never_held() -> None:
    engine = Engine()
    engine.flags.say({Policy.DEDUP: ON})
    leader, resumed, alone, remote = convoy(3)
    remote.kv_transfer_params = {"do_remote_prefill": True}
    resumed.num_preemptions = 1
    resumed.status = Status.PREEMPTED
    alone.skip_reading_prefix_cache = True
    engine.vllm.add(leader, resumed, alone, remote)
    engine.step()
    assert not engine.hook.held


def test_what_cannot_be_done_here_is_said_before_anything_is_tried() -> None:
    def refused(**changed: object) -> dict[Policy, str]:
        vllm = FakeVllm(host=True)
        for name, value in changed.items():
            setattr(vllm, name, value)
        return VllmHook(vllm, "0.32.0", lambda: NOTHING, HOLD_SECONDS).refusals

    assert refused() == {}
    both = {Policy.DEDUP, Policy.BALANCE}
    assert refused(hash_block_size=16).keys() == both
    groups = 2 * FakeVllm().kv_cache_config.kv_cache_groups
    hybrid = refused(kv_cache_config=SimpleNamespace(kv_cache_groups=groups))
    assert all("several groups" in hybrid[policy] for policy in both)
    uncached = SimpleNamespace(
        block_pool=FakeVllm().kv_cache_manager.block_pool, enable_caching=False
    )
    assert "no_benefit" in refused(kv_cache_manager=uncached)[Policy.DEDUP]


def test_without_capped_chunks_dedup_stays_out_and_says_why() -> None:
    engine = Engine(cap=0)
    engine.flags.say({Policy.DEDUP: ON})
    assert "no_benefit" in engine.hook.refusals[Policy.DEDUP]
    engine.vllm.add(*convoy())
    engine.run()
    assert engine.held_at == {}
    assert engine.computed == ideal(convoy()), "as it is in a stock engine"


def test_under_priorities_nobody_waits_for_one_whose_turn_comes_later() -> None:
    engine = Engine(policy="priority", seats=1)
    engine.flags.say({Policy.DEDUP: ON, Policy.BALANCE: ON})
    assert "priority" in engine.hook.refusals[Policy.BALANCE]
    leader, follower = convoy(1)
    leader.priority = 5
    engine.vllm.add(FakeRequest("other", (1,), output_tokens=8), leader)
    engine.step()
    engine.vllm.add(follower)
    engine.step(3)
    assert not engine.hook.held
    engine.run()
    assert engine.vllm.firsts == ["other", "r1", "r0"]


def test_under_priorities_followers_are_held_and_come_back_to_the_heap() -> None:
    engine = Engine(policy="priority")
    engine.flags.say({Policy.DEDUP: ON})
    engine.vllm.add(*convoy())
    engine.run()
    assert engine.computed == ideal(convoy())


def test_blocks_of_a_host_tier_are_loaded_and_nobody_waits_for_those() -> None:
    engine = Engine(host=True)
    engine.flags.say({Policy.DEDUP: ON})
    requests = convoy()
    into_host(engine, requests[0])
    engine.vllm.add(*requests)
    engine.run()
    assert engine.held_at == {}
    assert len(engine.vllm.loads) == 4


def test_a_block_on_its_way_to_the_host_is_not_there_yet() -> None:
    engine = Engine(host=True)
    engine.flags.say({Policy.DEDUP: ON})
    requests = convoy()
    into_host(engine, requests[0], is_ready=False)
    engine.vllm._starts_load = lambda *_: False  # type: ignore[method-assign]
    engine.vllm.add(*requests)
    engine.step()
    assert engine.hook.held == {"r1", "r2", "r3"}


def test_behind_a_connector_that_cannot_be_read_only_who_computes_leads() -> None:
    engine = Engine()
    engine.vllm.connector = SimpleNamespace()
    engine.hook = VllmHook(
        engine.vllm, "0.32.0", lambda: engine.flags.held, HOLD_SECONDS, lambda: engine.flags.now
    )
    engine.vllm.hook = engine.hook
    engine.flags.say({Policy.DEDUP: ON})
    assert "host tier" in engine.hook.refusals[Policy.BALANCE]
    requests = convoy()
    engine.vllm.add(FakeRequest("other", (1,), output_tokens=500), *requests[:2])
    engine.step()
    assert not engine.hook.held, "what is queued may be about to be loaded"
    engine.vllm.add(*requests[2:])
    engine.step()
    assert engine.hook.held == {"r2", "r3"}


def first_pass(switch: Switch | None, free_blocks: int = 10_000) -> tuple[list[str], list[str]]:
    """Which loads start and who is let in, of a queue in which hits stand behind others."""
    engine = Engine(host=True, seats=1, load_passes=50)
    engine.vllm.free.num_free_blocks = free_blocks
    if switch is not None:
        engine.flags.say({Policy.BALANCE: switch})
    hits = [fresh("hit", number) for number in range(2)]
    into_host(engine, *hits)
    others = [fresh("new", number, output_tokens=30) for number in (5, 6)]
    engine.vllm.add(others[0], hits[0], others[1], hits[1])
    engine.step()
    return engine.vllm.loads, engine.vllm.firsts


def test_loads_start_first_under_balance_and_the_head_keeps_its_blocks() -> None:
    assert first_pass(None) == ([], ["new5"])
    assert first_pass(ON) == (["hit0", "hit1"], ["new5"])
    assert first_pass(ON, free_blocks=100) == (["hit0"], ["new5"])


def test_no_load_is_brought_forward_on_a_prediction_that_stays_bad() -> None:
    large = told_cell(Target.LOAD, load_cell(Tier.HOST, 39 * (2 << 16)))
    assert first_pass(Switch(is_on=True, outside=frozenset({large}))) == ([], ["new5"])


def test_on_a_busy_link_what_is_sooner_computed_again_is_not_loaded() -> None:
    """Loads of 1,248 tokens take 100 passes; so many are computed in three."""
    engine = Engine(host=True, load_passes=100, cap=512)
    engine.flags.say({Policy.BALANCE: ON})
    engine.vllm.add(fresh("warm", 100, 400))
    early = [fresh("early", number) for number in range(2)]
    late, limited = fresh("late", 5), fresh("limited", 6)
    limited.kv_transfer_params = {"max_load_tokens": 64}
    into_host(engine, *early, late, limited)
    engine.vllm.add(*early)
    engine.step(150)
    assert engine.vllm.loads == ["early0", "early1"]
    again = fresh("again", 7)
    into_host(engine, again)
    engine.vllm.add(again)
    engine.step(3)
    engine.vllm.add(late, limited)
    assert late.kv_transfer_params == {"max_load_tokens": 0}
    assert limited.kv_transfer_params == {"max_load_tokens": 64}, "a client's own"
    assert again.kv_transfer_params is None, "the link was idle when it came"
    engine.run()
    assert engine.vllm.computed["late5"] == 40 * BLOCK + 1
    assert engine.hook.failures == 0


def test_a_load_is_kept_where_computing_again_gains_too_little() -> None:
    limit = LoadLimit()
    assert limit.limit(1_000) is None, "nothing was seen"
    for _ in range(100):
        limit.saw(0.02, {"a": 200}, 100)
        limit.saw(0.02, {}, 100)
    link, compute = limit.loads.tokens_per_second, limit.prefills.tokens_per_second
    assert link == pytest.approx(10_000, rel=0.01)
    assert compute == pytest.approx(5_000, rel=0.01)
    # 1,000 tokens: 0.2 s to compute; to load 0.1 s, and what is ahead.
    limit.saw(0.02, {"ahead": 2_900}, 100)
    assert limit.limit(1_000) is None
    limit.saw(0.02, {"ahead": 2_900, "another": 300}, 100)
    assert limit.limit(1_000) == 0
    assert limit.limit(0) is None
    assert limit.computed_again == 1


def test_what_is_evicted_while_somebody_waits_is_computed_again_by_one() -> None:
    engine = Engine(seats=2)
    engine.flags.say({Policy.DEDUP: ON})
    first, second, third = convoy(2)
    engine.vllm.add(first)
    engine.run()
    blockers = [FakeRequest(f"b{number}", (number,), output_tokens=12) for number in range(2)]
    engine.vllm.add(*blockers, second, third)
    engine.step(3)
    assert not engine.hook.held, "all is there"
    engine.vllm.evict(first, 60)
    before = engine.computed
    engine.run()
    own = 2 * BLOCK + 2  # each one's last block and token
    assert engine.computed - before == 59 * BLOCK + own
    assert set(engine.held_at) == {"r2"}


@pytest.mark.parametrize("offset", range(1 + STANDS_PASSES))
def test_a_plan_stands_for_a_few_passes_and_ends_with_what_it_rests_on(offset: int) -> None:
    engine = Engine()
    engine.flags.say({Policy.DEDUP: ON})
    engine.vllm.add(fresh("other", 7, 2, output_tokens=900), *convoy())
    looked: list[float] = []
    engine.step(2)
    planner = engine.hook.planner
    assert planner is not None
    follow_queue = planner._follow_queue

    def watched(queue: Sequence[Any], now_seconds: float) -> None:
        looked.append(now_seconds)
        follow_queue(queue, now_seconds)

    planner._follow_queue = watched  # type: ignore[method-assign]
    engine.step(8)
    assert len(looked) == 8 // (1 + STANDS_PASSES)
    assert engine.hook.held == {"r1", "r2", "r3"}
    planner._planned = planner._planned._replace(passes_left=offset)  # type: ignore[union-attr]
    while engine.hook.held:
        engine.step()
    # In the very pass in which its leader was near, not at the end of a plan's time.
    computed = engine.vllm.requests["r0"].num_computed_tokens - 128
    assert computed - 128 < len(PREFIX) * BLOCK - PAPER.delay_tokens <= computed


def test_a_plan_ends_when_the_flags_say_something_else() -> None:
    engine = Engine()
    engine.flags.say({Policy.DEDUP: ON})
    engine.vllm.add(fresh("other", 7, 2, output_tokens=900), *convoy())
    engine.step(4)
    assert engine.hook.held
    every = {told_cell(Target.INFLIGHT_READY, inflight_cell("batch", 1 << n)) for n in range(20)}
    engine.flags.say({Policy.DEDUP: Switch(is_on=True, outside=frozenset(every))})
    engine.step()
    assert not engine.hook.held


def test_a_crowd_is_taken_in_over_a_few_passes() -> None:
    engine = Engine(seats=1)
    engine.flags.say({Policy.DEDUP: ON})
    crowd = convoy(89)
    assert 3 < sum(len(one.blocks) for one in crowd) / NEW_BLOCKS_PER_PASS < 4
    engine.vllm.add(fresh("other", 7, 2, output_tokens=900), *crowd)
    engine.step(4)
    assert len(engine.hook.held) == 89


def test_the_engine_s_own_account_tells_who_is_passed_over_now() -> None:
    engine = Engine(seats=1)
    engine.flags.say({Policy.DEDUP: ON})
    engine.vllm.add(fresh("other", 7, 2, output_tokens=900), *convoy())
    engine.step()
    assert {one.request_id for one in engine.vllm.deferred_waiting} == {"r1", "r2", "r3"}
    engine.flags.say({})
    engine.step()
    assert engine.vllm.deferred_waiting == set()
    assert [one.request_id for one in engine.vllm.waiting] == ["r0", "r1", "r2", "r3"]


def test_who_is_preempted_in_a_pass_goes_before_all_that_waited() -> None:
    engine = Engine()
    engine.flags.say({Policy.DEDUP: ON})
    engine.vllm.add(fresh("other", 7, 2, output_tokens=900), *convoy())
    engine.step(3)
    stock = engine.vllm.schedule

    def schedule() -> dict[str, int]:
        engine.vllm.preempt("other7")
        return {}

    engine.vllm.schedule = schedule  # type: ignore[method-assign]
    engine.step()
    engine.vllm.schedule = stock  # type: ignore[method-assign]
    assert [one.request_id for one in engine.vllm.waiting] == ["other7", "r1", "r2", "r3"]


def test_a_leader_that_runs_again_leads_again() -> None:
    engine = Engine()
    engine.flags.say({Policy.DEDUP: ON})
    leader, follower = convoy(1)
    engine.vllm.add(fresh("other", 7, 2, output_tokens=900), leader)
    engine.step(3)
    engine.vllm.preempt("r0")
    engine.vllm.evict(leader, 76)
    engine.step(2)
    engine.vllm.add(follower)
    engine.step()
    assert engine.hook.held == {"r1"}


def test_an_unknown_version_observes_only() -> None:
    engine = Engine()
    hook = VllmHook(engine.vllm, "0.33.1", lambda: engine.flags.held, HOLD_SECONDS)
    assert hook.refusals.keys() == {Policy.DEDUP, Policy.BALANCE}
    older = VllmHook(engine.vllm, "0.28.0", lambda: engine.flags.held, HOLD_SECONDS)
    assert older.refusals.keys() == {Policy.BALANCE}


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000))
def test_whatever_happens_nobody_is_lost_or_held_for_longer_than_the_bound(seed: int) -> None:
    chance = random.Random(seed)
    bound = 60 * STEP_SECONDS
    engine = Engine(
        hold_seconds=bound,
        cap=chance.choice((0, 32, 128)),
        seats=chance.choice((2, 8)),
        host=chance.random() < 0.5,
    )
    prefixes = [tuple(range(one, one + chance.randrange(1, 30))) for one in (1_000, 2_000, 3_000)]
    arrived = 0
    for _ in range(150):
        if chance.random() < 0.3:
            blocks = (*chance.choice(prefixes), chance.randrange(90_000, 90_005))
            engine.vllm.add(FakeRequest(f"r{arrived}", blocks, chance.randrange(1, BLOCK), 3))
            arrived += 1
        if chance.random() < 0.1:
            engine.flags.say({one: ON for one in Policy if chance.random() < 0.6}, 0.1)
        live = list(engine.vllm.requests.values())
        if live and chance.random() < 0.05:
            engine.vllm.abort(chance.choice(live).request_id)
        if engine.vllm.running and chance.random() < 0.05:
            engine.vllm.preempt(chance.choice(engine.vllm.running).request_id)
        if live and chance.random() < 0.05:
            engine.vllm.evict(chance.choice(live), chance.randrange(1, 20))
        before = [one.request_id for one in engine.vllm.waiting]
        engine.step()
        after = [one.request_id for one in engine.vllm.waiting]
        assert after == [name for name in before if name in set(after)], "their order is their own"
    engine.run()
    assert len(engine.vllm.ends) == arrived
    assert engine.hook.failures == 0
    for times in engine.held_at.values():
        assert max(times) - min(times) <= bound
