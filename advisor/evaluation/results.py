"""What an evaluation found, as one structure: the tables and JSON show it."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from kvready.advisor.evaluation.bootstrap import BLOCK_SECONDS, CONFIDENCE, SEED, Between
from kvready.advisor.evaluation.first_loads import FirstLoads
from kvready.advisor.evaluation.scores import Score
from kvready.advisor.ledger import NOMINAL_COVERAGE, PairState, Target

OWN = "kvready"


class GroupKind(StrEnum):
    """By what samples are taken together."""

    ALL = "all"
    TIER = "tier"
    SHAPE = "shape"


class Against(msgspec.Struct, frozen=True):
    """kvready's losses over a rival's: below 1 kvready is better."""

    rival: str
    pinball_p50: Between
    pinball_p90: Between
    interval_score: Between


class Group(msgspec.Struct, frozen=True):
    """Samples that are scored together, the same for every model."""

    kind: GroupKind
    name: str
    samples: int
    median_actual_seconds: float
    scores: dict[str, Score]  # by model
    coverage: Between | None = None  # of kvready's intervals
    against: list[Against] = []
    repeats: int = 0
    repeat_difference_seconds: float | None = None  # median over requests that came twice


class TargetEvaluation(msgspec.Struct, frozen=True):
    """One target."""

    target: Target
    learned: int  # samples in the first thirds
    scored: int
    unscored: dict[PairState, int]  # forecasts of the whole recordings without a timely outcome
    groups: list[Group]
    without_rivals: bool = False  # too little to learn from in the first thirds


class Origin(msgspec.Struct, frozen=True):
    """One recording."""

    name: str
    records: int
    scored_seconds: float
    conditions: dict[str, str]
    damage: str | None = None
    unkept: int = 0


class Evaluation(msgspec.Struct, frozen=True):
    """All of it."""

    evidence: str
    recordings: list[Origin]
    targets: list[TargetEvaluation]
    first_loads: list[FirstLoads] = []
    notes: list[str] = []
    refit: bool = False  # whether rivals learned on
    nominal_coverage_ratio: float = NOMINAL_COVERAGE
    block_seconds: float = BLOCK_SECONDS
    confidence_ratio: float = CONFIDENCE
    seed: int = SEED
