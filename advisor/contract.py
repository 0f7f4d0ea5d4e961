"""The readiness contract: what may be asked, and what is answered. See docs/readiness.md.

These structs are the JSON that travels over HTTP and the socket, and what `ask` takes and returns
in process. The published schema is generated from them.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import Meta

from kvready.advisor.decision import BreakEven, Decision, Reason, Tolerates
from kvready.advisor.estimates import Interference
from kvready.advisor.ranges import Range
from kvready.advisor.ways import Way
from kvready.collectors.records import Tier

CONTRACT_VERSION = "1"
MAX_CANDIDATES = 1_000
MAX_HASHES_PER_CANDIDATE = 65_536
MAX_HASHES = 131_072  # of all candidates of one call, keys made of their tokens included
MAX_TOKENS = 1 << 21  # token ids of all candidates of one call
MAX_NAME_CHARACTERS = 512
MAX_BYTES = 1 << 50
LARGEST_HASH = (1 << 64) - 1

Name = Annotated[str, Meta(max_length=MAX_NAME_CHARACTERS)]
Count = Annotated[int, Meta(ge=0, le=1 << 40)]
Size = Annotated[int, Meta(ge=0, le=MAX_BYTES)]
Ratio = Annotated[float, Meta(ge=0, le=1e6)]
Hashes = Annotated[tuple[int, ...], Meta(max_length=MAX_HASHES_PER_CANDIDATE)]
TokenId = Annotated[int, Meta(ge=0, le=(1 << 32) - 1)]


class ResourceKind(StrEnum):
    """What a resource is; it takes the same path whatever it is."""

    LORA_ADAPTER = "lora_adapter"
    CHECKPOINT = "checkpoint"
    WEIGHTS = "weights"


class Resource(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Something other than a KV prefix that exists but may not be ready."""

    kind: ResourceKind
    payload_bytes: dict[Tier, Size]  # by the nearest tier that each part is in
    fragments: Annotated[int, Meta(ge=1, le=1 << 32)] = 1  # contiguous copies that it falls into
    total_bytes: Size = 0  # 0: the tiers named hold all of it


class Tolerance(Tolerates, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The most that the caller accepts for a load; what is left out is accepted whatever it is."""

    sm_share: Annotated[float, Meta(ge=0, le=1)] | None = None
    prefill_slowdown: Ratio | None = None
    decode_slowdown: Ratio | None = None


class Candidate(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """One thing whose readiness is asked. Exactly one of the first four members names it."""

    request_id: Name | None = None
    block_hashes: Hashes | None = None
    token_ids: Annotated[tuple[TokenId, ...], Meta(max_length=MAX_TOKENS)] | None = None
    resource: Resource | None = None
    id: Name = ""  # comes back with the answer
    prompt_tokens: Count = 0  # of `block_hashes`; 0: as many as the blocks hold
    rank: Annotated[int, Meta(ge=0, le=1 << 16)] = 0
    adapter: Name = ""  # LoRA under which `token_ids` run
    cache_salt: Name = ""  # of `token_ids`
    deadline_seconds: Annotated[float, Meta(ge=0, le=1e6)] | None = None  # from now
    tolerates: Tolerance | None = None


class Question(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A call."""

    candidates: Annotated[tuple[Candidate, ...], Meta(min_length=1, max_length=MAX_CANDIDATES)]


class Evidence(StrEnum):
    """Where the figures come from; kinds are never mixed."""

    MEASURED = "measured"  # from this engine's own outcomes
    PUBLISHED = "published"
    SIMULATED = "simulated"
    ASSUMED = "assumed"  # no outcome has been seen yet: as wide as ignorance


class InTime(StrEnum):
    """Whether it is ready by the deadline."""

    YES = "yes"  # the whole interval lies before it
    NO = "no"  # the whole interval lies behind it
    UNSURE = "unsure"


class Tokens(msgspec.Struct, frozen=True, gc=False):
    """A prompt's tokens by where their KV is; they sum to the prompt."""

    hbm: int = 0
    host: int = 0
    disk: int = 0
    remote: int = 0
    in_flight: int = 0  # another request computes or loads them
    missing: int = 0
    unknown: int = 0  # no tap tells; this is not missing


class Answer(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What is known of one candidate. Seconds from the moment of the answer."""

    id: str
    decision: Decision
    reason: Reason
    ready_seconds: Range | None  # of the way decided on; None: no number is better than a guess
    in_time: InTime | None  # None: no deadline was named, or there is no range
    tokens: Tokens | None  # None: of a resource, or not known at all
    degraded: bool  # a tap has lost something: what is held may be old
    ways: tuple[Way, ...]
    not_included: tuple[str, ...]  # stages that nothing is known of: their seconds are missing
    break_even: BreakEven | None
    interference: Interference | None  # of the load; None inside: not measured
    tolerated: bool | None  # None: not known, or no bound was named
    nominal_coverage: float
    model_version: str
    calibration_id: str | None  # the link profile; None: none is loaded
    evidence: Evidence


class Answers(msgspec.Struct, frozen=True):
    """The answers, in the order of the candidates."""

    answers: tuple[Answer, ...]
    ingest: int  # the record after which they hold; a replay gives the same bytes there
    contract_version: str = CONTRACT_VERSION
