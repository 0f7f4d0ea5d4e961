"""Where loading a prefix's head and computing its tail take the least time together.

A layer-wise engine does both at once, so that with `k` of `n` blocks loaded it takes
`before(k) + max(x(k) + y(k)/L, x(k)/L + y(k))`, `x` the load, `y` the compute, `L` layers. The load
is linear in `k`; the compute falls ever faster, since later tokens attend to more. Either branch is
then concave on its side of the crossing `x = y`, and the minimum lies at an end or at the crossing.
"""

from __future__ import annotations

from collections.abc import Callable

from kvready.advisor.overlap import usable_batch_seconds
from kvready.collectors.records import OverlapMode

# Costs that come in steps (chunks of a prefill) may move the crossing by a block or two.
NEIGHBOURS = 3

Parts = Callable[[int], tuple[float, float, float]]  # blocks -> before, load, compute (seconds)


def best_split(blocks: int, parts: Parts, layers: int) -> int:
    """How many of so many blocks to load. Never worse than none or all of them."""

    def seconds(number: int) -> float:
        before, load, compute = parts(number)
        return before + usable_batch_seconds(OverlapMode.LAYERWISE, layers, load, compute)

    low, high = 0, blocks  # the load is shorter than the compute at `low`, longer at `high`
    while high - low > 1:
        middle = (low + high) // 2
        _, load, compute = parts(middle)
        if load < compute:
            low = middle
        else:
            high = middle
    near = range(max(1, low - NEIGHBOURS), min(blocks, high + NEIGHBOURS))
    choices: list[int] = [0, blocks, *near]
    return min(choices, key=seconds)
