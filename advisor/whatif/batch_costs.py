"""What simulated batches cost: prefills chunk by chunk, decodes many steps at once.

A decode step costs the larger of two things that grow evenly with the context, arithmetic and
memory traffic. The sum over many steps is then closed: nothing goes token by token.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

from kvready.advisor.roofline import Chunk, Roofline


class Decodes(NamedTuple):
    """Requests that decode together, and the sum of their contexts, in tokens."""

    requests: int
    context_tokens: int


class DecodeRun:
    """Seconds of successive decode steps of the same requests."""

    def __init__(self, roofline: Roofline, decodes: Decodes) -> None:
        requests, context = decodes
        first = roofline.flops(Chunk(1, 0)) * requests + roofline.pair_flops * context
        moved = roofline.weight_bytes + (context + requests) * roofline.kv_bytes
        arithmetic = _Line(
            first / roofline.flops_per_second,
            roofline.pair_flops * requests / roofline.flops_per_second,
        )
        traffic = _Line(
            moved / roofline.bytes_per_second,
            roofline.kv_bytes * requests / roofline.bytes_per_second,
        )
        self._fixed_seconds = roofline.fixed_seconds
        below, above = sorted((arithmetic, traffic))
        self._first, self._then = above, above
        self._crossing = 0
        if below.slope > above.slope:
            # The one that starts lower grows faster: it is the larger from some step on.
            self._crossing = int((above.start - below.start) / (below.slope - above.slope)) + 1
            self._then = below

    def seconds(self, steps: int) -> float:
        """Of the first so many steps."""
        total = self._fixed_seconds * steps
        crossing = self._crossing
        if steps <= crossing:
            return total + self._first.sum(0, steps)
        return total + self._first.sum(0, crossing) + self._then.sum(crossing, steps)

    def steps(self, seconds: float, most: int) -> int:
        """How many begin before so many seconds have passed; between 1 and `most`."""
        return 1 + bisect_left(range(1, most), seconds, key=self.seconds)


class _Line(NamedTuple):
    """Seconds of step j, counted from 0: `start + j * slope`."""

    start: float
    slope: float

    def sum(self, first: int, end: int) -> float:
        """Over the steps first <= j < end."""
        return (end - first) * (self.start + self.slope * 0.5 * (first + end - 1))


def batch_seconds(roofline: Roofline, chunks: Sequence[Chunk], decodes: Decodes) -> float:
    """A batch of prefills, with one step of decodes where they ride along."""
    flops = sum(map(roofline.flops, chunks))
    kv_tokens = sum(chunk.new_tokens + chunk.context_tokens for chunk in chunks)
    if decodes.requests:
        flops += roofline.flops(Chunk(1, 0)) * decodes.requests
        flops += roofline.pair_flops * decodes.context_tokens
        kv_tokens += decodes.requests + decodes.context_tokens
    return roofline.seconds(flops, kv_tokens)


class Slowing(NamedTuple):
    """Copies until some moment that slow compute by a share of its time."""

    until_seconds: float
    share: float


def slowed(start_seconds: float, work_seconds: float, slowings: Sequence[Slowing]) -> float:
    """How long work takes that starts beside copies."""
    now, left = start_seconds, work_seconds
    for until, share in _phases(slowings):
        if until <= now:
            continue
        done = (until - now) / (1.0 + share)
        if left <= done:
            return now + left * (1.0 + share) - start_seconds
        now, left = until, left - done
    return now + left - start_seconds


def work_done(start_seconds: float, seconds: float, slowings: Sequence[Slowing]) -> float:
    """The other way round: how much is done after so many seconds."""
    now, end, work = start_seconds, start_seconds + seconds, 0.0
    for until, share in _phases(slowings):
        if until <= now:
            continue
        if end <= until:
            return work + (end - now) / (1.0 + share)
        now, work = until, work + (until - now) / (1.0 + share)
    return work + end - now


def _phases(slowings: Sequence[Slowing]) -> list[Slowing]:
    """Until when which sum of shares holds; after the last nothing slows."""
    phases: list[Slowing] = []
    share = 0.0
    for slowing in sorted(slowings, reverse=True):
        if slowing.share > 0.0:
            share += slowing.share
            phases.append(Slowing(slowing.until_seconds, share))
    phases.reverse()
    return phases
