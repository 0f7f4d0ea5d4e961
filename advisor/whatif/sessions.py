"""Agent sessions, one a line: rounds with think times and subagents (kv-cache-tester's traces).

Block ids count within one session; here they become global. The trace has no clock across sessions:
their starts are drawn. A subagent runs beside its parent, whose next think time covers it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from random import Random

import msgspec

from kvready.advisor.whatif.chains import Allowance
from kvready.advisor.whatif.trace_lines import parsed, refused, trace_lines
from kvready.advisor.whatif.workload import SimRequest, Workload
from kvready.collectors.errors import WorkloadError

MAX_SESSION_BLOCKS = 16_000_000  # distinct ids of one session
MAX_NESTING = 8  # subagents of subagents
LOCAL = "local"
MAIN, SUBAGENT = "main", "subagent"


class SessionEntry(msgspec.Struct, gc=False):
    """A request, or a subagent with requests of its own whose clock starts at `t` (seconds)."""

    t: float
    prompt_tokens: int = msgspec.field(name="in", default=0)
    output_tokens: int | None = msgspec.field(name="out", default=None)
    hash_ids: list[int] | None = None
    hash_ranges: list[tuple[int, int]] | None = None  # first and last, both included
    api_time: float | None = None
    think_time: float | None = None  # before it, since the end of the one before
    requests: list[SessionEntry] | None = None
    agent_id: str = ""


class SessionLine(msgspec.Struct, gc=False):
    """One session."""

    id: str
    block_size: int
    requests: list[SessionEntry]
    hash_id_scope: str = LOCAL


class Round(msgspec.Struct, gc=False):
    """One request in its place, in seconds since its session's start."""

    name: str
    entry: SessionEntry
    recorded_seconds: float
    replayed_seconds: float  # the same, but for think times that are cut
    think_seconds: float
    after: str
    kind: str


def read_sessions(
    path: Path,
    *,
    first: int,
    sessions_per_second: float,
    seed: int,
    longest_think_seconds: float | None,
) -> Workload:
    """The sessions' requests, `first` of them unless 0. Raises `WorkloadError`."""
    if not sessions_per_second > 0:
        raise WorkloadError("sessions_per_second must be above 0")
    draw = Random(f"sessions {seed}")
    allowance = Allowance()
    requests: list[SimRequest] = []
    started, block_tokens, numbered, sessions = 0.0, 0, 0, 0
    for number, session in _sessions(path):
        block_tokens = block_tokens or session.block_size
        if session.block_size != block_tokens:
            reason = f"blocks of {session.block_size} tokens after blocks of {block_tokens}"
            raise refused(path, number, reason, "split the file by block_size")
        rounds = sorted(
            _rounds(session.requests, session.id, longest_think_seconds),
            key=lambda round_: round_.replayed_seconds,
        )
        rounds = rounds[: first - len(requests)] if first else rounds
        ids = _SessionIds(path, number, block_tokens, allowance)
        chains = [ids.parts(round_.entry) for round_ in rounds]
        # One object an id, however often its prefix is named.
        names = list(range(numbered, numbered + ids.highest + 1))
        numbered += len(names)
        for round_, parts in zip(rounds, chains, strict=True):
            blocks = tuple(chain.from_iterable(_named(names, part) for part in parts))
            requests.append(_request(round_, started, blocks))
        sessions += 1
        started += draw.expovariate(sessions_per_second)
        if first and len(requests) >= first:
            break
    requests.sort(key=lambda request: request.arrived_seconds)
    notes = [
        f"{sessions} sessions start as a Poisson process of {sessions_per_second:g}/s, "
        f"seed {seed}: the trace has no clock across sessions",
        "ids are local to a session: what sessions share (tools, system prompt) is not seen",
        "outputs carry no ids: a later round finds none of what was generated",
    ]
    if longest_think_seconds is not None:
        notes.append(f"think times are cut to {longest_think_seconds:g} s")
    return Workload(path.name, str(path), block_tokens, tuple(requests), notes=tuple(notes))


