"""The simulated engine obeys a sidecar's flags while it runs, and only while they hold."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest
from flag_server import FlagServer
from test_sim_engine import engine, told

from kvready.advisor.flags import Split
from kvready.advisor.hooks.flag_client import FlagClient, Heard
from kvready.advisor.hooks.lease import MAX_LEASE_SECONDS
from kvready.advisor.ledger import Target
from kvready.advisor.shape_cells import inflight_cell, told_cell
from kvready.advisor.whatif.sim_engine.engine import SimEngine
from kvready.advisor.whatif.sim_engine.flags import LiveFlags
from kvready.collectors.names import CopyMethod, DeferReason
from kvready.collectors.records import Ingested, RequestArrived, RequestDeferred

AWAITED_TOKENS = 2_048
CONVOYS = ("convoy@1:30",)


@pytest.fixture
def server() -> Iterator[FlagServer]:
    made = FlagServer()
    yield made
    made.end()


def obeying(server: FlagServer) -> tuple[SimEngine, FlagClient]:
    """An engine in whose time the client lives."""
    simulated = engine(requests=150, rate=8.0, faults=CONVOYS)
    client = FlagClient(server.url, "sim", clock=lambda: simulated.now)
    simulated.flags = LiveFlags(client)
    assert client.ask() is Heard.ANSWERED, client.problem
    return simulated, client


def held(items: list[Ingested]) -> list[RequestDeferred]:
    return [
        item.record
        for item in items
        if isinstance(item.record, RequestDeferred) and item.record.reason is DeferReason.HOLD
    ]


def test_once_the_lease_is_over_nobody_is_held_any_more(server: FlagServer) -> None:
    simulated, client = obeying(server)
    found = held(told(simulated))
    client.stop()
    assert found, "while it held, convoys were"
    begin = 1_000.0  # of simulated time, in the records
    assert max(one.deferred_seconds - begin for one in found) < MAX_LEASE_SECONDS
    assert held(told(engine(requests=150, rate=8.0, faults=CONVOYS))) == []


def test_in_a_canary_only_treated_prefix_groups_are_held(server: FlagServer) -> None:
    split = Split("seed", 0.5)
    said = (
        b'{"flags":[{"key":"dedup","value":false,"metadata":'
        b'{"split_seed":"seed","split_treated_ratio":0.5}}]}'
    )
    server.behave = lambda asked: server.message(200, said)
    simulated = engine(requests=150, rate=8.0, faults=CONVOYS)
    client = FlagClient(server.url, "sim", clock=lambda: 0.0)  # a lease that does not end
    simulated.flags = LiveFlags(client)
    client.ask()
    items = told(simulated)
    client._asker.close()
    group = {
        item.record.request_id: item.record.block_hashes[0]
        for item in items
        if isinstance(item.record, RequestArrived) and item.record.block_hashes
    }
    arms = {split.treats(group[one.request_id]) for one in held(items)}
    assert arms == {True}
    assert {split.treats(one) for one in group.values()} == {True, False}


def test_nobody_is_held_on_a_prediction_that_stays_bad(server: FlagServer) -> None:
    bad = told_cell(Target.INFLIGHT_READY, inflight_cell("batch", AWAITED_TOKENS))
    flag = {"key": "dedup", "value": True, "metadata": {"excluded_cells": bad}}
    said = msgspec.json.encode({"flags": [flag]})
    server.behave = lambda asked: server.message(200, said)
    client = FlagClient(server.url, "sim", clock=lambda: 0.0)
    client.ask()
    flags = LiveFlags(client)
    assert flags.dedup
    assert not flags.may_hold(1, AWAITED_TOKENS)
    assert flags.may_hold(1, 2 * AWAITED_TOKENS)
    client.stop()


def test_each_policy_is_obeyed_by_its_own_flag(server: FlagServer) -> None:
    server.on = {"balance": True, "gpu_copy": True}
    client = FlagClient(server.url, "sim", clock=lambda: 0.0)
    flags = LiveFlags(client)
    seen = lambda: (flags.dedup, flags.balance, flags.copy_method, flags.may_hold(1, 128))  # noqa: E731
    assert seen() == (False, False, CopyMethod.DMA_PER_PAGE, False)
    client.ask()
    assert seen() == (False, True, CopyMethod.GATHER, False)
    client.stop()
    assert seen() == (False, False, CopyMethod.DMA_PER_PAGE, False)
