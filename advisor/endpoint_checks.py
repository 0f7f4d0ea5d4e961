"""What a doctor finds in how the engine's sockets are set up."""

from __future__ import annotations

from collections.abc import Iterator

from kvready.advisor.diagnosis import Evidence, Finding, Severity
from kvready.advisor.levels import observer_supports
from kvready.collectors.endpoint import WILDCARDS
from kvready.collectors.engine.engine_facts import TESTED_VERSIONS
from kvready.collectors.surfaces import RankSource

IPC = "ipc:///run/kvready/kv.sock"


def endpoint_findings(evidence: Evidence) -> Iterator[Finding]:
    """All of them."""
    for source in evidence.surfaces.sources:
        yield from _source(source)
    yield from _ranks(evidence)
    yield from _observer(evidence)


def _source(source: RankSource) -> Iterator[Finding]:
    told = f"rank {source.rank}: endpoint {source.configured}"
    if source.problem:
        yield Finding(
            "endpoint-cannot-deliver",
            Severity.CRITICAL,
            f"the KV events of rank {source.rank} can reach nobody here",
            f"{told}: {source.problem}",
            "level 1 is blind: which block is in which tier is unknown",
            f'"endpoint": "{IPC}" in --kv-events-config',
        )
        return
    if _is_public(source.configured):
        yield Finding(
            "prompts-on-network",
            Severity.WARNING,
            "KV events, with every prompt's token ids, are open to the network",
            told,
            "whoever reaches the port reads users' prompts; there is no authentication",
            f'"endpoint": "{IPC}" in --kv-events-config; with several ranks keep tcp, and close '
            "the port with a network policy",
        )
    elif source.we_bind:
        yield Finding(
            "engine-connects",
            Severity.WARNING,
            "the engine connects to this address instead of binding it",
            told,
            "one subscriber only: whoever binds first gets the events; until then they are lost",
            f'"endpoint": "{IPC}" in --kv-events-config: the engine binds ipc, and any number may '
            "subscribe",
        )
    if source.configured_replay is None:
        yield Finding(
            "replay-missing",
            Severity.WARNING,
            f"rank {source.rank} has no replay endpoint",
            told,
            "a lost message cannot be made good, and blocks stored before kvready came are unknown",
            '"replay_endpoint": "ipc:///run/kvready/replay.sock" in --kv-events-config',
        )


def _is_public(endpoint: str) -> bool:
    host = endpoint.removeprefix("tcp://").rpartition(":")[0]
    return endpoint.startswith("tcp://") and host in WILDCARDS


def _ranks(evidence: Evidence) -> Iterator[Finding]:
    page = evidence.after
    served = set(page.engines) if page is not None else set()
    published = {source.rank for source in evidence.surfaces.sources}
    observed = {tap.rank for tap in evidence.observer_taps}
    for what, ranks, fix in (
        ("KV events", published, "name one endpoint per rank with --kv-events"),
        ("the observer", observed, "start every rank with the same --scheduler-cls and folder"),
    ):
        missing = sorted(served - ranks)
        if ranks and missing:
            yield Finding(
                "rank-missing",
                Severity.WARNING,
                f"{what} cover {len(ranks & served)} of {len(served)} ranks",
                f"/metrics shows ranks {_listed(served)}; missing {_listed(missing)}",
                "requests of those ranks are not seen at that level",
                fix,
            )


def _observer(evidence: Evidence) -> Iterator[Finding]:
    surfaces = evidence.surfaces
    if not evidence.observer_wanted or surfaces.scheduler_observed:
        return
    if not observer_supports(surfaces.version):
        yield Finding(
            "observer-refused",
            Severity.WARNING,
            f"the observer refuses vLLM {surfaces.version or 'of an unknown version'}",
            f"tested with {', '.join(TESTED_VERSIONS)}; no socket in {surfaces.observer_dir}",
            "no forecasts, and no single request is seen",
            "remove --scheduler-cls and use levels 0 to 2, or a kvready that lists this version",
        )
        return
    yield Finding(
        "observer-missing",
        Severity.WARNING,
        "no observer publishes in that folder",
        f"no observer-scheduler-*.sock in {surfaces.observer_dir}",
        "no forecasts, and no single request is seen",
        "start the engine with --scheduler-cls "
        "kvready.collectors.engine.vllm_observer.ObservedScheduler and "
        f"KVREADY_OBSERVER={surfaces.observer_dir}",
    )


def _listed(ranks: set[int] | list[int]) -> str:
    return ", ".join(map(str, sorted(ranks)))
