"""The stat logger that vLLM's API server loads by itself: what each request turned out to be.

Installed with kvready, found through the entry point `vllm.stat_logger_plugins`. While
`KVREADY_OBSERVER` is unset or `off` it opens nothing and each call returns at once.
"""

from __future__ import annotations

import atexit
import functools
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vllm.v1.metrics.loggers import StatLoggerBase

from kvready.collectors.engine.frontend_stats import records_of
from kvready.collectors.engine.publisher import RecordPublisher, observer_folder

if TYPE_CHECKING:
    from vllm.config import VllmConfig

FRONTEND_ROLE = "frontend"


class FrontendObserver(StatLoggerBase):
    """One engine's statistics as its API server sees them. Never blocks and never raises."""

    def __init__(self, vllm_config: VllmConfig, engine_index: int = 0) -> None:
        self._engine_index = engine_index
        folder = observer_folder()
        self.publisher = None if folder is None else _publisher(folder, _server_rank(vllm_config))

    def record(
        self,
        scheduler_stats: Any = None,
        iteration_stats: Any = None,
        mm_cache_stats: Any = None,
        engine_idx: int = 0,
        **newer: Any,
    ) -> None:
        """Publish what one iteration tells. Later versions may pass more."""
        publisher = self.publisher
        if publisher is None or iteration_stats is None:
            return
        try:
            records = list(records_of(iteration_stats, self._engine_index, time.time()))
        except Exception as error:  # noqa: BLE001 - nothing here may reach the engine
            publisher.lose(1)
            publisher.count_failure(error)
            return
        publisher.publish(records)

    def log_engine_initialized(self) -> None:
        """Open the socket ahead of the first request."""
        if self.publisher is not None:
            self.publisher.open()


@functools.cache
def _publisher(folder: Path, rank: int) -> RecordPublisher:
    """One socket per API server, however many engines it serves."""
    publisher = RecordPublisher(folder, FRONTEND_ROLE, rank)
    atexit.register(publisher.close)
    return publisher


def _server_rank(vllm_config: Any) -> int:
    """Which of several API servers this is."""
    rank = getattr(getattr(vllm_config, "parallel_config", None), "_api_process_rank", 0)
    return max(rank, 0) if isinstance(rank, int) else 0
