"""Replay requests of the last hour, remembered across restarts of the sidecar.

A replay runs inside the engine's process, so that the bound on it must hold for a sidecar that is
restarted over and over, too. One small file per replay endpoint, replaced whole. It holds times of
the wall clock, since the monotonic one ends with the machine: a clock set back makes a request look
as if it came from the future, which counts as just now. What cannot be read or written is counted
and the bound then holds within this run alone.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable
from hashlib import blake2b
from pathlib import Path

import msgspec

from kvready.collectors.sequence import MAX_ROUNDS_PER_HOUR, ROUND_MEMORY_SECONDS

MAX_FILE_BYTES = 4_096
MAX_FILES_LOOKED_AT = 1_024
FILE_PATTERN = "replay-*.json"

logger = logging.getLogger(__name__)


class _Kept(msgspec.Struct):
    """The file's content."""

    asked_wall_seconds: list[float]


def state_directory(configured: Path | None) -> Path:
    """Where the sidecar keeps what must outlive it."""
    if configured is not None:
        return configured
    base = os.environ.get("XDG_STATE_HOME", "")
    return (Path(base) if base else Path.home() / ".local" / "state") / "kvready"


class ReplayMemory:
    """When one replay endpoint was asked. Times go in and out on the monotonic clock."""

    def __init__(self, directory: Path, endpoint: str) -> None:
        name = blake2b(endpoint.encode(), digest_size=8).hexdigest()
        self.path = directory / f"replay-{name}.json"
        self.failures = 0

    def recall(self) -> list[float]:
        """The requests of the last hour, oldest first."""
        wall, now = time.time(), time.monotonic()
        ages = sorted((max(0.0, wall - asked) for asked in self._read()), reverse=True)
        recent = [now - age for age in ages if age < ROUND_MEMORY_SECONDS]
        return recent[-MAX_ROUNDS_PER_HOUR:]

    def keep(self, asked_seconds: Iterable[float]) -> None:
        """Remember these instead of what was remembered. Never raises for a bad directory."""
        offset = time.time() - time.monotonic()
        kept = _Kept([asked + offset for asked in asked_seconds])
        fresh = self.path.with_suffix(f".{os.getpid()}")
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            fresh.write_bytes(msgspec.json.encode(kept))
            fresh.replace(self.path)
            self._forget_others()
        except OSError as error:
            self._failed(f"cannot be written ({error.strerror or error})")

    def _read(self) -> list[float]:
        try:
            with self.path.open("rb") as file:
                content = file.read(MAX_FILE_BYTES + 1)
            if len(content) > MAX_FILE_BYTES:
                raise ValueError(f"it is larger than {MAX_FILE_BYTES} bytes")
            return msgspec.json.decode(content, type=_Kept).asked_wall_seconds
        except FileNotFoundError:
            return []
        except (OSError, ValueError) as error:  # msgspec's errors are ValueErrors
            self._failed(f"cannot be read ({error})")
            return []

    def _forget_others(self) -> None:
        """Files of endpoints that nobody asked for an hour say nothing any more."""
        oldest = time.time() - ROUND_MEMORY_SECONDS
        found = self.path.parent.glob(FILE_PATTERN)
        for path, _ in zip(found, range(MAX_FILES_LOOKED_AT), strict=False):
            if path.stat().st_mtime < oldest:
                path.unlink(missing_ok=True)

    def _failed(self, reason: str) -> None:
        self.failures += 1
        if self.failures == 1:
            logger.warning(
                "%s %s; replay requests are bounded within this run only: make taps.state_dir "
                "a directory that kvready may write",
                self.path,
                reason,
            )
