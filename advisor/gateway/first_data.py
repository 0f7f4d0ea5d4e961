"""When a stream brings its first token: lines that only keep it open do not count. Pure."""

from __future__ import annotations

DATA = b"data:"
MAX_LINE_START = len(DATA)


class FirstData:
    """Fed with a stream of server-sent events, piece by piece."""

    def __init__(self) -> None:
        self._start = b""  # of the line that runs, as far as it decides
        self._is_skipping = False  # the rest of a line that brings nothing

    def seen_in(self, part: bytes) -> bool:
        """Whether data has begun by the end of this part."""
        for one in part.splitlines(keepends=True):
            if not self._is_skipping:
                self._start = (self._start + one)[:MAX_LINE_START]
                if self._start == DATA:
                    return True
                self._is_skipping = not DATA.startswith(self._start)
            if one[-1:] in (b"\n", b"\r"):
                self._start, self._is_skipping = b"", False
        return False
