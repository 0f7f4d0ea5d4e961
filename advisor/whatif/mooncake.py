"""Traces with a request a line and a list of block ids: Mooncake's, and Bailian's.

Bailian's (16-token blocks, seconds) is read by its documented fields and untested on its data.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median

import msgspec

from kvready.advisor.whatif.chains import ROOT, Allowance, Chains
from kvready.advisor.whatif.trace_lines import parsed, refused, trace_lines
from kvready.advisor.whatif.workload import SimRequest, Workload

MOONCAKE_BLOCK_TOKENS = 512
BAILIAN_BLOCK_TOKENS = 16
COARSE_TICK_SECONDS = 0.5  # a clock that steps by more hides which request came first
COARSE_SHARE = 0.5  # of requests that share their stamp with another


class BlockLine(msgspec.Struct, gc=False):
    """One request as these traces write it; ids in order, the last block may be partial."""

    timestamp: float
    input_length: int
    output_length: int
    hash_ids: list[int]
    type: str = ""


def read_blocks(
    path: Path, *, first: int, block_tokens: int, seconds_per_unit: float, spread_seed: int | None
) -> Workload:
    """The trace's requests; `first` of them unless 0. Raises `WorkloadError`.

    `spread_seed`: where many share one coarse tick, place them at random inside it.
    """
    chains = Chains()
    allowance = Allowance()
    rows: list[tuple[float, int, BlockLine, tuple[int, ...]]] = []
    for number, line in _lines(path, block_tokens):
        whole = line.input_length // block_tokens
        blocks = chains.extend(ROOT, line.hash_ids[:whole])
        allowance.take(len(blocks))
        rows.append((line.timestamp * seconds_per_unit, number, line, blocks))
        if first and len(rows) == first:
            break
    rows.sort(key=lambda row: row[:2])
    start = rows[0][0] if rows else 0.0
    arrivals = [row[0] - start for row in rows]
    notes = ["outputs carry no ids: a later round finds none of what was generated"]
    tick = coarse_tick(arrivals)
    if tick and spread_seed is None:
        notes.append(f"arrivals stand on a {tick:.3g} s grid: who came first inside it is not told")
    elif tick and spread_seed is not None:
        arrivals = spread(arrivals, tick, spread_seed)
        notes.append(f"arrivals of a {tick:.3g} s grid are spread inside it, seed {spread_seed}")
    requests = (
        SimRequest(
            request_id=f"line-{number}",
            arrived_seconds=arrived,
            prompt_tokens=line.input_length,
            output_tokens=line.output_length,
            blocks=blocks,
            request_class=line.type,
        )
        for arrived, (_, number, line, blocks) in zip(arrivals, rows, strict=True)
    )
    return Workload(path.name, str(path), block_tokens, tuple(requests), notes=tuple(notes))


def _lines(path: Path, block_tokens: int) -> Iterator[tuple[int, BlockLine]]:
    decoder = msgspec.json.Decoder(BlockLine)
    for number, raw in trace_lines(path):
        line = parsed(path, number, raw, decoder)
        if line.input_length < 1 or line.output_length < 0:
            raise refused(path, number, "lengths must be 1 prompt token or more, 0 output or more")
        most = -(-line.input_length // block_tokens)
        if not line.input_length // block_tokens <= len(line.hash_ids) <= most:
            raise refused(
                path,
                number,
                f"{len(line.hash_ids)} ids for {line.input_length} tokens are not blocks of "
                f"{block_tokens}",
                "name the trace's --format, or correct that line",
            )
        yield number, line


def coarse_tick(arrivals: Sequence[float]) -> float:
    """The step of a clock so coarse that most requests share a stamp, in seconds; 0: it is not."""
    stamps = sorted(set(arrivals))
    if len(stamps) < 2 or len(arrivals) - len(stamps) < COARSE_SHARE * len(arrivals):
        return 0.0
    tick = median(later - earlier for earlier, later in pairwise(stamps))
    return tick if tick >= COARSE_TICK_SECONDS else 0.0


def spread(arrivals: Sequence[float], tick_seconds: float, seed: int) -> list[float]:
    """Sorted arrivals at random inside their ticks, uniform, in the order in which they stood."""
    draw = random.Random(seed)
    moved = [arrived + draw.random() * tick_seconds for arrived in arrivals]
    moved.sort()  # ticks are one after the other, so that this sorts inside each
    return moved
