"""Where two gate reports differ, in words. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from kvready.advisor.verdicts import GateReport

MAX_DIFFERENCES = 20  # that are named; the rest is counted


def differences(here: Sequence[GateReport], there: Sequence[GateReport]) -> list[str]:
    """What is otherwise in `here` than in `there`, report by report and field by field."""
    found = list(_all(here, there))
    if len(found) > MAX_DIFFERENCES:
        rest = len(found) - MAX_DIFFERENCES
        return [*found[:MAX_DIFFERENCES], f"and {rest} more"]
    return found


def _all(here: Sequence[GateReport], there: Sequence[GateReport]) -> Iterator[str]:
    if len(here) != len(there):
        yield f"{len(here)} reports here, {len(there)} there"
    for one, other in zip(here, there, strict=False):
        yield from _between(str(one.policy), msgspec.to_builtins(one), msgspec.to_builtins(other))


def _between(where: str, one: object, other: object) -> Iterator[str]:
    if isinstance(one, dict) and isinstance(other, dict):
        for key in sorted(one.keys() | other.keys()):
            yield from _between(f"{where}.{key}", one.get(key), other.get(key))
    elif isinstance(one, list | tuple) and isinstance(other, list | tuple):
        if len(one) != len(other):
            yield f"{where}: {len(one)} here, {len(other)} there"
        for number, (mine, theirs) in enumerate(zip(one, other, strict=False)):
            name = mine.get("name", number) if isinstance(mine, dict) else number
            yield from _between(f"{where}[{name}]", mine, theirs)
    elif one != other or type(one) is not type(other):
        yield f"{where}: {one!r} here, {other!r} there"
