"""Workloads from files: public traces, and recordings of our own."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path

import msgspec

from kvready.advisor.whatif.azure import COLUMNS, read_lengths_only
from kvready.advisor.whatif.from_recording import workload_of
from kvready.advisor.whatif.mooncake import (
    BAILIAN_BLOCK_TOKENS,
    MOONCAKE_BLOCK_TOKENS,
    read_blocks,
)
from kvready.advisor.whatif.ragpulse import read_contents
from kvready.advisor.whatif.sessions import read_sessions
from kvready.advisor.whatif.trace_lines import trace_lines
from kvready.advisor.whatif.workload import Workload
from kvready.collectors.errors import WorkloadError
from kvready.collectors.recording import FORMAT as RECORDING_FORMAT

CUT_BLOCK_TOKENS = 32  # of traces that name no blocks


class TraceFormat(StrEnum):
    """What a file of requests may be."""

    MOONCAKE = "mooncake"  # also its synthetic and arXiv traces
    BAILIAN = "bailian"  # by its documented fields; untested on its data
    SESSIONS = "sessions"  # kv-cache-tester's, of Claude Code
    RAGPULSE = "ragpulse"
    AZURE = "azure"  # 2023
    RECORDING = "recording"


class Reading(msgspec.Struct, frozen=True):
    """How a file is read. Each reader takes what concerns it."""

    first: int = 0  # requests; 0: all
    seed: int = 0  # of sessions' starts
    spread_seed: int | None = None  # to place requests inside the ticks of a coarse clock
    sessions_per_second: float = 0.1  # Poisson, where the trace tells no starts of sessions
    longest_think_seconds: float | None = None  # None: as recorded, hours included
    lengths: Path | None = None  # of RAGPulse's contents; None: the file beside the trace
    block_tokens: int = CUT_BLOCK_TOKENS  # where the trace names no blocks


def read_workload(
    path: Path, trace_format: TraceFormat | None = None, reading: Reading | None = None
) -> Workload:
    """The requests of a file, in order of arrival. Raises `WorkloadError`, `RecordingError`."""
    reading = Reading() if reading is None else reading
    if reading.first < 0 or reading.block_tokens < 1:
        raise WorkloadError("first must be 0 or more, block_tokens 1 or more")
    known = detected(path) if trace_format is None else TraceFormat(trace_format)
    workload = _read(path, known, reading)
    if not workload.requests:
        raise WorkloadError(f"{path} holds no request; name a trace with at least one")
    return workload


def _read(path: Path, known: TraceFormat, reading: Reading) -> Workload:
    first, block_tokens = reading.first, reading.block_tokens
    if known is TraceFormat.RECORDING:
        return workload_of(path, first)
    if known is TraceFormat.SESSIONS:
        return read_sessions(
            path,
            first=first,
            sessions_per_second=reading.sessions_per_second,
            seed=reading.seed,
            longest_think_seconds=reading.longest_think_seconds,
        )
    if known is TraceFormat.RAGPULSE:
        return read_contents(path, first=first, lengths=reading.lengths, block_tokens=block_tokens)
    if known is TraceFormat.AZURE:
        return read_lengths_only(path, first=first, block_tokens=block_tokens)
    mooncake = known is TraceFormat.MOONCAKE
    return read_blocks(
        path,
        first=first,
        block_tokens=MOONCAKE_BLOCK_TOKENS if mooncake else BAILIAN_BLOCK_TOKENS,
        seconds_per_unit=1e-3 if mooncake else 1.0,
        spread_seed=reading.spread_seed,
    )


def detected(path: Path) -> TraceFormat:
    """What the first line shows the file to be. Raises `WorkloadError`."""
    _, first = next(trace_lines(path), (0, b""))
    if first.decode(errors="replace").strip().split(",") == list(COLUMNS):
        return TraceFormat.AZURE
    try:
        told = msgspec.json.decode(first)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        told = None
    found = _by_fields(told) if isinstance(told, dict) else None
    if found is None:
        raise WorkloadError(
            f"{path} is no trace that kvready knows ({', '.join(TraceFormat)}); name --format if "
            "you know better"
        )
    return found


def _by_fields(told: dict[str, object]) -> TraceFormat | None:
    if told.get("format") == RECORDING_FORMAT:
        return TraceFormat.RECORDING
    if {"block_size", "requests"} <= told.keys():
        return TraceFormat.SESSIONS
    if not {"timestamp", "input_length", "output_length", "hash_ids"} <= told.keys():
        return None
    if isinstance(told["hash_ids"], dict):
        return TraceFormat.RAGPULSE
    return TraceFormat.BAILIAN if "chat_id" in told else TraceFormat.MOONCAKE
