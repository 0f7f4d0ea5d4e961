"""What a roll forward is made of: requests, an engine's bounds, its mover, batches under way."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from kvready.collectors.records import BatchMember, OverlapMode

UNBOUNDED = 1 << 30


class Limits(msgspec.Struct, frozen=True):
    """An engine's bounds on a batch; zero, or None, where unknown, which then does not bind."""

    batch_tokens: int
    batch_requests: int
    free_blocks: int | None
    request_tokens: int = 0  # of one prefill in a batch
    block_tokens: int = 1  # a prefix is found in whole blocks
    overlap: OverlapMode = OverlapMode.BEFORE_ADMISSION
    layers: int = 1
    reserves_output: bool = True  # an admission takes the blocks of the answer as well
    finds_unfinished: bool = True  # what a leader has computed is found before it is done


class Link(msgspec.Struct, frozen=True):
    """The mover as it stands: first in, first out, started some share of a step after the order."""

    busy_seconds: float = 0.0  # from now, with what it has already
    submit_seconds: float = 0.0
    step_share: float = 0.0


class Job(msgspec.Struct):
    """A request as the roll-forward moves it."""

    request_id: str
    prompt_tokens: int
    context_tokens: int  # computed, found or being loaded
    output_left: int
    load_seconds: float  # of the copy that is to be ordered yet; 0: none
    usable_after_seconds: float  # its ordered copies are ready then, counted from now
    running: bool
    blocks_needed: int  # new blocks that its admission takes
    blocks_held: int
    leader: str = ""  # an earlier request that brings its prefix
    promised_tokens: int = 0  # what it finds of its prompt once that one is done
    load_tokens: int = 0  # of the copy that is to be ordered yet, for those who choose by them
    load_hashes: Sequence[int] = ()  # the blocks of those
    idle_blocks: int = 0  # found in HBM with nobody holding them: its admission takes them as well
    family: int = 0  # the first block of its prompt: one who holds it holds what is idle; 0: none
    chain: Sequence[int] = ()  # its prompt's blocks, where it is followed who holds which
    hbm_blocks: int = 0  # of these, found in HBM; then these count, and not `idle_blocks`
    fetch_seconds: float = 0.0  # of the fetch into host memory that is to be ordered yet; 0: none
    late_seconds: float = 0.0  # its load starts so much later than the link says
    unseen_seconds: float = 0.0  # from its load's end until the scheduler sees that
    load_is_ordered: bool = False  # in this roll

    @property
    def holds_nothing(self) -> bool:
        """Whether it waits behind those that an engine which parks them asks first."""
        return not (self.blocks_held or self.load_is_ordered)

    @property
    def prefill_left(self) -> int:
        """Prompt tokens still to compute."""
        return max(0, self.prompt_tokens - self.context_tokens)


class UnderWay(msgspec.Struct, frozen=True):
    """Batches that were planned and have not ended, oldest first; jobs are as before them."""

    batches: Sequence[Sequence[BatchMember]] = ()
    elapsed_seconds: float = 0.0  # since the oldest was planned


class Mark(NamedTuple):
    """A place in another request's prompt: to be told when it is computed up to there."""

    request_id: str
    tokens: int


class Rolled(NamedTuple):
    """Seconds from now; None where that cannot be told."""

    scheduled_seconds: float | None
    first_token_seconds: float | None
    mark_seconds: float | None = None
    horizon_seconds: float = math.inf  # what is later was extrapolated from what was rolled


class Progress:
    """When each prompt is computed how far, in a roll of all requests."""

    __slots__ = ("_ahead", "_rolled_seconds", "_steps", "_token_seconds")

    def __init__(self) -> None:
        self._steps: dict[str, list[tuple[int, float]]] = {}
        self._ahead: dict[str, tuple[int, int]] = {}  # computed of its own, left of those before
        self._rolled_seconds = self._token_seconds = 0.0

    def step(self, request_id: str, tokens: int, now: float) -> None:
        """A prompt is computed up to here now."""
        self._steps.setdefault(request_id, []).append((tokens, now))

    def end(self, now: float, token_seconds: float) -> None:
        """The roll reached its bound: from now on at this pace."""
        self._rolled_seconds, self._token_seconds = now, token_seconds

    def left(self, request_id: str, found: int, ahead: int) -> None:
        """What is computed of a prompt then, after so many tokens of others."""
        self._ahead[request_id] = found, ahead

    def reached_seconds(self, request_id: str, tokens: int) -> float | None:
        """When so many tokens of a prompt are computed; None where that cannot be told."""
        for computed, seconds in self._steps.get(request_id, ()):
            if computed >= tokens:
                return seconds
        if request_id not in self._ahead:
            return None
        found, ahead = self._ahead[request_id]
        return self._rolled_seconds + (ahead + max(0, tokens - found)) * self._token_seconds


class Room(NamedTuple):
    """What a batch has left once those that run have joined it."""

    tokens: int
    requests: int
    free_blocks: int
