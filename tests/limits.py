"""Resource limits of this process, for a while."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def limited(kind: int, size: int) -> Iterator[None]:
    """Set a limit; lift it before the test ends, whose report may go to a long file."""
    before = resource.getrlimit(kind)
    resource.setrlimit(kind, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(kind, before)
