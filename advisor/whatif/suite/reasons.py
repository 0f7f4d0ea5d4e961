"""Why predictions miss, as far as looked into: which mechanism differs. Nothing was tuned by it."""

from __future__ import annotations

REASONS: dict[str, str] = {}
