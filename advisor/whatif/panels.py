"""What the pictures of a sweep show, before anything is drawn. Pure."""

from __future__ import annotations

import math
from typing import NamedTuple

from kvready.advisor.whatif.comparison import Report

TICKS_WANTED = 6
LOG_STEPS = (1, 2, 5)


class Line(NamedTuple):
    """One policy."""

    name: str
    points: tuple[tuple[float, float], ...]  # in order of rates


class Panel(NamedTuple):
    """One chart. A log axis holds values above zero only."""

    title: str
    x_label: str
    y_label: str
    lines: tuple[Line, ...]
    x_log: bool = False
    marked_x: float | None = None  # a target
    diagonal: bool = False  # where y equals x


def panels(report: Report) -> tuple[Panel, ...]:
    """Throughput over TTFT, and good requests over rate; nothing where one rate was run."""
    if not report.curves:
        return ()
    target = report.targets.ttft_seconds
    return (
        Panel(
            "Throughput over time to first token",
            "mean TTFT, seconds",
            "output tokens/s",
            tuple(
                Line(c.policy, tuple((p.ttft_mean, p.output_rate) for p in c.points if p.ttft_mean))
                for c in report.curves
            ),
            x_log=True,
            marked_x=target,
        ),
        Panel(
            "Goodput over request rate",
            "requests/s offered",
            "requests/s inside their targets",
            tuple(
                Line(c.policy, tuple((p.rate, p.good_rate) for p in c.points))
                for c in report.curves
            ),
            diagonal=True,
        ),
    )


class Scale(NamedTuple):
    """An axis: values to a share of its length."""

    low: float
    high: float
    log: bool

    def place(self, value: float) -> float:
        """0 at `low`, 1 at `high`."""
        if self.log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def ticks(self) -> list[float]:
        """Round values along it."""
        if not self.log:
            step = _step(self.high - self.low)
            return [step * n for n in range(math.ceil(self.low / step), 1 + int(self.high / step))]
        first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
        found = [s * 10.0**e for e in range(first, last + 1) for s in LOG_STEPS]
        inside = [tick for tick in found if self.low <= tick <= self.high]
        return inside if len(inside) <= 2 * TICKS_WANTED else inside[::3]


def x_scale(panel: Panel) -> Scale:
    """From the smallest to the largest, with some air."""
    values = [x for line in panel.lines for x, _ in line.points]
    if panel.marked_x is not None:
        values.append(panel.marked_x)
    if panel.x_log:
        return Scale(min(values, default=1.0) / 1.25, max(values, default=1.0) * 1.25, log=True)
    return Scale(0.0, max(values, default=1.0) * 1.05, log=False)


def y_scale(panel: Panel) -> Scale:
    """From zero."""
    values = [y for line in panel.lines for _, y in line.points]
    return Scale(0.0, (max(values, default=0.0) or 1.0) * 1.08, log=False)


def _step(span: float) -> float:
    rough = span / TICKS_WANTED
    power = 10.0 ** math.floor(math.log10(rough))
    return next(s * power for s in (*LOG_STEPS, 10) if s * power >= rough)
