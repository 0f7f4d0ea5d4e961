"""Whether prefills of like prompts fall into two groups: some find a cache, some do not."""

from __future__ import annotations

import math
from collections import defaultdict, deque
from statistics import fmean

MIN_PROMPT_TOKENS = 256  # below it, fixed costs hide what a hit saves
MAX_PREFILLS = 256  # per bin of prompt lengths; the latest
MIN_PREFILLS = 40
MAX_BINS = 32
MIN_GROUP_SHARE = 0.1
MIN_GROUP_RATIO = 4.0
# The share of the variance that splitting in two explains: 0.64 for a normal distribution, 0.75 for
# an even one, near 1 for two groups.
MIN_EXPLAINED = 0.85


class PrefillLatencies:
    """Recent prefill times, by power-of-two bin of the prompt's length."""

    def __init__(self) -> None:
        self._bins: dict[int, deque[float]] = defaultdict(lambda: deque(maxlen=MAX_PREFILLS))

    def add(self, prompt_tokens: int, prefill_seconds: float) -> None:
        """Take in one prefill, queueing left out."""
        if prompt_tokens < MIN_PROMPT_TOKENS or prefill_seconds <= 0.0:
            return
        bin_ = min(prompt_tokens.bit_length(), MAX_BINS)
        self._bins[bin_].append(math.log(prefill_seconds))

    def groups(self) -> str | None:
        """The two groups in words, of the fullest bin that has two; None where none has."""
        for bin_, logs in sorted(self._bins.items(), key=lambda kept: -len(kept[1])):
            split = two_groups(logs)
            if split is not None:
                low, high, share = split
                return (
                    f"latencies: prefills of {1 << (bin_ - 1):,} to {(1 << bin_) - 1:,} tokens "
                    f"fall in two groups, {share:.0%} around {math.exp(low) * 1e3:.0f} ms and the "
                    f"rest around {math.exp(high) * 1e3:.0f} ms"
                )
        return None

    def clear(self) -> None:
        """Another incarnation may be another machine."""
        self._bins.clear()


def two_groups(logs: deque[float]) -> tuple[float, float, float] | None:
    """Centres of two separate groups and the lower one's share, by Otsu's split of the logs."""
    count = len(logs)
    if count < MIN_PREFILLS:
        return None
    ordered = sorted(logs)
    mean = fmean(ordered)
    total = sum((value - mean) ** 2 for value in ordered)
    if total <= 0.0:
        return None
    best, place = 0.0, 0
    below = 0.0
    for index in range(1, count):
        below += ordered[index - 1]
        low, high = below / index, (mean * count - below) / (count - index)
        between = index * (count - index) / count * (high - low) ** 2
        if between > best:
            best, place = between, index
    low, high = fmean(ordered[:place]), fmean(ordered[place:])
    share = place / count
    separate = (
        best / total >= MIN_EXPLAINED
        and high - low >= math.log(MIN_GROUP_RATIO)
        and MIN_GROUP_SHARE <= share <= 1 - MIN_GROUP_SHARE
    )
    return (low, high, share) if separate else None
