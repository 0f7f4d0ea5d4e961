"""Refuses records whose figures no engine can have meant, before anything is computed from them."""

from __future__ import annotations

from typing import get_args, get_type_hints

import msgspec

from kvready.advisor.canary import shares_of
from kvready.collectors.asked import AskedCandidate
from kvready.collectors.records import AnyRecord, BatchPlanned, PoliciesRestored, ReadinessAsked

MAX_SECONDS = 1e11  # both clocks stay below it for three thousand years
MAX_COUNT = 1 << 48  # tokens, bytes and blocks; hashes are no counts


def is_plausible(record: msgspec.Struct) -> bool:
    """Whether every time is a finite number of seconds, and every count is one."""
    times, counts = _FIELDS.get(type(record), ((), ()))
    for name in times:
        seconds = getattr(record, name)
        # NaN fails every comparison.
        if seconds is not None and not -MAX_SECONDS < seconds < MAX_SECONDS:
            return False
    for name in counts:
        count = getattr(record, name)
        if count is not None and not 0 <= count < MAX_COUNT:
            return False
    if isinstance(record, BatchPlanned):
        return all(
            0 <= member.new_tokens < MAX_COUNT and 0 <= member.context_tokens < MAX_COUNT
            for member in record.members
        )
    if isinstance(record, PoliciesRestored):
        return shares_of(record) is not None
    if isinstance(record, ReadinessAsked):
        return all(map(_is_plausible_question, record.candidates))
    return True


def _is_plausible_question(asked: AskedCandidate) -> bool:
    if not (0 <= asked.prompt_tokens < MAX_COUNT and 0 <= asked.rank < MAX_COUNT):
        return False
    resource = asked.resource
    if resource is None:
        return True
    counts = (*resource.payload_bytes.values(), resource.fragments, resource.total_bytes)
    return all(0 <= count < MAX_COUNT for count in counts)


def _fields(kind: type[msgspec.Struct]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    hints = get_type_hints(kind)
    times = tuple(n for n in kind.__struct_fields__ if hints[n] in (float, float | None))
    counts = tuple(
        name
        for name in kind.__struct_fields__
        if name.endswith(("_tokens", "_bytes", "_blocks", "fragments", "_limit"))
        and hints[name] in (int, int | None)
    )
    return times, counts


_FIELDS = {kind: _fields(kind) for kind in get_args(AnyRecord)}
