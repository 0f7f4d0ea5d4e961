"""What is believed of a copy before the engine has made any: curves, and whose figures they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

from kvready.advisor.load_curve import LoadCurve, WorkerLimit
from kvready.collectors.errors import RecordingError
from kvready.collectors.load_start import MAX_NAME_CHARACTERS, CurveStart, LoadStart, PathStart
from kvready.collectors.records import CopyMethod, Tier
from kvready.kernels.errors import ProfileError

# A generic link: what one per-page copy and one byte cost before this machine has been measured.
GENERIC_CURVE = LoadCurve(0.0, 5e-6, 10e9)
# Beyond what a curve says, an engine takes time of its own for a copy.
GENERIC_OVERHEAD_SECONDS = 1e-3
PROFILED_OVERHEAD_SECONDS = 1e-4
GENERIC_FACTOR = 4.0  # machines' links are known to a few times
TYPICAL_COPY_SECONDS = 1e-2
LARGEST_TOLD_FACTOR = 1e3
READ = "read"  # how profiles call the mover of a disk
TIER_NAMES = frozenset(map(str, Tier))
MOVER_NAMES = frozenset(map(str, CopyMethod)) | {READ}


class PriorKind(StrEnum):
    """Where a curve comes from; kinds are never merged."""

    GENERIC = "generic"  # of no machine: nothing was given for this path
    PUBLISHED = "published"  # someone else's machine
    MEASURED = "measured"  # this one, by `kvready calibrate`


class Path(NamedTuple):
    """One mover in one direction. `mover` as link profiles call it."""

    source: str
    destination: str
    mover: str


class Prior(NamedTuple):
    """The curves of one path, alone and beside compute."""

    kind: PriorKind
    quiet: LoadCurve
    contended: LoadCurve
    factor: float = GENERIC_FACTOR  # the engine's copies lie within so many times, either way
    workers: int = 0  # that the curves are of; 0: untold

    def seconds(self, payload_bytes: int, fragments: int, *, beside_compute: bool) -> float:
        """What the copy takes by this curve, in the mover."""
        curve = self.contended if beside_compute else self.quiet
        return curve.seconds(payload_bytes, fragments)

    def factor_after(self, wait_seconds: float) -> float:
        """How far a copy may be off with a wait before it of which no profile says anything.

        In the proportion of that wait and a typical copy: by the copy's own, whatever is surely
        known of its wait, a larger one could seem to be over sooner.
        """
        whole = wait_seconds + TYPICAL_COPY_SECONDS
        return (wait_seconds * GENERIC_FACTOR + TYPICAL_COPY_SECONDS * self.factor) / whole

    @property
    def overhead_seconds(self) -> float:
        """What the engine is taken to add of its own, until its copies tell."""
        if self.kind is PriorKind.GENERIC:
            return GENERIC_OVERHEAD_SECONDS
        return PROFILED_OVERHEAD_SECONDS


GENERIC = Prior(PriorKind.GENERIC, GENERIC_CURVE, GENERIC_CURVE)


class LoadPriors:
    """The prior of every path: a link profile's where it has one, else a generic link's."""

    def __init__(
        self,
        kind: PriorKind = PriorKind.GENERIC,
        name: str = "",
        calibration_id: str = "",
        paths: Mapping[Path, Prior] | None = None,
        budgets: Mapping[Path, Sequence[Prior]] | None = None,
    ) -> None:
        """`paths` have their usual workers, `budgets` all numbers of workers that were timed."""
        self.kind = kind
        self.name = name
        self.calibration_id = calibration_id
        self._paths = dict(paths or {})
        self._budgets = dict(budgets or {})

    @property
    def described(self) -> str:
        """In words, for the conditions of a figure."""
        if self.kind is PriorKind.GENERIC:
            return "generic: no link profile given"
        return f"{self.kind}: {self.name} ({self.calibration_id})"

    def prior(
        self,
        source: Tier,
        destination: Tier,
        method: CopyMethod | None,
        workers: int = 0,
    ) -> Prior:
        """The prior of one mover, with so many workers where the engine tells.

        Of a path that the profile lacks, the generic one.
        """
        for mover in (method or CopyMethod.DMA_PER_PAGE, READ):
            path = Path(source, destination, mover)
            usual = self._paths.get(path)
            if usual is not None:
                return self._with_workers(path, usual, workers) if workers > 0 else usual
        return GENERIC

    def _with_workers(self, path: Path, usual: Prior, workers: int) -> Prior:
        """That number's own curves, or the nearest ones by how the link fills; less sure then."""
        timed = [one for one in self._budgets.get(path, ()) if one.workers > 0] or [usual]
        nearest = min(timed, key=lambda one: (abs(one.workers - workers), one.workers))
        if nearest.workers == workers:
            return nearest
        unsure = nearest._replace(factor=GENERIC_FACTOR, workers=workers)
        rates = [(one.workers, one.quiet.bytes_per_second) for one in timed]
        if len(dict(rates)) < 2:
            return unsure
        limit = WorkerLimit.of_measured(rates)
        return unsure._replace(
            quiet=limit.curve(nearest.quiet, nearest.workers, workers),
            contended=limit.curve(nearest.contended, nearest.workers, workers),
        )

    def told(self) -> LoadStart | None:
        """As a recording carries it, the paths that engines have; None where nothing was given."""
        if self.kind is PriorKind.GENERIC:
            return None
        paths = tuple(
            PathStart(*path, _told(one.quiet), _told(one.contended), one.factor, one.workers)
            for path, usual in self._paths.items()
            if {path.source, path.destination} <= TIER_NAMES and path.mover in MOVER_NAMES
            for one in (usual, *(o for o in self._budgets.get(path, ()) if o is not usual))
        )
        return LoadStart(self.kind, self.name[:MAX_NAME_CHARACTERS], self.calibration_id, paths)

    @classmethod
    def of_told(cls, start: LoadStart | None) -> LoadPriors:
        """Back from `told`. Raises `RecordingError` for figures that no link has."""
        if start is None:
            return NO_PROFILE
        try:
            kind = PriorKind(start.kind)
            paths: dict[Path, Prior] = {}
            budgets: dict[Path, list[Prior]] = {}
            for told in start.paths:
                prior = Prior(
                    kind,
                    _curve(told.quiet),
                    _curve(told.contended),
                    _factor(told.factor),
                    told.workers,
                )
                path = Path(told.source, told.destination, told.mover)
                paths.setdefault(path, prior)
                budgets.setdefault(path, []).append(prior)
        except (ProfileError, ValueError) as error:
            raise RecordingError(
                f"the recording's header says that loads start from {start.name!r}, but its "
                f"figures cannot be used ({error}): upgrade kvready, or record anew"
            ) from None
        return cls(kind, start.name, start.calibration_id, paths, budgets)


def _told(curve: LoadCurve) -> CurveStart:
    return CurveStart(
        curve.overhead_seconds,
        curve.fragment_seconds,
        curve.bytes_per_second,
        curve.first_octave,
        curve.knots,
    )


def _factor(told: float) -> float:
    if not 1.0 < told <= LARGEST_TOLD_FACTOR:
        raise ProfileError(f"factor={told}: copies lie within some times of what is believed")
    return told


def _curve(told: CurveStart) -> LoadCurve:
    return LoadCurve(
        told.overhead_seconds,
        told.fragment_seconds,
        told.bytes_per_second,
        told.first_octave,
        told.knots,
    )


NO_PROFILE = LoadPriors()
