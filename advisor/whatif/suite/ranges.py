"""What the suite takes for granted: a file that was fixed before its first run."""

from __future__ import annotations

from enum import StrEnum
from functools import cache
from importlib.resources import files

import msgspec

from kvready.advisor.whatif.machines import Rates
from kvready.advisor.whatif.summary import CountedFrom


class Kind(StrEnum):
    """What a claim of the paper is to us."""

    INPUT = "input"  # it fixed a constant
    PREDICTION = "prediction"  # it follows from the inputs, or does not
    NOT_TESTABLE = "not testable"


class Claim(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One figure or order of the paper, and how ours is read."""

    name: str
    kind: Kind
    claim: str
    paper: str  # as printed
    low: float | None = None  # what counts as the same
    high: float | None = None
    accepts: str = ""
    unit: str = ""
    measure: str = ""
    of: tuple[str, ...] = ()  # cases, of which the first is divided by the second
    quantity: str = ""  # of an order, smallest first
    factor: float = 1.0  # of an order: the first is below the second times this
    doubt: str = ""  # where the paper disagrees with itself
    why: str = ""


class Unknown(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A condition that is not published; two ends and a middle."""

    low: tuple[int, int] | int | float | str
    middle: tuple[int, int] | int | float | str
    high: tuple[int, int] | int | float | str
    reason: str


class Readings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How figures are taken from runs."""

    ttft_seconds: tuple[float, float, float]
    counted_from: tuple[CountedFrom, CountedFrom]
    in_flight_requests: int
    load_shares: tuple[float, ...]
    low_rate: float
    peak: str

    @property
    def middle(self) -> tuple[float, CountedFrom]:
        """The reading that a single figure is from."""
        return self.ttft_seconds[1], self.counted_from[0]


class Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When a claim counts as met, in words."""

    text: str


class Ranges(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole file."""

    rule: Rule
    corrections: dict[str, str]
    unknowns: dict[str, Unknown]
    designs: dict[str, tuple[tuple[int, ...], ...]]
    readings: Readings
    held_fixed: dict[str, str]
    claims: tuple[Claim, ...]


class Setting(msgspec.Struct, frozen=True):
    """One value of each unknown; its number is the seed of its draws, 0 the middle."""

    number: int
    new_tokens: tuple[int, int]
    mfu: float
    fixed_milliseconds: float
    batch_tokens: int
    hbm_share: float
    rates: Rates
    bundle_tokens: int
    trtllm_pages: str


@cache
def ranges() -> Ranges:
    """The file that ships."""
    data = files("kvready.advisor.whatif").joinpath("suite_ranges.toml").read_bytes()
    return msgspec.toml.decode(data, type=Ranges)


def settings(known: Ranges, design: str) -> tuple[Setting, ...]:
    """All settings of a design, the middle one first."""
    made = []
    for number, signs in enumerate(known.designs[design]):
        values = {
            name: (unknown.low, unknown.middle, unknown.high)[sign + 1]
            for (name, unknown), sign in zip(known.unknowns.items(), signs, strict=True)
        }
        made.append(msgspec.convert({"number": number, **values}, Setting))
    return tuple(made)
