"""Records as an observer sends them: a msgpack list of maps, each tagged by `kind`."""

from __future__ import annotations

import math
import re
from collections import Counter
from typing import Any, get_args

import msgspec

from kvready.collectors.records import AnyRecord

MAX_NAMES = 64  # distinct kinds and reasons counted apart; strangers may choose them
MAX_NAME_CHARACTERS = 80
# A float of msgpack whose exponent is all ones; other bytes may look like one, a number cannot.
MAY_BE_NON_FINITE = re.compile(rb"\xcb[\x7f\xff][\xf0-\xff]|\xca[\x7f\xff][\x80-\xff]")


class RecordBatchDecoder:
    """Decodes observer messages. What a newer observer adds is counted and skipped."""

    def __init__(self) -> None:
        self.unknown_kinds: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        self._decode = msgspec.msgpack.Decoder(list[AnyRecord]).decode
        self._types: dict[str, type[AnyRecord]] = {
            str(kind.__struct_config__.tag): kind for kind in get_args(AnyRecord)
        }

    def decode(self, payload: bytes) -> tuple[list[AnyRecord], str | None]:
        """The records of one message, and why some could not be read (None: all were)."""
        if MAY_BE_NON_FINITE.search(payload) is None:
            try:
                return self._decode(payload), None
            except msgspec.MsgspecError:
                pass  # read again, record by record
        return self._decode_one_by_one(payload)

    def _decode_one_by_one(self, payload: bytes) -> tuple[list[AnyRecord], str | None]:
        try:
            batch = msgspec.msgpack.decode(payload)
        except msgspec.MsgspecError:
            return [], self._error("payload is not msgpack")
        if not isinstance(batch, list):
            return [], self._error("payload is not a list of records: another publisher?")
        records: list[AnyRecord] = []
        problem: str | None = None
        for raw in batch:
            kind = raw.get("kind") if isinstance(raw, dict) else None
            if not isinstance(kind, str):
                problem = self._error("record without a kind")
                continue
            shape = self._types.get(kind)
            if shape is None:
                _count(self.unknown_kinds, kind)
                continue
            if not _is_finite(raw):
                problem = self._error(f"malformed {kind}: a number that is not finite")
                continue
            try:
                records.append(msgspec.convert(raw, shape))
            except msgspec.ValidationError as error:
                problem = self._error(f"malformed {kind}: {error}")
        return records, problem

    def _error(self, reason: str) -> str:
        _count(self.errors, reason)
        return reason


def _is_finite(value: Any) -> bool:
    """Whether every number in a decoded record is one that time and JSON know."""
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, dict):
        return all(map(_is_finite, value.values()))
    return not isinstance(value, list) or all(map(_is_finite, value))


def _count(counter: Counter[str], name: str) -> None:
    name = name[:MAX_NAME_CHARACTERS]
    counter[name if name in counter or len(counter) < MAX_NAMES else "other"] += 1
