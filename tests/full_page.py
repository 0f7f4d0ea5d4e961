"""A snapshot with every child that the catalogue allows: the largest page that there can be."""

from __future__ import annotations

from kvready.advisor.service.catalogue import CATALOGUE
from kvready.advisor.service.metric import Kind
from kvready.advisor.service.snapshot import Exemplar, Histogram, Histograms, Snapshot
from kvready.advisor.service.tap_labels import TapLabels
from kvready.advisor.service_account import MAX_CLASSES
from kvready.collectors.collector import Level

MANY_TAPS = 200
REQUEST_ID = "cmpl-0123456789abcdef"


def full_snapshot() -> Snapshot:
    """Each child with a value, and each bucket with one observation, which is its example."""
    taps = TapLabels(f"tap-{number}" for number in range(MANY_TAPS)).labels
    classes = tuple(f"class-{number}" for number in range(MAX_CLASSES))
    values: dict[str, dict[tuple[str, ...], float]] = {}
    histograms: Histograms = {}
    for metric in CATALOGUE:
        if metric.kind is Kind.HISTOGRAM:
            bounds = (*metric.buckets, 2 * metric.buckets[-1])
            one = Histogram(
                (1,) * len(bounds),
                sum(bounds),
                tuple(Exemplar(bound, REQUEST_ID, 12.5) for bound in bounds),
            )
            histograms[metric.name] = dict.fromkeys(metric.children(taps, classes), one)
        elif metric.is_identity:
            values[metric.name] = {tuple(f"any {one.name}" for one in metric.labels): 1.0}
        else:
            values[metric.name] = dict.fromkeys(metric.children(taps, classes), 1234.5678)
    return Snapshot(frozenset(Level), taps, dict(values), histograms, classes)
