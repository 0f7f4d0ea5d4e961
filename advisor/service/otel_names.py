"""What a metric of the catalogue is called in OpenTelemetry: the name, the unit. Pure.

A Collector that hands our metrics on to Prometheus writes `_` for `.`, and appends the unit where
the name lacks it and `_total` to counters. So both ways lead to the name in the catalogue.
"""

from __future__ import annotations

from kvready.advisor.service.metric import PREFIX, Kind, Metric

NAMESPACE = "kvready."
TOTAL = "_total"

# As UCUM spells them; whatever is counted is an annotation, in the singular.
UCUM = {"": "", "seconds": "s", "bytes": "By", "ratio": "1"}
PLURALS = (("ies", "y"), ("ches", "ch"), ("s", ""))
ALIKE = frozenset({"series"})  # in singular and plural


def otel_name(metric: Metric) -> str:
    """Its instrument's name."""
    name = metric.name.removeprefix(PREFIX)
    return NAMESPACE + (name.removesuffix(TOTAL) if metric.kind is Kind.COUNTER else name)


def otel_unit(metric: Metric) -> str:
    """Its unit in UCUM."""
    known = UCUM.get(metric.unit)
    return f"{{{_singular(metric.unit)}}}" if known is None else known


def _singular(plural: str) -> str:
    if plural in ALIKE:
        return plural
    for ending, one in PLURALS:
        if plural.endswith(ending):
            return plural.removesuffix(ending) + one
    return plural
