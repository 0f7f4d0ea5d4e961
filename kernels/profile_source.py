"""The link profile that a setting names: a file of this machine, or one that is published."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from kvready.kernels.machine import refuse_foreign, this_machine
from kvready.kernels.profile import LinkProfile, Machine, Provenance, read_profile
from kvready.kernels.published import PUBLISHED, published_profile
from kvready.kernels.summary import points

PUBLISHED_PREFIX = "published:"
PUBLISHED_NAMES = tuple(PUBLISHED_PREFIX + name for name in PUBLISHED)


class Reference(NamedTuple):
    """The most that a link was seen or said to carry, and whose figure that is."""

    bytes_per_second: float
    origin: str


def profile_from(place: str, here: Machine | None = None) -> LinkProfile:
    """Load `published:NAME` or a file.

    Raises `ProfileError` for one that is absent, damaged, or measured on another machine.
    """
    if place.startswith(PUBLISHED_PREFIX):
        return published_profile(place.removeprefix(PUBLISHED_PREFIX))
    profile = read_profile(Path(place))
    refuse_foreign(profile, here or this_machine(), place)
    return profile


def load_reference(profile: LinkProfile) -> Reference | None:
    """The best quiet curve from host to HBM, at its largest fragment; None where there is none."""
    quiet = [
        curve
        for curve in profile.curves
        if (curve.source, curve.destination, curve.contended) == ("host", "hbm", False)
    ]
    rates = [(points(curve)[-1].middle, curve) for curve in quiet]
    if not rates:
        return None
    best, curve = max(rates, key=lambda rate: rate[0])
    if profile.provenance is Provenance.MEASURED:
        return Reference(best, f"measured on this host ({curve.mover}, {curve.backend})")
    return Reference(best, f"published for {profile.name}, not measured here ({curve.mover})")
