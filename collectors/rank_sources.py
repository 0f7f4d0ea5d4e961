"""The KV-event sockets of an engine's ranks, as the engine was given them and as we use them."""

from __future__ import annotations

from urllib.parse import urlsplit

from kvready.collectors.endpoint import (
    LOOPBACK,
    WILDCARDS,
    live_endpoint,
    of_rank,
    replay_endpoint,
)
from kvready.collectors.errors import TapError
from kvready.collectors.surfaces import RankSource

ANY_ADDRESS = "0.0.0.0"


def rank_source(
    rank: int, endpoint: str, replay: str | None, topic: str = "", host: str = LOOPBACK
) -> RankSource:
    """Our side of a rank's sockets, of an engine that runs on `host`. A bad address is a problem.

    A wildcard stands for that host; on which ends bind, see `endpoint`.
    """
    problem = ""
    address = replay_address = None
    we_bind = False
    try:
        live = live_endpoint(endpoint)
        address, we_bind = live.address, live.we_bind
        if replay:
            replay_address = _at(replay, replay_endpoint(replay).address, host)
        if not we_bind:
            address = _at(endpoint, address, host)
    except TapError as error:
        problem, address = str(error), None
    return RankSource(
        rank, endpoint, replay or None, topic, address, we_bind, replay_address, problem
    )


def given_sources(
    url: str, endpoints: tuple[str, ...], replays: tuple[str, ...], ranks: tuple[int, ...]
) -> tuple[RankSource, ...]:
    """Sources from endpoints that the user names: one a rank, or one base for all of them."""
    host = urlsplit(url).hostname or ""
    if len(endpoints) == 1 and len(ranks) > 1:
        endpoints = tuple(of_rank(endpoints[0], rank) for rank in ranks)
        replays = tuple(of_rank(one, rank) for one in replays[:1] for rank in ranks)
    return tuple(
        rank_source(rank, endpoint, replays[rank] if rank < len(replays) else None, host=host)
        for rank, endpoint in enumerate(endpoints)
    )


def _at(configured: str, address: str, host: str) -> str:
    """Where a wildcard stands for, seen from here: the host that the user named."""
    if not configured.startswith("tcp://"):
        return address
    name, _, port = configured.removeprefix("tcp://").rpartition(":")
    if name not in (*WILDCARDS, ANY_ADDRESS):
        return address
    host = {"localhost": "127.0.0.1", "": "127.0.0.1"}.get(host, host)
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"
