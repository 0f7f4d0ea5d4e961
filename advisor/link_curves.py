"""A link profile turned into what the load model starts from: curves fitted, or costs passed on.

Done once, at start: scikit-learn is loaded only here, and only for measured samples.
"""

from __future__ import annotations

from kvready.advisor.load_curve import LoadCurve
from kvready.advisor.load_priors import GENERIC_CURVE, LoadPriors, Path, Prior, PriorKind
from kvready.kernels.profile import Curve, LinkProfile, Provenance

# Proportions to lean on while a curve has few samples.
LEANING = (1e-5, 1.0 / GENERIC_CURVE.bytes_per_second, 1e-7)  # overhead, a byte, a fragment
SHAPES_FOR_KNOTS = 8  # sizes; below, a cost without corrections


def priors_of(profile: LinkProfile) -> LoadPriors:
    """The prior of each path of a profile, its movers with as many workers as usual."""
    measured = profile.provenance is Provenance.MEASURED
    kind = PriorKind.MEASURED if measured else PriorKind.PUBLISHED
    known = {Path(curve.source, curve.destination, curve.mover) for curve in profile.curves}
    paths = {path: _prior(profile, path, kind) for path in sorted(known)}
    return LoadPriors(kind, profile.name, profile.calibration_id, paths)


def fitted(curve: Curve) -> LoadCurve:
    """One curve as plain floats: its published cost, or what fits its samples."""
    if curve.cost is not None:
        cost = curve.cost
        return LoadCurve(cost.overhead_seconds, cost.fragment_seconds, cost.bytes_per_second)
    from kvready.advisor.load_estimators import AlphaBetaRegressor, KnotRegressor

    sizes = [(s.fragment_bytes * s.fragments, s.fragments) for s in curve.samples]
    regressor = KnotRegressor if len(set(sizes)) >= SHAPES_FOR_KNOTS else AlphaBetaRegressor
    seconds = [s.move_seconds for s in curve.samples]
    return regressor(prior=LEANING).fit(sizes, seconds).to_curve()


def _prior(profile: LinkProfile, path: Path, kind: PriorKind) -> Prior:
    """A mover timed under one condition alone is taken to be the same under the other."""
    quiet = profile.curve(*path)
    contended = profile.curve(*path, contended=True)
    curves = [fitted(curve) for curve in (quiet, contended) if curve is not None]
    return Prior(kind, curves[0], curves[-1])
