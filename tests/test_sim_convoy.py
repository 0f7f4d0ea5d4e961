"""A simulated engine whose leaders are slow: who is held for them waits as long, others do not."""

from __future__ import annotations

from itertools import pairwise

import pytest
from test_sim_engine import SMALL, told

from kvready.advisor.whatif.sim_engine.engine import SimEngine
from kvready.advisor.whatif.sim_engine.faults import (
    MAX_FAULTS,
    SLOW_LEADER_SECONDS,
    Fault,
    FaultName,
    Faults,
)
from kvready.advisor.whatif.sim_engine.flags import Flags
from kvready.advisor.whatif.sim_engine.workloads import drawn
from kvready.advisor.whatif.workload import SimRequest, Workload
from kvready.collectors.errors import SettingsError, WorkloadError
from kvready.collectors.records import FirstToken, Ingested, RequestArrived, RequestDeferred

DOCUMENT = tuple(range(1, 201))  # 6,400 tokens
OTHERS = tuple(range(1_001, 1_011))


def asked() -> Workload:
    """A document asked three times at once, and another prompt."""
    prompts = [("leader", DOCUMENT), ("one", DOCUMENT), ("two", DOCUMENT), ("other", OTHERS)]
    requests = tuple(
        SimRequest(name, 0.1 + 0.01 * place, len(blocks) * 32 + 40, 2, blocks)
        for place, (name, blocks) in enumerate(prompts)
    )
    return Workload("three", "made up", 32, requests)


def run(dedup: bool, *faults: FaultName) -> list[Ingested]:
    """All that is told of it."""
    lasting = Faults(Fault(name, 0.0, 60.0) for name in faults)
    return told(SimEngine(SMALL, asked(), lasting, Flags(dedup=dedup), 1))


def waits(items: list[Ingested]) -> dict[str, float]:
    """Seconds to first tokens."""
    arrived, found = {}, {}
    for item in items:
        match item.record:
            case RequestArrived(request_id=name, arrived_seconds=at):
                arrived[name] = at
            case FirstToken(request_id=name, first_token_seconds=at):
                found[name] = at - arrived[name]
            case _:
                pass
    return found


def test_a_slow_leader_waits_and_who_is_held_for_it_waits_as_long() -> None:
    slow = waits(run(True, FaultName.SLOW_LEADER))
    assert min(slow["leader"], slow["one"], slow["two"]) >= SLOW_LEADER_SECONDS - 0.1
    quick = waits(run(True))
    assert max(quick.values()) < SLOW_LEADER_SECONDS


def test_nobody_who_is_not_held_waits_for_a_slow_leader() -> None:
    slow = waits(run(False, FaultName.SLOW_LEADER))
    assert slow["leader"] >= SLOW_LEADER_SECONDS
    assert max(slow["one"], slow["two"]) < SLOW_LEADER_SECONDS


def test_the_engine_says_whom_it_puts_aside() -> None:
    items = run(False, FaultName.SLOW_LEADER)
    deferred = [one.record.request_id for one in items if isinstance(one.record, RequestDeferred)]
    assert "leader" in deferred
    assert "one" not in deferred
    assert "two" not in deferred


def test_a_fault_can_be_switched_on_while_the_engine_runs() -> None:
    faults = Faults()
    assert faults.active(FaultName.SLOW_LEADER, 3.0) is None
    faults.begin(Fault(FaultName.SLOW_LEADER, 2.0, 5.0))
    assert faults.active(FaultName.SLOW_LEADER, 3.0) is not None
    for _ in range(MAX_FAULTS - 1):
        faults.begin(Fault(FaultName.STALL, 0.0, 1.0))
    with pytest.raises(SettingsError):
        faults.begin(Fault(FaultName.STALL, 0.0, 1.0))


def test_a_shape_is_asked_in_an_order_with_as_many_questions_a_document_as_published() -> None:
    made = drawn("loogle:min_distance", 4.0, 230, 1)
    documents = [request.request_id.split("-")[1] for request in made.requests]
    assert len(set(documents)) == 10  # 2,410 questions of 105 documents
    changes = sum(one != other for one, other in pairwise(documents))
    assert changes == 9, "back to back"
    shuffled = drawn("loogle:shuffled", 4.0, 230, 1)
    assert len({request.request_id.split("-")[1] for request in shuffled.requests}) == 10


def test_a_shape_is_asked_so_many_questions_of_each_document() -> None:
    made = drawn("loogle:min_distance:4", 4.0, 400, 1)
    assert len({request.request_id.split("-")[1] for request in made.requests}) == 100


@pytest.mark.parametrize(
    "name",
    [
        "loogle:upside_down",
        "poems:shuffled",
        "sharegpt:min_distance",
        "loogle:min_distance:0",
        "loogle:min_distance:many",
        "loogle:min_distance:4:4",
    ],
)
def test_an_order_or_a_shape_that_there_is_not_is_named(name: str) -> None:
    with pytest.raises(WorkloadError):
        drawn(name, 4.0, 100, 1)
