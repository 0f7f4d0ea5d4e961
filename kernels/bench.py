"""What a calibration can time: links, each with its curves, and a compute load beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from kvready.kernels.competing import Step
from kvready.kernels.errors import MoveError
from kvready.kernels.pools import Mover, Pools
from kvready.kernels.sweep import CurveKey, Shape


class Timing(NamedTuple):
    """One load. Seconds of CLOCK_MONOTONIC."""

    ordered_seconds: float
    started_seconds: float
    ready_seconds: float


class Bench(Protocol):
    """A link with memory at both ends and movers between them."""

    @property
    def curves(self) -> Sequence[CurveKey]:
        """What it can time, while nothing competes."""
        ...

    def shapes(self, curve: CurveKey) -> Sequence[Shape]:
        """Loads that are worth timing on a curve."""
        ...

    def time(self, curve: CurveKey, shape: Shape) -> Timing:
        """Make one load over bytes that no cache holds. Raises a `KernelError` where it fails."""
        ...

    def conditions(self) -> dict[str, str]:
        """What to know beside its figures."""
        ...

    def close(self) -> None:
        """Give memory, threads and files back. Safe twice."""
        ...


class Compute(Protocol):
    """A compute load that competes while it is resumed, and notes its steps."""

    processes: int
    description: str

    def resume(self) -> None:
        """Compute from now on."""
        ...

    def pause(self) -> None:
        """Compute no more."""
        ...

    def steps(self, since_seconds: float) -> Sequence[Step]:
        """The latest steps, of those that ended since then."""
        ...


def curves_of(movers: Mapping[tuple[str, int], Mover]) -> list[CurveKey]:
    """Movers between two pools, by name and workers, each in both directions."""
    return [
        CurveKey(source, destination, name, mover.backend, workers)
        for (name, workers), mover in movers.items()
        for source, destination in (("host", "hbm"), ("hbm", "host"))
    ]


def wrong_bytes(mover: Mover, pools: Pools) -> MoveError:
    """A mover that brings other bytes has no speed."""
    return MoveError(
        f"{mover.name} ({mover.backend}) brought other bytes than it was told to, with fragments "
        f"of {pools.fragment_bytes} bytes; nothing it does can be trusted, please report this"
    )
