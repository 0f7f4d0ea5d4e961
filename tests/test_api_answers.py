"""Each answer of the API is counted once, by what was asked for and how that ended."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from served import AppClient
from story import Story

from kvready.advisor.service.api_answers import Ended, Route, ended, route_of
from kvready.advisor.service.app import create_app
from kvready.advisor.service.calls import Announced, Calls
from kvready.advisor.service.sidecar import Sidecar
from kvready.advisor.service.tally import PairTally
from kvready.advisor.settings import Settings


@pytest.fixture
def sidecar(told_story: Story) -> Sidecar:
    return Sidecar(Settings(), told_story.pipeline, PairTally())


def test_every_path_that_the_api_has_belongs_to_a_route(sidecar: Sidecar) -> None:
    paths = [path for path in create_app(sidecar).openapi()["paths"] if "{" not in path]
    assert len(paths) > 10
    assert {
        path: route_of(path, 200) for path in paths if route_of(path, 200) is Route.UNKNOWN
    } == {}
    seen = {route_of(path, 200) for path in paths}
    assert seen == set(Route) - {Route.UNKNOWN}


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (200, Ended.OK),
        (204, Ended.OK),
        (304, Ended.UNCHANGED),
        (401, Ended.REFUSED),
        (429, Ended.REFUSED),
        (500, Ended.FAILED),
        (503, Ended.FAILED),
    ],
)
def test_an_answer_ends_in_one_of_four_ways(status: int, expected: Ended) -> None:
    assert ended(status) is expected


def test_calls_are_counted_where_they_came_in(sidecar: Sidecar) -> None:
    client = AppClient(create_app(sidecar))
    for path in ("/livez", "/nowhere", "/v1/pairs?limit=-1", "/livez", "/static/none"):
        client.get(path)
    client.post("/v1/readiness", content=b"{")
    assert sidecar.calls.answers.counts == Counter(
        {
            (Route.PROBES, Ended.OK): 2,
            (Route.UNKNOWN, Ended.REFUSED): 2,
            (Route.READS, Ended.REFUSED): 1,
            (Route.READINESS, Ended.REFUSED): 1,
        }
    )


def test_what_traffic_names_grows_nothing(sidecar: Sidecar) -> None:
    client = AppClient(create_app(sidecar))
    for number in range(20):
        client.get(f"/v1/{number}/../{number}")
        client.get(f"/{number}?{number}={number}")
    assert set(sidecar.calls.answers.counts) == {(Route.UNKNOWN, Ended.REFUSED)}


def test_a_defect_counts_as_failed() -> None:
    calls = Calls()

    async def broken(scope: object, receive: object, send: object) -> None:
        raise ZeroDivisionError

    async def call() -> None:
        scope = {"type": "http", "path": "/v1/report"}
        await Announced(broken, calls)(scope, None, None)  # type: ignore[arg-type]

    with pytest.raises(ZeroDivisionError):
        asyncio.run(call())
    assert calls.answers.counts == {(Route.READS, Ended.FAILED): 1}
    assert calls.open == 0
