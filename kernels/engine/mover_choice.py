"""Which mover carries out a load: configured once, and switchable in a file while engines run.

The file holds one word. It is looked at when a copy thread takes up a load, never in a step; one
that is bad or gone leaves the configured mover in charge.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from kvready.kernels.workers import GATHER_THREADS

logger = logging.getLogger(__name__)

CHECK_EVERY = 1_000  # gathered loads of which one is checked
MAX_FILE_BYTES = 64
MAX_GATHER_THREADS = 64


class MoverName(StrEnum):
    """The movers of a host tier, as records call them."""

    DMA_PER_PAGE = "dma_per_page"
    GATHER = "gather"


@dataclass(frozen=True)
class MoverSettings:
    """What `kv_connector_extra_config` says of movers."""

    mover: MoverName = MoverName.DMA_PER_PAGE  # of loads
    store_mover: MoverName = MoverName.DMA_PER_PAGE
    mover_file: Path | None = None  # of loads
    check_every: int = CHECK_EVERY
    gather_threads: int = GATHER_THREADS

    @property
    def may_gather(self) -> bool:
        """Whether a gather can ever be asked for."""
        return self.mover_file is not None or MoverName.GATHER in (self.mover, self.store_mover)


def read_settings(extra_config: Mapping[str, Any]) -> MoverSettings:
    """The settings as configured. Raises `ValueError` naming the one that is wrong."""
    file = extra_config.get("mover_file")
    return MoverSettings(
        mover=_mover(extra_config, "mover"),
        store_mover=_mover(extra_config, "store_mover"),
        mover_file=Path(str(file)) if file else None,
        check_every=whole(extra_config, "check_every", CHECK_EVERY, 1 << 31),
        gather_threads=whole(extra_config, "gather_threads", GATHER_THREADS, MAX_GATHER_THREADS),
    )


class MoverFile:
    """The mover of the moment, read again whenever the file has changed."""

    def __init__(self, configured: MoverName, file: Path | None) -> None:
        self._configured = self._current = configured
        self._file = file
        self._seen: tuple[int, ...] | None = None
        self.failures = 0  # looks at which the file was bad or gone

    def current(self) -> MoverName:
        """The mover to use now. One stat where nothing has changed."""
        if self._file is None:
            return self._configured
        try:
            stat = os.stat(self._file)
            seen = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
            if seen != self._seen:
                self._current = MoverName(self._word())
                self._seen = seen
        except (OSError, ValueError) as error:
            self._seen = None
            self._current = self._configured
            self._count(error)
        return self._current

    def _word(self) -> str:
        assert self._file is not None
        with self._file.open("rb") as file:
            return file.read(MAX_FILE_BYTES).decode("utf-8", "replace").strip()

    def _count(self, error: Exception) -> None:
        self.failures += 1
        if self.failures == 1:
            logger.warning(
                "mover_file %s names no mover (%s); loads go by %s; write %s into it",
                self._file,
                error,
                self._configured,
                " or ".join(MoverName),
            )


def _mover(extra_config: Mapping[str, Any], name: str) -> MoverName:
    value = extra_config.get(name, MoverName.DMA_PER_PAGE)
    try:
        return MoverName(value)
    except ValueError:
        raise ValueError(
            f"{name}={value!r} in kv_connector_extra_config: choose {' or '.join(MoverName)}"
        ) from None


def whole(extra_config: Mapping[str, Any], name: str, default: int, most: int) -> int:
    """A whole number of the settings, 1 to `most`. Raises `ValueError` naming it."""
    value = extra_config.get(name, default)
    if type(value) is not int or not 1 <= value <= most:
        raise ValueError(f"{name}={value!r} in kv_connector_extra_config: give 1 to {most}")
    return value
