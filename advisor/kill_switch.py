"""The kill switch: whatever else is broken, this says OFF. Standard library only.

Anything that holds it is enough: a file that exists, a variable, the API, a signal. It reads no
settings; the file of the running user is watched wherever settings point. A file that cannot be
looked at counts as there: in doubt it is off.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from enum import StrEnum
from pathlib import Path

KILL_VARIABLE = "KVREADY_KILL"  # set to anything but nothing, 0, false, no or off
FILE_NAME = "kill"
RELEASED_WORDS = frozenset({"", "0", "false", "no", "off"})
MAX_NOTE_BYTES = 2_000


class Holder(StrEnum):
    """What may hold the switch."""

    FILE = "file"
    ENVIRONMENT = "environment"
    API = "api"
    SIGNAL = "signal"


class KillSwitch:
    """Watched files, the environment, and what was asked of this process. Any thread may call."""

    def __init__(self, files: Sequence[Path] = ()) -> None:
        """`files`: beside the running user's own; the first of all is where an API kill is kept."""
        self.files = tuple(dict.fromkeys([*files, default_kill_file()]))
        self.failures = 0  # times that a kill or its end could not be written
        self._asked: dict[Holder, str] = {}  # with its reason
        self._lock = threading.Lock()

    @property
    def held_by(self) -> tuple[Holder, ...]:
        """What holds it now; empty: nothing. A look at the disk, some microseconds."""
        held = dict(self._asked)
        if any(_is_there(file) for file in self.files):
            held[Holder.FILE] = ""
        if os.environ.get(KILL_VARIABLE, "").strip().lower() not in RELEASED_WORDS:
            held[Holder.ENVIRONMENT] = ""
        return tuple(holder for holder in Holder if holder in held)

    @property
    def is_active(self) -> bool:
        """Whether every policy is off."""
        return bool(self.held_by)

    def kill(self, reason: str = "", holder: Holder = Holder.API) -> None:
        """Hold it, in this process and in the file, so that a restart finds it held. Idempotent."""
        with self._lock:
            self._asked[holder] = reason
        try:
            kill_by_file(self.files[0], reason)
        except OSError:
            self.failures += 1  # held all the same, until this process ends

    def revive(self) -> tuple[Holder, ...]:
        """Let go of what this process and its own file hold; what still holds it. Idempotent.

        Another file, or a variable, was put there for more than this process: it stays.
        """
        with self._lock:
            self._asked.clear()
        try:
            self.files[0].unlink(missing_ok=True)
        except OSError:
            self.failures += 1  # it still holds
        return self.held_by

    def holding_files(self) -> tuple[Path, ...]:
        """The files that hold it, for the message to whoever wants it revived."""
        return tuple(file for file in self.files if _is_there(file))

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """SIGUSR1 holds it. Main thread only.

        The handler notes and nothing more; `keep_signal` writes the file soon after.
        """
        before = signal.signal(signal.SIGUSR1, self._on_signal)
        try:
            yield
        finally:
            signal.signal(signal.SIGUSR1, before)

    def keep_signal(self) -> None:
        """Write down a kill that came as a signal, once."""
        if Holder.SIGNAL in self._asked and not _is_there(self.files[0]):
            self.kill(self._asked[Holder.SIGNAL], Holder.SIGNAL)

    def _on_signal(self, number: int, frame: object) -> None:
        # No lock: a handler may run while its own thread holds it. One assignment is atomic.
        self._asked[Holder.SIGNAL] = "SIGUSR1"


def default_kill_file() -> Path:
    """The running user's kill file, known without any settings."""
    base = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return Path(base) / "kvready" / FILE_NAME


def kill_by_file(file: Path, reason: str = "") -> None:
    """Hold the switch of every sidecar that watches this file. Raises OSError."""
    file.parent.mkdir(parents=True, exist_ok=True)
    # An empty file holds it: it is made first, and a full disk may refuse the note.
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        with contextlib.suppress(OSError):
            os.write(descriptor, reason.encode()[:MAX_NOTE_BYTES] + b"\n")
    finally:
        os.close(descriptor)


def _is_there(file: Path) -> bool:
    try:
        os.stat(file, follow_symlinks=False)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except (OSError, ValueError):
        return True  # not to be looked at: in doubt, off
    return True
