"""Where the parts of something that is wanted in HBM are, at one moment."""

from __future__ import annotations

import msgspec

from kvready.advisor.ranges import Range
from kvready.collectors.records import Tier


class Portion(msgspec.Struct, frozen=True, gc=False):
    """What lies in one tier below HBM."""

    tier: Tier
    payload_bytes: int
    fragments: int  # separate copies that bringing it takes
    tokens: int = 0  # of a prefix; other resources have none


class Holding(msgspec.Struct, frozen=True, gc=False):
    """A prefix or another resource by where it is. A prefix's tokens sum to its prompt's.

    Tokens count from the front: those in HBM, those in lower tiers, those that another request is
    bringing, then those that nobody has and those of which nothing is known.
    """

    hbm_tokens: int = 0
    portions: tuple[Portion, ...] = ()
    in_flight_tokens: int = 0
    in_flight_ready: Range | None = None  # until usable; None: not foreseeable
    missing_tokens: int = 0
    unknown_tokens: int = 0
    missing_bytes: int = 0  # of a resource that cannot be computed
    recomputable: bool = True
    degraded: bool = False  # what is held here may be old: nothing it says is certain
    supported: bool = True

    @property
    def lower_tokens(self) -> int:
        """Tokens in tiers below HBM."""
        return sum([portion.tokens for portion in self.portions])

    @property
    def payload_bytes(self) -> int:
        """Bytes that a load brings."""
        return sum([portion.payload_bytes for portion in self.portions])

    @property
    def prompt_tokens(self) -> int:
        """All tokens."""
        return (
            self.hbm_tokens
            + self.lower_tokens
            + self.in_flight_tokens
            + self.missing_tokens
            + self.unknown_tokens
        )

    @property
    def is_ready(self) -> bool:
        """Whether all of it is in HBM for certain."""
        return not (
            self.portions
            or self.in_flight_tokens
            or self.missing_tokens
            or self.unknown_tokens
            or self.missing_bytes
            or self.degraded
        )
