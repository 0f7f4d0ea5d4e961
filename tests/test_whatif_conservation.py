"""What must add up in every simulated run, whatever its policies: tokens, bytes, time."""

from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_engines import BLOCK_TOKENS, LINK, TOKEN_BYTES, ask, engine, workload, workloads

from kvready.advisor.strata import ENGINE_ALONE, LoadBudget, Settings
from kvready.advisor.whatif.outcome import LinkTime, SimOutcome
from kvready.advisor.whatif.scenario import Backup, LinkSpec, Policies, QueueOrder, Scenario
from kvready.advisor.whatif.simulate import simulate
from kvready.advisor.whatif.workload import Workload
from kvready.collectors.names import OverlapMode

STRATA = [
    None,
    Settings(),
    Settings(decode_fill=True),
    Settings(balance=False),
    Settings(dedup=False),
    Settings(budget=LoadBudget.TIME),
    Settings(budget=LoadBudget.ADAPTIVE),
    Settings(hold_seconds=0.05, delay_tokens=10, load_ratio=2.0),
]


@st.composite
def scenarios(draw: st.DrawFn) -> Scenario:
    """Any engine that fits each single request of a small workload."""
    strata = draw(st.sampled_from(STRATA))
    orders = [QueueOrder.FCFS, QueueOrder.LONGEST_PREFIX]
    if strata is None:
        orders.append(QueueOrder.NAIVE_REORDER)
    scenario = engine(
        draw(st.sampled_from([320, 512, 4_096])),
        draw(st.sampled_from([0, 128, 640, 1 << 16])),
        draw(st.sampled_from([0, 512, 1 << 16])),
        Policies(draw(st.sampled_from(orders)), strata, draw(st.booleans())),
        draw(st.sampled_from(Backup)),
        overlap=draw(st.sampled_from(OverlapMode)),
        chunk_tokens=draw(st.sampled_from([0, 48])),
        running_requests=draw(st.sampled_from([1, 4, 256])),
        in_flight_requests=draw(st.sampled_from([0, 1, 5])),
        mixed_batches=draw(st.booleans()),
        asynchronous=draw(st.booleans()),
    )
    slow = draw(st.sampled_from([0.0, 0.3]))
    link = msgspec.structs.replace(LINK, prefill_slowdown=slow, decode_slowdown=slow)
    fetch = LINK if scenario.tiers.disk_bytes else None
    return msgspec.structs.replace(scenario, load=link, backup=link, fetch=fetch)


def fingerprint(outcome: SimOutcome) -> bytes:
    return msgspec.msgpack.encode(outcome)


@given(workloads(rounds=True), scenarios())
def test_tokens_bytes_and_time_add_up(asked: Workload, scenario: Scenario) -> None:
    outcome = simulate(asked, scenario)
    assert outcome.unfinished == 0
    for row, request in zip(outcome.requests, asked.requests, strict=True):
        by_source = row.hbm_tokens + row.host_tokens + row.disk_tokens + row.computed_tokens
        assert by_source == row.prompt_tokens == request.prompt_tokens
        assert row.computed_tokens >= 1
        assert row.nominal_tokens < row.prompt_tokens
        assert row.arrived_seconds <= row.admitted_seconds <= row.first_token_seconds
        assert row.first_token_seconds <= row.finished_seconds
        assert 0.0 <= row.held_seconds <= row.first_token_seconds - row.admitted_seconds
        assert row.exposed_seconds >= 0.0
        if not request.after:
            assert row.arrived_seconds == request.arrived_seconds
    loaded = sum(row.host_tokens + row.disk_tokens for row in outcome.requests)
    assert outcome.load_link.payload_bytes == loaded * TOKEN_BYTES
    fetched = sum(row.disk_tokens for row in outcome.requests)
    assert outcome.fetch_link.payload_bytes >= fetched * TOKEN_BYTES
    spent = outcome.prefill_seconds + outcome.decode_seconds + outcome.idle_seconds
    assert spent == pytest.approx(outcome.elapsed_seconds)
    assert 0.0 <= outcome.stall_seconds <= outcome.prefill_seconds
    for link in (outcome.load_link, outcome.backup_link, outcome.fetch_link):
        assert all_seconds(link) == pytest.approx(outcome.elapsed_seconds)
        assert link.copies * BLOCK_TOKENS * TOKEN_BYTES <= link.payload_bytes
    ended = max((row.finished_seconds for row in outcome.requests), default=0.0)
    began = min((row.arrived_seconds for row in outcome.requests), default=0.0)
    assert outcome.elapsed_seconds == pytest.approx(ended - began)


def all_seconds(link: LinkTime) -> float:
    idle = link.idle_no_demand_seconds + link.idle_scheduler_seconds + link.idle_compute_seconds
    return link.busy_seconds + idle


