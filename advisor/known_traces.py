"""The traces of the engine's latest requests, as its spans told of them. Bounded, pure."""

from __future__ import annotations

import re
from collections import OrderedDict

from kvready.collectors.records import RequestReported
from kvready.collectors.request_ids import reported_id

MAX_TRACES = 4_096  # an example of a histogram is one of the latest requests
TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}")


class KnownTraces:
    """Trace ids by the name that a request's reports have."""

    def __init__(self) -> None:
        self._traces: OrderedDict[str, str] = OrderedDict()

    def report(self, report: RequestReported) -> None:
        """A request ended; its span has a context if its trace was sampled."""
        found = TRACEPARENT.fullmatch(report.traceparent)
        if found is None:
            return
        self._traces[report.request_id] = found[1]
        self._traces.move_to_end(report.request_id)
        if len(self._traces) > MAX_TRACES:
            self._traces.popitem(last=False)

    def of(self, request_id: str) -> str:
        """The trace of a request, by its own name or that of its reports; empty: none is known."""
        return self._traces.get(request_id) or self._traces.get(reported_id(request_id), "")
