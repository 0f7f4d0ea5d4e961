"""The first loads of a run, when all that is known of the link is what it started from."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np

from kvready.advisor.evaluation.gathering import UNTOLD, load_subject
from kvready.advisor.evaluation.samples import Sample
from kvready.advisor.evaluation.scores import interval_score
from kvready.advisor.ledger import Pair, PairState, Target
from kvready.advisor.load_priors import LoadPriors, PriorKind
from kvready.advisor.pipeline import Pipeline
from kvready.collectors.recording import read_recording
from kvready.collectors.records import LoadFinished

FIRST = 50  # per source tier and mover
COPIES = (Target.LOAD, Target.FETCH)

Way = tuple[Target, str, str]  # what is predicted, source tier, mover


class FirstLoads(msgspec.Struct, frozen=True):
    """The first copies of one way, as they were predicted from one start."""

    target: Target
    source: str
    mover: str
    evidence: PriorKind
    starts_from: str
    copies: int
    median_absolute_error_seconds: float
    median_absolute_relative_error: float
    interval_score_seconds: float
    coverage_ratio: float


def ways(samples: Sequence[Sample]) -> dict[Way, int]:
    """How many of a recording's first copies there are to judge, by way."""
    counted: dict[Way, int] = defaultdict(int)
    for sample in samples:
        if sample.target in COPIES:
            counted[sample.target, sample.tier, sample.mover] += 1
    return {way: min(count, FIRST) for way, count in counted.items()}


def first_pairs(path: Path, priors: LoadPriors, wanted: dict[Way, int]) -> dict[Way, list[Pair]]:
    """Replay a recording until so many copies of each way have ended."""
    found: dict[Way, list[Pair]] = defaultdict(list)
    movers: dict[str, LoadFinished] = {}

    def settled(pair: Pair) -> None:
        ended = movers.get(pair.forecast.subject)
        if ended is not None and pair.state is PairState.PAIRED and pair.forecast.target in COPIES:
            found[pair.forecast.target, ended.source, ended.method or UNTOLD].append(pair)

    pipeline = Pipeline(settled, priors)
    for item in read_recording(path):
        record = item.record
        if isinstance(record, LoadFinished):
            movers = {load_subject(record.rank, record.load_id): record}
        pipeline.ingest(item)
        if all(len(found[way]) >= count for way, count in wanted.items()):
            break
    return {way: found[way][:count] for way, count in wanted.items()}


def judge(way: Way, priors: LoadPriors, pairs: Sequence[Pair]) -> FirstLoads:
    """Score one way's first copies; there must be one."""
    target, source, mover = way
    actual = np.array([pair.actual_seconds for pair in pairs], dtype=np.float64)
    p50, low, high = np.array(
        [
            (pair.forecast.p50_seconds, pair.forecast.low_seconds, pair.forecast.high_seconds)
            for pair in pairs
        ]
    ).T
    error = np.abs(actual - p50)
    return FirstLoads(
        target=target,
        source=source,
        mover=mover,
        evidence=priors.kind,
        starts_from=priors.described,
        copies=len(pairs),
        median_absolute_error_seconds=float(np.median(error)),
        median_absolute_relative_error=float(np.median(error / np.maximum(actual, 1e-9))),
        interval_score_seconds=float(interval_score(actual, low, high).mean()),
        coverage_ratio=float(((low <= actual) & (actual <= high)).mean()),
    )
