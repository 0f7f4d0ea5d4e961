"""Workloads from files: public traces, and recordings of our own."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path

import msgspec

from kvready.advisor.whatif.mooncake import (
    BAILIAN_BLOCK_TOKENS,
    MOONCAKE_BLOCK_TOKENS,
    read_blocks,
)
from kvready.advisor.whatif.trace_lines import trace_lines
from kvready.advisor.whatif.workload import Workload
from kvready.collectors.errors import WorkloadError


class TraceFormat(StrEnum):
    """What a file of requests may be."""

    MOONCAKE = "mooncake"
    BAILIAN = "bailian"


class Reading(msgspec.Struct, frozen=True):
    """How a file is read. Each reader takes what concerns it."""

    first: int = 0  # requests; 0: all
    spread_seed: int | None = None  # of a coarse clock; None: arrivals stay on its grid


def read_workload(
    path: Path, trace_format: TraceFormat | None = None, reading: Reading | None = None
) -> Workload:
    """The requests of a file, in order of arrival. Raises `WorkloadError`."""
    reading = Reading() if reading is None else reading
    known = detected(path) if trace_format is None else trace_format
    workload = _read(path, known, reading)
    if not workload.requests:
        raise WorkloadError(f"{path} holds no request; name a trace with at least one")
    return workload


def _read(path: Path, trace_format: TraceFormat, reading: Reading) -> Workload:
    mooncake = trace_format is TraceFormat.MOONCAKE
    return read_blocks(
        path,
        first=reading.first,
        block_tokens=MOONCAKE_BLOCK_TOKENS if mooncake else BAILIAN_BLOCK_TOKENS,
        seconds_per_unit=1e-3 if mooncake else 1.0,
        spread_seed=reading.spread_seed,
    )


def detected(path: Path) -> TraceFormat:
    """What the first line shows the file to be. Raises `WorkloadError`."""
    _, first = next(trace_lines(path), (0, b""))
    try:
        fields = msgspec.json.decode(first)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        fields = None
    if isinstance(fields, dict) and {"timestamp", "hash_ids", "input_length"} <= fields.keys():
        return TraceFormat.BAILIAN if "chat_id" in fields else TraceFormat.MOONCAKE
    raise WorkloadError(
        f"{path} is no trace that kvready knows ({', '.join(TraceFormat)}); name --format if you "
        "know better"
    )
