"""The part of the catalogue that tells how exports over OTLP fare, and its values."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvready.advisor.service.metric import PREFIX, Label, counter, gauge
from kvready.advisor.service.otel_counts import ExportCounts, Fate, Result, Signal

if TYPE_CHECKING:
    from kvready.advisor.service.snapshot import Children

SIGNAL = Label("signal", tuple(Signal))

OTEL = (
    counter("otel_exports_total", "exports",
            "Exports over OTLP by what became of them; busy and unread ones were left out, since "
            "the one before had not ended, or ingestion gave no snapshot in time.",
            SIGNAL, Label("result", tuple(Result))),
    counter("otel_rejected_total", "",
            "Data points and spans that a collector received and refused.", SIGNAL),
    gauge("otel_quiet_seconds", "seconds",
          "Time since an export was last delivered; absent before the first.",
          SIGNAL, sparse=True),
    counter("otel_spans_total", "spans",
            "Spans of sampled decisions by what became of them.", Label("fate", tuple(Fate))),
)  # fmt: skip


def otel_values(counts: ExportCounts) -> dict[str, Children]:
    """Their values now."""
    return {
        f"{PREFIX}otel_exports_total": {
            (one, end): count for (one, end), count in counts.exports().items()
        },
        f"{PREFIX}otel_rejected_total": {(one,): n for one, n in counts.rejections().items()},
        f"{PREFIX}otel_quiet_seconds": {(one,): s for one, s in counts.quiet_seconds().items()},
        f"{PREFIX}otel_spans_total": {(fate,): count for fate, count in counts.fates().items()},
    }
