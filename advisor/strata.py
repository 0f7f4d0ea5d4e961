"""Strata's batches (OSDI 2026): which waiting requests run together, which wait, and why.

Pure: the same code plans in shadow, decides in an engine's hook and drives the simulator. Tokens,
seconds. Where the paper is silent the choice is ours, named in `Settings`, and bounded.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

import msgspec


class LoadBudget(StrEnum):
    """What keeps a batch from loading more than its compute hides."""

    RATIO = "ratio"  # tokens loaded per token computed, as the paper
    TIME = "time"  # predicted load seconds against predicted compute seconds
    ADAPTIVE = "adaptive"  # a ratio that follows the stalls that were seen


class Settings(msgspec.Struct, frozen=True):
    """The paper's thresholds, and ours where it is silent."""

    dedup: bool = True
    balance: bool = True
    decode_fill: bool = False  # off by default: it can hurt
    delay_tokens: int = 100  # paper: beyond so many awaited tokens a request is deferred
    load_ratio: float = 100.0  # paper: tokens loaded per token computed, of a batch
    budget: LoadBudget = LoadBudget.RATIO
    bundle_tokens: int = 1  # ours: a shared load of so many makes a bundle hit
    hold_seconds: float = 30.0  # ours: nobody is deferred for longer in all


class Waiting(msgspec.Struct):
    """A queued request with its match, which cache events keep current."""

    request_id: str
    compute_tokens: int  # of its prompt, neither resident nor to be loaded; at least 1
    load_tokens: int = 0  # to be brought into HBM
    load_hashes: Sequence[int] = ()  # the blocks of those, chained hashes in order
    awaited_tokens: int = 0  # beyond its match, what an earlier request brings
    leader: str = ""  # that request; empty: nobody
    held_seconds: float = 0.0  # deferred so far, in all
    context_tokens: int = 0  # resident or loaded before what it computes
    blocks_needed: int = 0  # of HBM, that its admission takes


class BatchLimits(msgspec.Struct, frozen=True):
    """What is left of an engine's bounds for prefills in this batch; None: does not bind."""

    batch_tokens: int | None = None
    batch_requests: int | None = None
    free_blocks: int | None = None
    request_tokens: int | None = None  # of one request in one batch: chunked prefill
    block_tokens: int = 1


class Reason(StrEnum):
    """Why a request is in the intended batch."""

    HEAD = "head"  # of the queue: always taken, nobody starves
    FITS = "fits"  # its load is hidden by the batch's compute
    BUNDLE = "bundle"  # it shares a load with a member
    LEFTOVER = "leftover"  # deprioritised, taken all the same since the batch was not full


class Admission(msgspec.Struct, frozen=True):
    """One request's part in the batch."""

    request_id: str
    reason: Reason
    new_tokens: int
    load_tokens: int  # without what a member before it loads too


class Plan(msgspec.Struct, frozen=True):
    """One round's decisions."""

    admitted: tuple[Admission, ...]
    deferred: tuple[str, ...]  # wait for a leader; first in the next round's queue
    deprioritised: tuple[str, ...]  # would make the batch loading-bound; keep their order
    load_tokens: int  # shared loads once
    compute_tokens: int