def _sessions(path: Path) -> Iterator[tuple[int, SessionLine]]:
    decoder = msgspec.json.Decoder(SessionLine)
    for number, raw in trace_lines(path):
        session = parsed(path, number, raw, decoder)
        if session.hash_id_scope != LOCAL:
            reason = f"hash_id_scope {session.hash_id_scope!r} is not known, only {LOCAL!r} is"
            raise refused(path, number, reason, "use a kvready that knows it")
        if session.block_size < 1:
            raise refused(path, number, "block_size must be 1 or more")
        yield number, session


def _request(round_: Round, started_seconds: float, blocks: tuple[int, ...]) -> SimRequest:
    return SimRequest(
        request_id=round_.name,
        arrived_seconds=started_seconds + round_.replayed_seconds,
        prompt_tokens=round_.entry.prompt_tokens,
        output_tokens=round_.entry.output_tokens or 0,
        blocks=blocks,
        after=round_.after,
        think_seconds=round_.think_seconds,
        request_class=round_.kind,
    )


def _rounds(
    entries: Sequence[SessionEntry],
    name: str,
    longest_think_seconds: float | None,
    origin_seconds: float = 0.0,
    parent: Round | None = None,
    depth: int = 0,
) -> Iterator[Round]:
    """An agent's rounds and its subagents'. `origin_seconds`: where the entries' clock starts."""
    before = parent
    for index, entry in enumerate(entries):
        at = origin_seconds + entry.t
        if entry.hash_ids is not None or entry.hash_ranges is not None:
            told = entry.think_time if before is not parent else None
            think, cut = _thinking(before, at, told, longest_think_seconds)
            since = 0.0 if before is None else before.recorded_seconds
            before = Round(
                name=f"{name}/{index}",
                entry=entry,
                recorded_seconds=at,
                replayed_seconds=max(at - since - cut, 0.0)
                + (0.0 if before is None else before.replayed_seconds),
                think_seconds=think,
                after="" if before is None else before.name,
                kind=SUBAGENT if depth else MAIN,
            )
            yield before
        if entry.requests and depth < MAX_NESTING:
            inner = f"{name}/{entry.agent_id or index}"
            yield from _rounds(entry.requests, inner, longest_think_seconds, at, before, depth + 1)


def _thinking(
    before: Round | None, at_seconds: float, told: float | None, longest: float | None
) -> tuple[float, float]:
    """Think time before a round and what is cut off it; from the gap where it is not told."""
    if before is None:
        return 0.0, 0.0
    gap = at_seconds - before.recorded_seconds
    think = max(gap - (before.entry.api_time or 0.0) if told is None else told, 0.0)
    kept = think if longest is None else min(think, longest)
    return kept, think - kept


class _SessionIds:
    """Checks a session's ids and tells its chains as ranges of them."""

    def __init__(self, path: Path, number: int, block_tokens: int, allowance: Allowance) -> None:
        self._path, self._number = path, number
        self._block_tokens = block_tokens
        self._allowance = allowance
        self.highest = -1

    def parts(self, entry: SessionEntry) -> list[Sequence[int]]:
        """A request's ids, in order."""
        ranges = entry.hash_ranges or []
        ids = entry.hash_ids
        parts: list[Sequence[int]] = [range(low, high + 1) for low, high in ranges]
        if ids is not None:
            parts = [ids]
            ranges = [(min(ids), max(ids))] if ids else []
        if any(not 0 <= low <= high < MAX_SESSION_BLOCKS for low, high in ranges):
            reason = f"an id or a range is not within 0..{MAX_SESSION_BLOCKS - 1}"
            raise refused(self._path, self._number, reason)
        blocks = sum(map(len, parts))
        if entry.prompt_tokens < 1 or blocks * self._block_tokens > entry.prompt_tokens:
            reason = f"{blocks} blocks of {self._block_tokens} in {entry.prompt_tokens} tokens"
            raise refused(self._path, self._number, reason)
        self._allowance.take(blocks)
        self.highest = max([self.highest, *(high for _, high in ranges)])
        return parts


def _named(names: list[int], part: Sequence[int]) -> Iterable[int]:
    if isinstance(part, range):
        return names[part.start : part.stop]
    return map(names.__getitem__, part)
