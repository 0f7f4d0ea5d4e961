"""RAGPulse's trace: prompts as lists of contents, in five parts, with a length for each content.

An id names a content wherever it stands. The contents are laid one after the other in the
documented order and cut into blocks of one size; two prompts share a block if all is the same up to
its end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from kvready.advisor.whatif.chains import ROOT, Allowance, Chains
from kvready.advisor.whatif.trace_lines import (
    MAX_LENGTHS_BYTES,
    open_trace,
    parsed,
    refused,
    trace_lines,
)
from kvready.advisor.whatif.workload import SimRequest, Workload
from kvready.collectors.errors import WorkloadError

LENGTHS_NAMES = ("ragpulse_lengths.json.gz", "ragpulse_lengths.json")
Piece = tuple[int, int, int]  # of a content: its id, from which token, how many


class Contents(msgspec.Struct, gc=False):
    """A prompt's content ids, in the order in which they stand in it."""

    sys_prompt: list[int] = []
    passages_ids: list[int] = []
    history: list[int] = []
    web_search: list[int] = []
    user_input: list[int] = []

    def in_order(self) -> Iterator[int]:
        for part in self.__struct_fields__:
            yield from getattr(self, part)


class ContentLine(msgspec.Struct, gc=False):
    """One request; seconds."""

    timestamp: float | str
    input_length: int
    output_length: int
    hash_ids: Contents
    session_id: str = ""


def read_contents(path: Path, *, first: int, lengths: Path | None, block_tokens: int) -> Workload:
    """The trace's requests, `first` of them unless 0. Raises `WorkloadError`."""
    sizes = _lengths(path, lengths)
    decoder = msgspec.json.Decoder(ContentLine)
    chains = Chains()
    allowance = Allowance()
    requests: list[SimRequest] = []
    for number, raw in trace_lines(path):
        line = parsed(path, number, raw, decoder)
        try:
            arrived = float(line.timestamp)
            pieces = [(content, sizes[content]) for content in line.hash_ids.in_order()]
        except KeyError as error:
            reason = f"content {error} has no length"
            raise refused(path, number, reason, "name the lengths of this trace") from None
        except ValueError:
            reason = f"timestamp {line.timestamp!r} is no number of seconds"
            raise refused(path, number, reason) from None
        told = sum(size for _, size in pieces)
        if not 1 <= told <= line.input_length or line.output_length < 0:
            reason = f"contents of {told} tokens in a prompt of {line.input_length}"
            raise refused(path, number, reason)
        allowance.take(told // block_tokens)
        requests.append(
            SimRequest(
                request_id=f"line-{number}",
                arrived_seconds=arrived,
                prompt_tokens=line.input_length,
                output_tokens=line.output_length,
                blocks=chains.extend(ROOT, cut_contents(pieces, block_tokens)),
            )
        )
        if first and len(requests) == first:
            break
    requests.sort(key=lambda request: request.arrived_seconds)
    start = requests[0].arrived_seconds if requests else 0.0
    requests = [
        msgspec.structs.replace(r, arrived_seconds=r.arrived_seconds - start) for r in requests
    ]
    notes = (
        f"contents are laid in the documented order and cut into blocks of {block_tokens}",
        "tokens between contents (6-12 a prompt in the public trace) have no id: never shared",
        "outputs carry no ids: a later round finds none of what was generated",
    )
    return Workload(path.name, str(path), block_tokens, tuple(requests), notes=notes)


def cut_contents(
    pieces: Iterable[tuple[int, int]], block_tokens: int
) -> Iterator[tuple[Piece, ...]]:
    """Whole blocks, each named by the pieces of contents that fill it."""
    block: list[Piece] = []
    room = block_tokens
    for content, size in pieces:
        at = 0
        while at < size:
            taken = min(room, size - at)
            block.append((content, at, taken))
            at += taken
            room -= taken
            if not room:
                yield tuple(block)
                block, room = [], block_tokens


def _lengths(path: Path, lengths: Path | None) -> dict[int, int]:
    beside = [path.with_name(name) for name in LENGTHS_NAMES]
    found = lengths or next((name for name in beside if name.exists()), None)
    if found is None:
        raise WorkloadError(
            f"{path} tells contents by id and not how long they are; put {LENGTHS_NAMES[0]} beside "
            "it, or name the file with the lengths"
        )
    try:
        with open_trace(found) as file:
            raw = file.read(MAX_LENGTHS_BYTES + 1)
        if len(raw) > MAX_LENGTHS_BYTES:
            raise WorkloadError(f"{found} is longer than {MAX_LENGTHS_BYTES} bytes: name another")
        return msgspec.json.decode(raw, type=dict[int, int])
    except (OSError, EOFError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise WorkloadError(
            f"cannot read lengths from {found} ({error}); it must be one JSON object of content id "
            "to tokens"
        ) from None
