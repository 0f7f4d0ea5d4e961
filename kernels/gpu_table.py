"""Movers of a GPU beside a large contiguous copy, as lines of text."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from kvready.kernels.profile import Curve, Sample
from kvready.kernels.sweep import KIB, MIB

OCTAVES = (512, 2 * KIB, 8 * KIB, 32 * KIB, 128 * KIB, 512 * KIB, 2 * MIB)
CONTIGUOUS = "contiguous"
LEAST_PAYLOAD_BYTES = 4 * MIB  # smaller loads tell their overhead, not their bandwidth


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
    limits = [_rate(s) for c in curves if c.mover == CONTIGUOUS for s in _large(c.samples)]
    limit = median(limits) if limits else None
    sizes = "".join(f"{_size(octave):>9}" for octave in OCTAVES)
    lines = [f"  {'mover':12}{'SMs':>5}{sizes}{'of limit':>10}{'wait us':>9}{'slows x':>9}"]
    for curve in curves:
        if curve.mover == CONTIGUOUS:
            continue
        by_size = [_near(curve.samples, octave) for octave in OCTAVES]
        best = max((rate for rate in by_size if rate is not None), default=None)
        share = f"{best / limit:.0%}" if best is not None and limit else "-"
        slower = [s.compute_slowdown for s in curve.samples if s.compute_slowdown is not None]
        lines.append(
            f"  {curve.mover:12}{curve.workers if curve.mover == 'gather' else '-':>5}"
            + "".join(f"{'-' if rate is None else f'{rate / 1e9:.2f}':>9}" for rate in by_size)
            + f"{share:>10}{median(s.wait_seconds for s in curve.samples) * 1e6:>9.0f}"
            + f"{f'{median(slower):.2f}' if slower else '-':>9}"
        )
    if limit is not None:
        lines.append(
            f"  a contiguous copy of {LEAST_PAYLOAD_BYTES >> 20} MiB or more: "
            f"{limit / 1e9:.2f} GB/s"
        )
    return lines


def _large(samples: Sequence[Sample]) -> list[Sample]:
    return [s for s in samples if s.fragment_bytes * s.fragments >= LEAST_PAYLOAD_BYTES]


def _near(samples: Sequence[Sample], octave: int) -> float | None:
    """Median rate of large loads whose fragments are within an octave of a size; None: none."""
    near = [_rate(s) for s in _large(samples) if octave / 2 < s.fragment_bytes < octave * 2]
    return median(near) if near else None


def _rate(sample: Sample) -> float:
    return sample.fragment_bytes * sample.fragments / sample.move_seconds


def _size(size: int) -> str:
    return (
        f"{size >> 20} MiB" if size >= MIB else f"{size >> 10} KiB" if size >= KIB else f"{size} B"
    )
