"""A recording's requests as a workload: the same prompts, at the same times, asked of another."""

from __future__ import annotations

from pathlib import Path

import msgspec

from kvready.advisor.whatif.chains import ROOT, Allowance, Chains
from kvready.advisor.whatif.workload import SimRequest, Workload
from kvready.collectors.errors import WorkloadError
from kvready.collectors.names import Surface
from kvready.collectors.recording import read_recording
from kvready.collectors.records import RequestArrived, RequestFinished


class Seen(msgspec.Struct):
    """What a recording tells of its requests."""

    arrivals: dict[tuple[int, str], RequestArrived] = {}
    outputs: dict[tuple[int, str], int] = {}
    untold: int = 0  # arrivals without hashes


def workload_of(path: Path, first: int = 0) -> Workload:
    """The requests that the scheduler was seen to take, `first` of them unless 0.

    Raises `WorkloadError` where it holds none with hashes (nothing below level 3 tells them), and
    `RecordingError` for a file that is no recording.
    """
    recording = read_recording(path)
    seen = Seen()
    for item in recording:
        _take(seen, item.record)
    arrivals = sorted(seen.arrivals.items(), key=lambda kept: kept[1].arrived_seconds)
    if not arrivals:
        raise WorkloadError(
            f"{path} tells of no request with its blocks; record with the in-engine observer, "
            "which sends them"
        )
    block_tokens = arrivals[0][1].block_tokens
    kept = [item for item in arrivals if item[1].block_tokens == block_tokens]
    dropped = len(arrivals) - len(kept)
    kept = kept[: first or len(kept)]
    start = kept[0][1].arrived_seconds
    chains = Chains()
    allowance = Allowance()
    for _, arrived in kept:
        allowance.take(len(arrived.block_hashes))
    requests = tuple(
        _request(key, arrived, seen.outputs.get(key), start, chains) for key, arrived in kept
    )
    notes = [f"recorded {recording.header.provenance}", "no tier holds anything at the start"]
    unknown = sum(key not in seen.outputs for key, _ in kept)
    if unknown:
        notes.append(f"{unknown} requests did not end in it: their output is their limit, or 1")
    if seen.untold:
        notes.append(f"{seen.untold} arrivals without hashes are left out")
    if dropped:
        notes.append(f"{dropped} requests with blocks of another size are left out")
    if recording.damage:
        notes.append(recording.damage)
    return Workload(path.name, str(path), block_tokens, requests, notes=tuple(notes))


def _take(seen: Seen, record: msgspec.Struct) -> None:
    if isinstance(record, RequestArrived) and record.surface is Surface.SCHEDULER:
        if record.block_tokens < 1 or record.prompt_tokens < 1:
            seen.untold += 1
        else:
            seen.arrivals.setdefault((record.rank, record.request_id), record)
    elif isinstance(record, RequestFinished):
        seen.outputs[record.rank, record.request_id] = record.output_tokens


def _request(
    key: tuple[int, str],
    arrived: RequestArrived,
    output_tokens: int | None,
    start_seconds: float,
    chains: Chains,
) -> SimRequest:
    rank, name = key
    whole = arrived.prompt_tokens // arrived.block_tokens
    limit = max(arrived.output_token_limit, 1)
    return SimRequest(
        request_id=f"rank-{rank}/{name}" if rank else name,
        arrived_seconds=arrived.arrived_seconds - start_seconds,
        prompt_tokens=arrived.prompt_tokens,
        output_tokens=limit if output_tokens is None else output_tokens,
        blocks=chains.extend(ROOT, arrived.block_hashes[:whole]),
        request_class=arrived.request_class,
        tenant=arrived.tenant,
    )
