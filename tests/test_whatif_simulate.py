"""What a simulated engine does with a few requests whose course can be told beforehand."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
from dynamo_replay import replay, unpacked
from hypothesis import given
from hypothesis import strategies as st
from small_engines import BLOCK_TOKENS, LINK, TOKEN_BYTES, ask, engine, workload, workloads

from kvready.advisor.overlap import usable_batch_seconds
from kvready.advisor.roofline import Chunk, Roofline
from kvready.advisor.strata import Settings
from kvready.advisor.whatif.naive_reorder import IDLE_DELAY_SECONDS, LONGEST_DEFERRAL_SECONDS
from kvready.advisor.whatif.outcome import RequestOutcome
from kvready.advisor.whatif.scenario import Backup, LinkSpec, Policies, QueueOrder, Scenario, Tiers
from kvready.advisor.whatif.simulate import simulate
from kvready.advisor.whatif.traces import read_workload
from kvready.advisor.whatif.workload import SimRequest, Workload
from kvready.collectors.errors import SettingsError, WorkloadError
from kvready.collectors.names import OverlapMode

SLICE = Path(__file__).parents[1] / "examples/traces/mooncake-conversation-first-6-minutes.jsonl.gz"
CHAIN = tuple(range(12))
OTHER = tuple(range(100, 112))


def cost(scenario: Scenario) -> Roofline:
    return Roofline(scenario.shape, scenario.device, 1, scenario.mfu, scenario.fixed_seconds)


def ttft(row: RequestOutcome) -> float:
    return row.first_token_seconds - row.arrived_seconds


@pytest.mark.parametrize("overlap", OverlapMode)
def test_a_lone_host_hit_takes_its_load_and_its_compute(overlap: OverlapMode) -> None:
    scenario = engine(overlap=overlap)
    row = simulate(workload(ask("a", 1.0, CHAIN), warm_blocks=CHAIN), scenario).requests[0]
    tokens = len(CHAIN) * BLOCK_TOKENS
    load = 1e-3 + len(CHAIN) * 64 * 2e-6 + tokens * TOKEN_BYTES / 1e9
    compute = cost(scenario).batch_seconds([Chunk(5, tokens)])
    assert ttft(row) == pytest.approx(usable_batch_seconds(overlap, 32, load, compute))
    assert row.exposed_seconds == pytest.approx(ttft(row) - compute)


def test_a_long_answer_takes_its_steps() -> None:
    scenario = engine()
    row = simulate(workload(ask("a", 0.0, (), 20, 1_000)), scenario).requests[0]
    steps = sum(cost(scenario).batch_seconds([Chunk(1, 20 + step)]) for step in range(999))
    assert row.finished_seconds - row.first_token_seconds == pytest.approx(steps)


def test_what_one_rank_moves_is_its_share() -> None:
    asked = workload(ask("a", 0.0, CHAIN), warm_blocks=CHAIN)
    scenario = engine()
    four = msgspec.structs.replace(scenario, tensor_parallel=4)
    whole, share = simulate(asked, scenario).load_link, simulate(asked, four).load_link
    assert share.payload_bytes * 4 == whole.payload_bytes
    # As many fragments as before, each a quarter as long.
    constant = 1e-3 + len(CHAIN) * 64 * 2e-6
    assert share.busy_seconds - constant == pytest.approx((whole.busy_seconds - constant) / 4)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_an_engine_that_plans_ahead_computes_twice_what_runs(asynchronous: bool) -> None:
    # The second comes while the first computes: only a plan made after that sees its blocks.
    asked = workload(
        ask("z", 0.0, OTHER), ask("a", 1e-4, CHAIN), ask("b", 5e-3, CHAIN), ask("c", 9.0, CHAIN)
    )
    alone = simulate(asked, engine(batch_tokens=197, asynchronous=asynchronous))
    assert alone.duplicate_tokens == (len(CHAIN) * BLOCK_TOKENS if asynchronous else 0)
    assert alone.requests[3].hbm_tokens == len(CHAIN) * BLOCK_TOKENS
    dedup = Policies(strata=Settings(balance=False))
    held = simulate(asked, engine(batch_tokens=197, asynchronous=asynchronous, policies=dedup))
    assert held.duplicate_tokens == 0
    assert held.requests[2].hbm_tokens == len(CHAIN) * BLOCK_TOKENS
    if asynchronous:
        assert held.requests[2].held_seconds > 0.0


def test_balance_loads_behind_what_computes() -> None:
    # Two host hits head the queue, work that loads nothing stands behind them.
    hits = [ask(f"h{n}", 0.01, tuple(range(1_000 * n, 1_000 * n + 12)), 1) for n in range(4)]
    work = [ask(f"w{n}", 0.01, tuple(range(5_000 + 50 * n, 5_008 + 50 * n))) for n in range(4)]
    busy = ask("busy", 0.0, tuple(range(9_000, 9_012)), output=1)
    warm = tuple(block for hit in hits for block in hit.blocks)
    asked = workload(busy, *hits, *work, warm_blocks=warm)
    roomy = {"hbm_tokens": 1 << 15, "batch_tokens": 1_024}
    fcfs = simulate(asked, engine(**roomy))
    balanced = simulate(
        asked, engine(**roomy, policies=Policies(strata=Settings(dedup=False, load_ratio=2.0)))
    )
    assert balanced.prefill_batches >= 2
    assert balanced.requests[5].first_token_seconds <= fcfs.requests[5].first_token_seconds


def test_decodes_fill_the_wait_for_a_load() -> None:
    asked = workload(
        ask("talks", 0.0, (), 20, 300), ask("hit", 0.3, CHAIN, 1, 1), warm_blocks=CHAIN
    )
    nothing = Settings(dedup=False, balance=False)
    fill = msgspec.structs.replace(nothing, decode_fill=True)
    plain = simulate(asked, engine(policies=Policies(strata=nothing)))
    filled = simulate(asked, engine(policies=Policies(strata=fill)))
    assert filled.stall_seconds < plain.stall_seconds
    assert filled.requests[0].finished_seconds < plain.requests[0].finished_seconds
    step = cost(engine()).batch_seconds([Chunk(1, 320)])
    delay = filled.requests[1].first_token_seconds - plain.requests[1].first_token_seconds
    assert delay <= step


def test_the_naive_reorder_keeps_a_host_hit_waiting() -> None:
    naive = engine(policies=Policies(QueueOrder.NAIVE_REORDER))
    alone = workload(ask("hit", 0.0, CHAIN), warm_blocks=CHAIN)
    late = simulate(alone, naive).requests[0]
    soon = simulate(alone, engine()).requests[0]
    assert ttft(late) - ttft(soon) == pytest.approx(IDLE_DELAY_SECONDS)
    assert late.held_seconds == pytest.approx(IDLE_DELAY_SECONDS)
    two = (ask("hit", 0.0, CHAIN), ask("later", 0.02, OTHER))
    both = simulate(workload(*two, warm_blocks=CHAIN + OTHER), naive).requests
    assert ttft(both[0]) == pytest.approx(ttft(late))
    talking = ask("talks", 0.0, (), 20, 4_000)
    beside = workload(talking, ask("hit", 0.5, CHAIN), warm_blocks=CHAIN)
    roomy = msgspec.structs.replace(naive, tiers=Tiers(1 << 31, 1 << 31))
    assert ttft(simulate(beside, roomy).requests[1]) > LONGEST_DEFERRAL_SECONDS


def test_nobody_starves_behind_work_that_suits_the_batches_better() -> None:
    # A host hit in the middle of a stream of others that load nothing, more than the engine can do.
    stream = [ask(f"w{n}", 0.004 * n, tuple(range(50 * n, 50 * n + 10))) for n in range(1_000)]
    hit = ask("hit", 0.5, tuple(range(10**6, 10**6 + 12)), 1)
    asked = workload(*stream[:125], hit, *stream[125:], warm_blocks=hit.blocks)
    settings = Settings(load_ratio=1e-6, hold_seconds=2.0)
    scenario = engine(policies=Policies(strata=settings))
    rows = simulate(asked, scenario).requests
    alone = simulate(asked, engine()).requests
    assert ttft(alone[125]) > settings.hold_seconds  # the engine alone is behind, too
    batch = cost(scenario).batch_seconds([Chunk(256, 256)]) + ttft(rows[0])
    assert ttft(rows[125]) < ttft(alone[125]) + settings.hold_seconds + 10 * batch


def test_a_run_cut_short_counts_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvready.advisor.whatif.simulate.MAX_SLOTS", 5)
    asked = workload(*(ask(f"r{n}", 1.0 * n, CHAIN) for n in range(9)))
    outcome = simulate(asked, engine())
    assert outcome.unfinished == sum(row.finished_seconds == 0.0 for row in outcome.requests) > 0


def test_the_longest_prefix_goes_first_where_the_engine_says_so() -> None:
    busy = ask("busy", 0.0, tuple(range(9_000, 9_012)), output=1)
    asked = workload(busy, ask("cold", 0.01, OTHER), ask("warm", 0.01, CHAIN), warm_blocks=CHAIN)
    fcfs = simulate(asked, engine(batch_tokens=197)).requests
    by_prefix = Policies(QueueOrder.LONGEST_PREFIX)
    longest = simulate(asked, engine(batch_tokens=197, policies=by_prefix)).requests
    assert fcfs[1].first_token_seconds < fcfs[2].first_token_seconds
    assert longest[2].first_token_seconds < longest[1].first_token_seconds


def test_a_selective_backup_waits_for_the_second_insertion() -> None:
    twice = workload(ask("a", 0.0, CHAIN), ask("b", 2.0, CHAIN))
    for backup, copied in ((Backup.EVERY, 1), (Backup.SELECTIVE, 1), (Backup.EVICTED, 0)):
        link = simulate(twice, engine(backup=backup)).backup_link
        assert link.payload_bytes == copied * len(CHAIN) * BLOCK_TOKENS * TOKEN_BYTES
    # A request inserts after its prefill and, where it decodes at all, once more at its end.
    for output, copies in ((1, 0), (2, 1)):
        once = workload(ask("a", 0.0, CHAIN, output=output))
        assert simulate(once, engine(backup=Backup.SELECTIVE)).backup_link.copies == copies


def test_a_chain_never_used_twice_within_hbm_still_reaches_the_host() -> None:
    # HBM holds one of the two chains, so each use of the other evicts it.
    turns = workload(*(ask(f"r{n}", 2.0 * n, (CHAIN, OTHER)[n % 2]) for n in range(6)))
    outcome = simulate(turns, engine(hbm_tokens=256, backup=Backup.SELECTIVE))
    assert all(row.host_tokens > 0 for row in outcome.requests[2:])


def test_what_is_written_back_can_be_loaded() -> None:
    # HBM holds one of the two chains, so each use of the other evicts it.
    turns = workload(*(ask(f"r{n}", 2.0 * n, (CHAIN, OTHER)[n % 2]) for n in range(4)))
    outcome = simulate(turns, engine(hbm_tokens=256, backup=Backup.EVICTED))
    assert [row.computed_tokens for row in outcome.requests[:2]] == [197, 197]
    assert all(row.host_tokens > 0 for row in outcome.requests[2:])


def test_disk_hits_come_while_the_request_queues() -> None:
    third = tuple(range(200, 212))
    busy = ask("busy", 60.0, tuple(range(9_000, 9_012)), output=1)
    early = (ask(f"r{n}", 10.0 * n, one) for n, one in enumerate((CHAIN, OTHER, third)))
    asked = workload(*early, busy, ask("again", 60.001, CHAIN))
    # Neither HBM nor host memory keeps two chains; the disk keeps all.
    small = engine(hbm_tokens=256, host_tokens=24 * BLOCK_TOKENS - 1, disk_tokens=1 << 16)
    fetch = LinkSpec("disk", 1e11)
    row = simulate(asked, msgspec.structs.replace(small, fetch=fetch)).requests[4]
    assert row.disk_tokens > 0
    without = simulate(asked, small).requests[4]
    assert without.disk_tokens == 0
    assert without.computed_tokens == row.computed_tokens + row.disk_tokens


def test_clients_beyond_the_cap_wait_outside() -> None:
    asked = workload(*(ask(f"r{n}", 0.0, tuple(range(50 * n, 50 * n + 8))) for n in range(4)))
    rows = simulate(asked, engine(in_flight_requests=1)).requests
    for before, after in pairwise(rows):
        assert after.admitted_seconds == before.finished_seconds
        assert after.arrived_seconds == 0.0


def test_a_round_comes_after_the_one_before_and_finds_its_answer() -> None:
    first = SimRequest("one", 0.0, 40, 30, (1, 2), (3, 4))
    second = SimRequest("two", 0.0, 90, 4, (1, 2, 3, 4), after="one", think_seconds=5.0)
    rows = simulate(workload(first, second), engine()).requests
    assert rows[1].arrived_seconds == rows[0].finished_seconds + 5.0
    assert rows[1].hbm_tokens == 4 * BLOCK_TOKENS
    assert rows[1].reuse_tokens is not None


def test_what_can_never_fit_is_told_and_holds_up_nobody() -> None:
    huge = ask("huge", 0.0, tuple(range(50)))
    after = msgspec.structs.replace(ask("after", 0.0, CHAIN), after="huge")
    outcome = simulate(workload(huge, after, ask("fits", 0.0, OTHER)), engine(hbm_tokens=512))
    assert outcome.unfinished == 2
    assert [row.finished_seconds > 0.0 for row in outcome.requests] == [False, False, True]


def test_a_round_after_nobody_is_refused() -> None:
    lost = msgspec.structs.replace(ask("a", 0.0, CHAIN), after="b")
    with pytest.raises(WorkloadError, match="comes after b"):
        simulate(workload(lost), engine())


def test_the_naive_reorder_is_no_order_for_strata() -> None:
    both = Policies(QueueOrder.NAIVE_REORDER, Settings())
    with pytest.raises(SettingsError, match="drop it"):
        simulate(workload(ask("a", 0.0, CHAIN)), engine(policies=both))


def test_nothing_asked_is_nothing_done() -> None:
    outcome = simulate(workload(), engine())
    assert (outcome.elapsed_seconds, outcome.unfinished, outcome.requests) == (0.0, 0, [])


def test_a_seed_orders_what_arrives_at_one_instant() -> None:
    asked = workload(*(ask(f"r{n}", 0.0, tuple(range(50 * n, 50 * n + 12))) for n in range(8)))
    orders = set()
    for seed in range(4):
        rows = simulate(asked, engine(batch_tokens=200), seed).requests
        orders.add(tuple(sorted(range(8), key=lambda n: rows[n].first_token_seconds)))
    assert tuple(range(8)) in orders
    assert len(orders) > 1


def test_progress_is_told_to_the_end() -> None:
    told: list[float] = []
    asked = workload(*(ask(f"r{n}", 0.1 * n, CHAIN) for n in range(7)))
    simulate(asked, engine(), progress=told.append)
    assert told == sorted(told)
    assert told[-1] == 1.0


@given(workloads(), st.sampled_from([Settings(), Settings(decode_fill=True)]))
def test_where_hbm_holds_everything_and_nothing_is_shared_in_time_policies_change_nothing(
    asked: Workload, settings: Settings
) -> None:
    apart = tuple(
        msgspec.structs.replace(request, arrived_seconds=20.0 * place)
        for place, request in enumerate(asked.requests)
    )
    asked = workload(*apart)
    alone = simulate(asked, engine(1 << 16))
    planned = simulate(asked, engine(1 << 16, policies=Policies(strata=settings)))
    assert planned.requests == alone.requests


def test_hits_are_those_of_dynamos_replay(tmp_path: Path) -> None:
    asked = read_workload(SLICE)
    scenario = Scenario(
        name="one H200",
        shape=engine().shape,
        device=engine().device,
        load=LinkSpec("gather", 40.3e9),
        backup=LinkSpec("dma_batch", 38e9),
        tiers=Tiers(hbm_bytes=107 * 10**9, host_bytes=10**12, backup=Backup.EVERY),
    )
    rows = simulate(asked, scenario).requests
    prompt = sum(row.prompt_tokens for row in rows)
    found = 1.0 - sum(row.computed_tokens for row in rows) / prompt
    theirs = replay(unpacked(SLICE, tmp_path), scenario, asked.block_tokens)
    assert found == pytest.approx(theirs["first_admission_prefix_cache_reused_ratio"], abs=0.005)
    assert math.isclose(theirs["total_input_tokens"], prompt)


def test_a_slow_link_slows_the_batches_beside_it() -> None:
    asked = workload(ask("a", 0.0, CHAIN, output=400))
    slowing = msgspec.structs.replace(LINK, decode_slowdown=0.5)
    quiet = simulate(asked, engine())
    beside = simulate(asked, msgspec.structs.replace(engine(), backup=slowing))
    copied = beside.backup_link.busy_seconds
    # While the backup lasts, two thirds of the decoding is done that would be done alone.
    assert beside.decode_seconds - quiet.decode_seconds == pytest.approx(copied / 3)
