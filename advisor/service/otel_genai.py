"""Aliases under the names of GenAI's conventions, of what kvready itself observed.

Whoever shows `gen_ai.server.*` finds the engine's time to first token there too. The conventions
want an operation's name; at the scheduler, whatever was called, text is completed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from operator import add

from opentelemetry.sdk.metrics.export import AggregationTemporality, HistogramDataPoint
from opentelemetry.sdk.metrics.export import Histogram as HistogramData
from opentelemetry.sdk.metrics.export import Metric as MetricData
from prometheus_client.samples import Sample

from kvready.advisor.service.metric import PREFIX

OPERATION = "text_completion"
ENGINE_INFO = f"{PREFIX}engine_info"
# Each by the histograms that may stand for it, the one that sees most first. Those with a label
# count each request under one value of it, so that their sum is of all requests.
ALIASES = {
    "gen_ai.server.time_to_first_token": (
        f"{PREFIX}ttft_by_state_seconds",
        f"{PREFIX}reported_ttft_seconds",
    ),
}
HELP = "Time from arrival to first token, as kvready observed it."


def aliases(
    points: Mapping[str, Sequence[HistogramDataPoint]], engine: Sequence[Sample]
) -> list[MetricData]:
    """Those whose histogram is there. `engine`: what it said that it is; empty: nothing yet."""
    if not engine:
        return []  # a provider's name is required, and unknown
    said = engine[0].labels
    attributes = {
        "gen_ai.operation.name": OPERATION,
        "gen_ai.provider.name": said["engine"],
        "gen_ai.request.model": said["model"],
    }
    found = []
    for name, stand_ins in ALIASES.items():
        seen = next((points[one] for one in stand_ins if points.get(one)), None)
        if seen is not None:
            data = HistogramData([_sum(seen, attributes)], AggregationTemporality.CUMULATIVE)
            found.append(MetricData(name, HELP, "s", data))
    return found


def _sum(points: Sequence[HistogramDataPoint], attributes: dict[str, str]) -> HistogramDataPoint:
    counts = list(points[0].bucket_counts)
    for point in points[1:]:
        counts = list(map(add, counts, point.bucket_counts))
    return replace(
        points[0],
        attributes=attributes,
        count=sum(counts),
        sum=sum(point.sum for point in points),
        bucket_counts=counts,
        exemplars=[one for point in points for one in point.exemplars],
    )
