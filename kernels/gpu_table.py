"""Movers of a GPU beside a large contiguous copy, as lines of text."""

from __future__ import annotations

from collections.abc import Sequence

from kvready.kernels.profile import CONTIGUOUS, Curve
from kvready.kernels.summary import bandwidth_at, points, size_text, summarize
from kvready.kernels.sweep import KIB, MIB

OCTAVES = (512, 2 * KIB, 8 * KIB, 32 * KIB, 128 * KIB, 512 * KIB, 2 * MIB)


def table(curves: Sequence[Curve]) -> list[str]:
    """GB/s by fragment size, share of the contiguous copy's, wait and slow-down of compute."""
    lines: list[str] = []
    for source, destination in dict.fromkeys((c.source, c.destination) for c in curves):
        for contended in (False, True):
            ours = [
                c
                for c in curves
                if (c.source, c.destination, c.contended) == (source, destination, contended)
            ]
            if ours:
                beside = "beside matrix products" if contended else "quiet"
                lines += ["", f"{source} -> {destination}, {beside}: GB/s by fragment size"]
                lines += _block(ours)
    return lines


def _block(curves: Sequence[Curve]) -> list[str]:
    limits = [point.middle for c in curves if c.mover == CONTIGUOUS for point in points(c)]
    limit = max(limits, default=None)
    sizes = "".join(f"{size_text(octave):>9}" for octave in OCTAVES)
    lines = [f"  {'mover':12}{'SMs':>5}{sizes}{'of limit':>10}{'wait us':>9}{'slows x':>9}"]
    for curve in curves:
        if curve.mover == CONTIGUOUS:
            continue
        told, along = summarize(curve), points(curve)
        by_size = [bandwidth_at(along, octave) for octave in OCTAVES]
        share = told.fastest.middle / limit if told.fastest is not None and limit else None
        lines.append(
            f"  {curve.mover:12}{curve.workers if curve.mover == 'gather' else '-':>5}"
            + "".join(_cell(None if point is None else point.middle / 1e9, 9) for point in by_size)
            + ("-" if share is None else f"{share:.0%}").rjust(10)
            + _cell(None if told.wait_seconds is None else told.wait_seconds * 1e6, 9, digits=0)
            + _cell(told.compute_slowdown, 9)
        )
    if limit is not None:
        lines.append(f"  the limit, a copy in one piece: {limit / 1e9:.2f} GB/s")
    return lines


def _cell(number: float | None, width: int, *, digits: int = 2) -> str:
    return ("-" if number is None else f"{number:.{digits}f}").rjust(width)
