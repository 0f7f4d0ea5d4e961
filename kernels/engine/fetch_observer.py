"""The seam through which a disk tier tells someone of its transfers."""

from __future__ import annotations

from typing import Protocol

from kvready.kernels.engine.transfer_observer import load_factory

FETCH_OBSERVER_SETTING = "fetch_observer"


class FetchObserver(Protocol):
    """Told of transfers between host memory and disk. Times are seconds of CLOCK_MONOTONIC.

    `is_fetch` means towards host memory. `started` comes from a disk's thread, the others from the
    scheduler's; none may wait or raise.
    """

    def decided(
        self,
        job: int,
        request_id: str,
        is_fetch: bool,
        tokens: int,
        payload_bytes: int,
        fragments: int,
        decided_seconds: float,
    ) -> None:
        """A transfer was ordered for a request."""
        ...

    def started(self, job: int, is_fetch: bool, started_seconds: float) -> None:
        """The disk took it up."""
        ...

    def finished(
        self,
        job: int,
        is_fetch: bool,
        started_seconds: float,
        ready_seconds: float,
        payload_bytes: int,
        fragments: int,
    ) -> None:
        """It became usable at its destination."""
        ...


def load_fetch_observer(dotted_path: str | None, rank: int) -> FetchObserver | None:
    """Call the factory at `package.module:name` with the rank; None: nobody asked."""
    factory = load_factory(dotted_path, FETCH_OBSERVER_SETTING)
    if factory is None:
        return None
    observer: FetchObserver | None = factory(rank)
    return observer
