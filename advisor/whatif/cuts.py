"""A part of a workload, or the same one with its requests classed."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from msgspec.structs import replace

from kvready.advisor.whatif.workload import Workload
from kvready.collectors.errors import WorkloadError

PROMPT_EDGES = (1_000, 8_000, 32_000)  # tokens, each the most of its class


def first_requests(workload: Workload, count: int) -> Workload:
    """The first ones to arrive. A round never goes without those before it: they come earlier."""
    if count < 1:
        raise WorkloadError(f"the first {count} requests are none; name 1 or more")
    if count >= len(workload.requests):
        return workload
    note = f"cut to the first {count:,} of {len(workload.requests):,} requests"
    kept = workload.requests[:count]
    return replace(workload, requests=kept, notes=(*workload.notes, note))


def classed_by_prompt(workload: Workload, edges: Sequence[int] = PROMPT_EDGES) -> Workload:
    """Requests in classes by their prompt's length, whatever classes they had."""
    names = [f"prompt up to {edge:,}" for edge in edges] + [f"prompt over {edges[-1]:,}"]
    requests = tuple(
        replace(request, request_class=names[bisect_left(edges, request.prompt_tokens)])
        for request in workload.requests
    )
    return replace(workload, requests=requests)
