"""Which key lies in which slot of a disk tier: least recently used goes first."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple


class Presence(Enum):
    """Whether a key can be read now."""

    ABSENT = "absent"
    WRITING = "writing"
    READY = "ready"


@dataclass
class _Held:
    slot: int
    ready: bool = False
    readers: int = 0


class Claim(NamedTuple):
    """A slot to write into, and the key that had to give way (None: none had to)."""

    slot: int
    evicted: bytes | None


class DiskSlots:
    """An index over a fixed number of slots. Never touches the disk."""

    def __init__(self, slots: int) -> None:
        self._free = list(range(slots - 1, -1, -1))
        self._held: OrderedDict[bytes, _Held] = OrderedDict()  # least recently used first

    def __len__(self) -> int:
        return len(self._held)

    def presence(self, key: bytes) -> Presence:
        """Whether the key is there."""
        held = self._held.get(key)
        if held is None:
            return Presence.ABSENT
        return Presence.READY if held.ready else Presence.WRITING

    def touch(self, key: bytes) -> None:
        """The key was used."""
        if key in self._held:
            self._held.move_to_end(key)

    def claim(self, key: bytes) -> Claim | None:
        """A slot for a key that is absent; None if every slot is being written or read."""
        assert key not in self._held
        evicted = None
        if not self._free:
            evicted = self._idle_longest()
            if evicted is None:
                return None
            self._free.append(self._held.pop(evicted).slot)
        slot = self._free.pop()
        self._held[key] = _Held(slot)
        return Claim(slot, evicted)

    def written(self, key: bytes) -> None:
        """A claimed slot holds its key's bytes now."""
        self._held[key].ready = True

    def pin(self, key: bytes) -> int | None:
        """The slot to read a key from, kept until `unpin`; None if it cannot be read."""
        held = self._held.get(key)
        if held is None or not held.ready:
            return None
        held.readers += 1
        self._held.move_to_end(key)
        return held.slot

    def unpin(self, key: bytes) -> None:
        """A read of the key ended."""
        self._held[key].readers -= 1

    def drop(self, key: bytes) -> bool:
        """Forget a key whose bytes cannot be trusted; whether it could have been read until now.

        While others read it the slot stays taken; their reads fail or not on their own.
        """
        held = self._held.get(key)
        if held is None or held.readers:
            return False
        del self._held[key]
        self._free.append(held.slot)
        return held.ready

    def _idle_longest(self) -> bytes | None:
        return next((k for k, held in self._held.items() if held.ready and not held.readers), None)