@given(workloads(rounds=True), scenarios())
def test_a_load_takes_the_link_as_long_as_its_spec_says(
    asked: Workload, scenario: Scenario
) -> None:
    link = simulate(asked, scenario).load_link
    spec = scenario.load
    pages = link.payload_bytes // (BLOCK_TOKENS * TOKEN_BYTES)
    fragments = pages * 2 * scenario.shape.layers
    expected = link.copies * spec.start_seconds + fragments * spec.fragment_seconds
    assert link.busy_seconds == pytest.approx(expected + link.payload_bytes / 1e9)


@given(workloads(), scenarios())
def test_deciding_nothing_changes_nothing(asked: Workload, scenario: Scenario) -> None:
    alone = msgspec.structs.replace(scenario, policies=Policies())
    placebo = msgspec.structs.replace(scenario, policies=Policies(strata=ENGINE_ALONE))
    assert fingerprint(simulate(asked, placebo)) == fingerprint(simulate(asked, alone))


@given(workloads(rounds=True), scenarios(), st.integers(0, 3))
def test_a_run_is_the_same_each_time(asked: Workload, scenario: Scenario, seed: int) -> None:
    first = simulate(asked, scenario, seed)
    assert fingerprint(simulate(asked, scenario, seed)) == fingerprint(first)


@given(workloads(), scenarios())
def test_tiers_of_no_size_are_recompute_only(asked: Workload, scenario: Scenario) -> None:
    # A backup that HBM waits for makes what it copied the most recently used again: not here.
    tiers = msgspec.structs.replace(scenario.tiers, backup=Backup.EVICTED)
    scenario = msgspec.structs.replace(scenario, tiers=tiers)
    tiers = msgspec.structs.replace(tiers, host_bytes=0, disk_bytes=0)
    none = simulate(asked, msgspec.structs.replace(scenario, tiers=tiers))
    assert none.load_link.payload_bytes == none.backup_link.payload_bytes == 0
    assert none.stall_seconds == 0.0
    assert all(row.exposed_seconds == 0.0 for row in none.requests)
    # The same engine that never uses its tiers, on a link that costs it nothing to fill them.
    free = LinkSpec("free", math.inf)
    policies = msgspec.structs.replace(scenario.policies, load_hits=False)
    unused = msgspec.structs.replace(scenario, policies=policies, backup=free, fetch=None)
    rows = [
        (row.hbm_tokens, row.computed_tokens, row.first_token_seconds, row.finished_seconds)
        for row in simulate(asked, unused).requests
    ]
    assert rows == [
        (row.hbm_tokens, row.computed_tokens, row.first_token_seconds, row.finished_seconds)
        for row in none.requests
    ]


@given(workloads(most_requests=8), scenarios())
def test_on_an_infinite_link_nothing_waits_for_a_load(asked: Workload, scenario: Scenario) -> None:
    free = LinkSpec("free", math.inf)
    oracle = msgspec.structs.replace(scenario, load=free, backup=free)
    outcome = simulate(asked, oracle)
    assert outcome.stall_seconds == 0.0
    assert all(row.exposed_seconds == 0.0 for row in outcome.requests)
    assert outcome.load_link.busy_seconds == outcome.backup_link.busy_seconds == 0.0


def test_an_infinite_link_is_as_good_as_hbm_for_everything() -> None:
    chains = [tuple(100 * document + place for place in range(12)) for document in range(6)]
    asked = workload(
        *(ask(f"r{n}", 0.5 * n, chains[n % 6]) for n in range(24)),
    )
    free = LinkSpec("free", math.inf)
    in_host = msgspec.structs.replace(engine(hbm_tokens=640), load=free, backup=free)
    in_hbm = engine(hbm_tokens=1 << 16)
    below, above = simulate(asked, in_host), simulate(asked, in_hbm)
    assert sum(row.host_tokens for row in below.requests) > 0
    assert sum(row.host_tokens for row in above.requests) == 0
    for one, other in zip(below.requests, above.requests, strict=True):
        assert one.computed_tokens == other.computed_tokens
        assert one.first_token_seconds == pytest.approx(other.first_token_seconds)
        assert one.finished_seconds == pytest.approx(other.finished_seconds)


@given(st.integers(1, 18), st.sampled_from(OverlapMode))
def test_a_hit_lowers_what_is_computed(blocks: int, overlap: OverlapMode) -> None:
    chain = tuple(range(blocks))
    warm = workload(ask("a", 0.0, chain), warm_blocks=chain)
    cold = workload(ask("a", 0.0, chain))
    scenario = engine(overlap=overlap)
    hit, miss = simulate(warm, scenario).requests[0], simulate(cold, scenario).requests[0]
    assert hit.host_tokens == hit.nominal_tokens == blocks * BLOCK_TOKENS
    assert hit.computed_tokens == miss.computed_tokens - blocks * BLOCK_TOKENS
    free = msgspec.structs.replace(scenario, load=LinkSpec("free", math.inf))
    assert (
        simulate(warm, free).requests[0].first_token_seconds
        <= simulate(cold, free).requests[0].first_token_seconds
    )
