"""A link profile turned into what the load model starts from: curves fitted, or costs passed on.

With each curve comes how far an engine's first copies may be from it, from what the profile itself
knows. Independent errors add as squares of logarithms:

* Every engine is within `LARGEST_FACTOR` of its link's curve, either way; beyond, the calibration
  counts as stale.
* Measured: what nine in ten samples of sizes that the fit was not shown stay within. It holds the
  fit's error and the scatter of repeats.
* Published: the largest disagreement between the costs and what else was published of the same
  machine; and `MACHINE_FACTOR`, since nothing says that this machine is like that one.

No profile is taken to say less than none at all.

Done once, at start: scikit-learn is loaded only here, and only for measured samples.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from kvready.advisor.copy_model import LARGEST_FACTOR
from kvready.advisor.ledger import NOMINAL_COVERAGE
from kvready.advisor.load_curve import LoadCurve
from kvready.advisor.load_priors import (
    GENERIC_CURVE,
    GENERIC_FACTOR,
    LoadPriors,
    Path,
    Prior,
    PriorKind,
)
from kvready.kernels.profile import Curve, LinkProfile, Provenance, Sample

# Proportions to lean on while a curve has few samples.
LEANING = (1e-5, 1.0 / GENERIC_CURVE.bytes_per_second, 1e-7)  # overhead, a byte, a fragment
SHAPES_FOR_KNOTS = 8  # sizes; below, a cost without corrections
MAX_BUDGETS = 8  # numbers of workers of one path, those nearest to the usual one
FOLDS = 4  # parts of a curve's sizes, each held out once
MACHINE_FACTOR = 2.0  # between machines of one kind: a generation of a bus, or half of its lanes


def priors_of(profile: LinkProfile) -> LoadPriors:
    """The priors of each path of a profile: with as many workers as usual, and with others."""
    measured = profile.provenance is Provenance.MEASURED
    kind = PriorKind.MEASURED if measured else PriorKind.PUBLISHED
    paths: dict[Path, Prior] = {}
    budgets: dict[Path, list[Prior]] = {}
    for path in sorted({Path(one.source, one.destination, one.mover) for one in profile.curves}):
        usual = profile.curve(*path) or profile.curve(*path, contended=True)
        assert usual is not None
        timed = {one.workers for one in profile.curves if _path(one) == path}
        nearest = sorted(timed, key=lambda count: (abs(count - usual.workers), count))
        budgets[path] = [_prior(profile, path, kind, workers) for workers in nearest[:MAX_BUDGETS]]
        paths[path] = budgets[path][0]
    return LoadPriors(kind, profile.name, profile.calibration_id, paths, budgets)


def fitted(curve: Curve) -> LoadCurve:
    """One curve as plain floats: its published cost, or what fits its samples."""
    if curve.cost is not None:
        cost = curve.cost
        return LoadCurve(cost.overhead_seconds, cost.fragment_seconds, cost.bytes_per_second)
    return _fitted_to(curve.samples)


def held_out_error(samples: Sequence[Sample]) -> float:
    """Of the logarithm: nine in ten samples of sizes not shown to the fit are predicted this well.

    Infinite where there are too few sizes to hold any out.
    """
    sizes = sorted({_size(sample) for sample in samples})
    if len(sizes) < 2:
        return math.inf
    errors: list[float] = []
    for fold in range(min(FOLDS, len(sizes))):
        hidden = set(sizes[fold::FOLDS])
        curve = _fitted_to([sample for sample in samples if _size(sample) not in hidden])
        errors += [
            abs(math.log(sample.move_seconds / curve.seconds(*_size(sample))))
            for sample in samples
            if _size(sample) in hidden
        ]
    errors.sort()
    return errors[min(math.ceil(NOMINAL_COVERAGE * (len(errors) + 1)), len(errors)) - 1]


def _size(sample: Sample) -> tuple[int, int]:
    """Bytes and fragments."""
    return sample.fragment_bytes * sample.fragments, sample.fragments


def _fitted_to(samples: Sequence[Sample]) -> LoadCurve:
    from kvready.advisor.load_estimators import AlphaBetaRegressor, KnotRegressor

    sizes = [_size(sample) for sample in samples]
    regressor = KnotRegressor if len(set(sizes)) >= SHAPES_FOR_KNOTS else AlphaBetaRegressor
    seconds = [sample.move_seconds for sample in samples]
    return regressor(prior=LEANING).fit(sizes, seconds).to_curve()


def _path(curve: Curve) -> Path:
    return Path(curve.source, curve.destination, curve.mover)


def _prior(profile: LinkProfile, path: Path, kind: PriorKind, workers: int) -> Prior:
    """A mover timed under one condition alone is taken to be the same under the other."""
    told = [one for one in profile.curves if _path(one) == path and one.workers == workers]
    told.sort(key=lambda one: one.contended)
    curves = [fitted(curve) for curve in told]
    if kind is PriorKind.MEASURED:
        own = [max(held_out_error(curve.samples) for curve in told)]
    else:
        own = [_claimed_error(profile), math.log(MACHINE_FACTOR)]
    off = math.hypot(math.log(LARGEST_FACTOR), *own)
    return Prior(kind, curves[0], curves[-1], math.exp(min(off, math.log(GENERIC_FACTOR))), workers)


def _claimed_error(profile: LinkProfile) -> float:
    """Of the logarithm: how far what follows from a profile is from what was published beside."""
    pairs = [(claim.ours, claim.published) for claim in profile.claims]
    return max((abs(math.log(one / other)) for one, other in pairs if one > 0 < other), default=0.0)
