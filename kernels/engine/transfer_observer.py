"""The seam through which a mover tells someone when its copies start and end.

Kernels know nothing of collectors: whoever wants the times names a factory by dotted path in the
engine's own configuration, and the mover calls it once per worker.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, Protocol

OBSERVER_SETTING = "transfer_observer"


class TransferObserver(Protocol):
    """Told of each copy, from the thread that makes it. Times are seconds of CLOCK_MONOTONIC."""

    def started(self, load_id: int, is_load: bool, started_seconds: float) -> None:
        """A copy was taken up; `is_load` means towards HBM."""
        ...

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
        ...

    def checked(self, load_id: int, is_load: bool, mismatched: bool) -> None:
        """Told before a copy ends: its bytes were compared, and repaired if they differed."""
        ...

    def close(self) -> None:
        """The mover ends. Safe twice."""
        ...


def load_observer(dotted_path: str | None, rank: int, worker: int = 0) -> TransferObserver | None:
    """Call the factory at `package.module:name`; None: nobody asked.

    `rank` is the engine's among its data-parallel peers, `worker` this process's within it.
    """
    factory = load_factory(dotted_path, OBSERVER_SETTING)
    if factory is None:
        return None
    observer: TransferObserver | None = factory(rank, worker)
    return observer


def load_factory(dotted_path: str | None, setting: str) -> Callable[..., Any] | None:
    """What lies at `package.module:name`. Raises `ValueError` naming the setting."""
    if not dotted_path:
        return None
    module_name, colon, name = dotted_path.partition(":")
    try:
        if not colon:
            raise ImportError("no colon between module and name")
        factory: Callable[..., Any] = getattr(importlib.import_module(module_name), name)
    except (ImportError, AttributeError) as error:
        raise ValueError(
            f"{setting}={dotted_path!r} in kv_connector_extra_config cannot be loaded "
            f"({error}); write it as package.module:factory, or remove it"
        ) from error
    return factory
