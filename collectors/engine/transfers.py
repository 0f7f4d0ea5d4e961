"""Publishes what a mover does, from the worker process that moves.

Named in the engine's configuration, beside the host tier that it observes:
`"transfer_observer": "kvready.collectors.engine.transfers:observer"`.
"""

from __future__ import annotations

from kvready.collectors.engine.publisher import RecordPublisher, observer_folder
from kvready.collectors.records import (
    CopyMethod,
    LoadChecked,
    LoadFinished,
    LoadStarted,
    Tier,
)

MOVER_ROLE = "mover"


def observer(rank: int, worker: int = 0) -> TransferPublisher | None:
    """The publisher of a data-parallel rank's worker; None while observing is off."""
    folder = observer_folder()
    if folder is None:
        return None
    return TransferPublisher(RecordPublisher(folder, MOVER_ROLE, rank, worker))


class TransferPublisher:
    """Turns a mover's calls into records with exact times."""

    def __init__(self, publisher: RecordPublisher) -> None:
        self._publisher = publisher
        publisher.open()

    def started(self, load_id: int, is_load: bool, started_seconds: float) -> None:
        """A copy was taken up."""
        source, destination = _tiers(is_load)
        self._publisher.publish([LoadStarted(load_id, source, destination, started_seconds)])

    def finished(
        self,
        load_id: int,
        is_load: bool,
        started_seconds: float,
        ready_seconds: float,
        payload_bytes: int,
        fragments: int,
        method: str,
    ) -> None:
        """A copy became usable at its destination."""
        source, destination = _tiers(is_load)
        self._publisher.publish(
            [
                LoadFinished(
                    load_id=load_id,
                    source=source,
                    destination=destination,
                    started_seconds=started_seconds,
                    ready_seconds=ready_seconds,
                    payload_bytes=payload_bytes,
                    fragments=fragments,
                    method=CopyMethod(method),
                )
            ]
        )

    def checked(self, load_id: int, is_load: bool, mismatched: bool) -> None:
        """A copy was compared with per-page copies of the same pages."""
        source, destination = _tiers(is_load)
        self._publisher.publish([LoadChecked(load_id, source, destination, mismatched)])

    def close(self) -> None:
        """The mover ends."""
        self._publisher.close()


def _tiers(is_load: bool) -> tuple[Tier, Tier]:
    return (Tier.HOST, Tier.HBM) if is_load else (Tier.HBM, Tier.HOST)
