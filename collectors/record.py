"""The base of all records."""

from __future__ import annotations

import msgspec


class Record(msgspec.Struct, frozen=True, tag_field="kind", omit_defaults=True, gc=False):
    """Base of all facts. Tagged by class name in snake case, so recordings describe themselves."""
