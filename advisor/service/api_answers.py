"""What the API answered: how often, by what was asked for and how that ended."""

from __future__ import annotations

from collections import Counter
from enum import StrEnum


class Route(StrEnum):
    """What was asked for."""

    READINESS = "readiness"
    FLAGS = "flags"  # what hooks poll
    POLICIES = "policies"  # what stands over them, and commands
    METRICS = "metrics"
    PROBES = "probes"
    PAGE = "page"
    READS = "reads"  # all else that there is
    UNKNOWN = "unknown"


class Ended(StrEnum):
    """How that ended, by the status."""

    OK = "ok"
    UNCHANGED = "unchanged"  # 304, or another redirection
    REFUSED = "refused"  # the caller's fault
    FAILED = "failed"  # ours


PREFIXES = (
    ("/v1/readiness", Route.READINESS),
    ("/ofrep/", Route.FLAGS),
    ("/v1/policies", Route.POLICIES),
    ("/v1/kill", Route.POLICIES),
    ("/v1/revive", Route.POLICIES),
    ("/v1/audit", Route.POLICIES),
    ("/v1/gates", Route.POLICIES),
    ("/metrics", Route.METRICS),
    ("/livez", Route.PROBES),
    ("/readyz", Route.PROBES),
    ("/static/", Route.PAGE),
    ("/page", Route.PAGE),
    ("/v1/", Route.READS),
    ("/openapi.json", Route.READS),
)


def route_of(path: str, status: int) -> Route:
    """A path that is not there has no route of its own."""
    if status in (404, 405):
        return Route.UNKNOWN
    if path == "/":
        return Route.PAGE
    return next((route for prefix, route in PREFIXES if path.startswith(prefix)), Route.UNKNOWN)


def ended(status: int) -> Ended:
    """One of four."""
    if status < 300:
        return Ended.OK
    if status < 400:
        return Ended.UNCHANGED
    return Ended.REFUSED if status < 500 else Ended.FAILED


class ApiAnswers:
    """Counts. The event loop's thread writes, others read."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[Route, Ended]] = Counter()

    def count(self, path: str, status: int) -> None:
        """One answer was begun."""
        self.counts[route_of(path, status), ended(status)] += 1

    def told(self) -> dict[tuple[str, ...], int]:
        """By route and end."""
        return {(route, end): count for (route, end), count in self.counts.copy().items()}
