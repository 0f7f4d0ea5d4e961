"""What was found by looking into a verdict: which mechanism differs. Nothing was tuned by it."""

from __future__ import annotations

from typing import NamedTuple


class Reason(NamedTuple):
    """Shown beside the verdict that it was found for, and no other."""

    verdict: str
    text: str


REASONS: dict[str, Reason] = {}
