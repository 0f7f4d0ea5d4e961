"""vLLM's KV-event messages as records: what became or stopped being findable, tier by tier.

A usual message takes one typed decode: maps tagged by `type` since 0.24, arrays with the tag first
before; which of the two an engine sends is remembered. Whatever fits neither (an unknown event
type, one broken event, another engine's stream) is read again event by event: what can be told is
told, the rest is counted by reason, and a message from which something was lost says so, since a
lost removal would let a block be called ready that is gone.

SGLang's positional events look like vLLM's (docs/vllm-events.md); what gives them away is a
negative hash, the medium CPU_PINNED, or a map where vLLM has the adapter's name.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence

import msgspec

from kvready.collectors.hashing import (
    NO_PARENT_KEY,
    content_keys,
    extra_key_hash,
    text_hash,
    unsigned_block_hash,
)
from kvready.collectors.records import BlocksRemoved, BlocksStored, Tier, TierCleared
from kvready.collectors.vllm_foreign import (
    MILLISECONDS_FROM,
    SGLANG_MEDIUM,
    by_name,
    foreign_batch,
    foreign_event,
    outline,
)
from kvready.collectors.vllm_wire import (
    EVENT_TYPES,
    STORED_TYPES,
    AnyBatch,
    AnyCleared,
    AnyRemoved,
    AnyStored,
    Batch,
    BatchWithTokens,
    Cleared,
    PositionalBatch,
    PositionalBatchWithTokens,
    PositionalRemoved,
    Removed,
    Stored,
)

MAX_QUARANTINED = 8
MAX_OUTLINE_CHARACTERS = 200
MAX_REASONS = 64
MAX_PARENT_KEYS = 2_000_000  # content keys remembered for chains to come, in two generations

TIER_OF_MEDIUM = {
    None: Tier.HBM,  # vLLM 0.32 always names the medium; its absence means the main cache
    "GPU": Tier.HBM,
    "CPU": Tier.HOST,
    "STORAGE": Tier.DISK,
    "FS": Tier.DISK,
    "OBJ": Tier.REMOTE,
}
WHOLE_PREFIX_KINDS = frozenset({None, "full_attention", "mla_attention", "sink_full_attention"})

Decode = Callable[[bytes], AnyBatch]
KvRecord = BlocksStored | BlocksRemoved | TierCleared


class Quarantined(msgspec.Struct, frozen=True):
    """A message that could not be read whole, and why. Its outline: names and types, no values."""

    sequence: int
    reason: str
    size_bytes: int
    outline: str

    def __str__(self) -> str:
        return f"message {self.sequence}, {self.size_bytes} bytes, {self.outline}: {self.reason}"


class Decoded(msgspec.Struct, gc=False):
    """The records of one message. `lost`: why something in it could not be told, or None."""

    records: list[KvRecord]
    lost: str | None = None


class KvEventDecoder:
    """Decodes one publisher's messages. Never raises for what arrives; counts it instead."""

    def __init__(self, publisher: str, *, rank: int = 0, with_content_keys: bool = False) -> None:
        self.publisher = publisher
        self.rank = rank  # of messages that name none
        self.with_content_keys = with_content_keys
        self.errors: Counter[str] = Counter()
        self.unknown_events: Counter[str] = Counter()
        self.windowed_events = 0  # groups whose blocks alone do not make a prefix
        self.keyless_blocks = 0  # content keys were wanted, the chain's start is not known
        self.quarantine: deque[Quarantined] = deque(maxlen=MAX_QUARANTINED)
        decoder = msgspec.msgpack.Decoder
        self._decode: Decode = (
            decoder(BatchWithTokens).decode if with_content_keys else decoder(Batch).decode
        )
        self._decode_otherwise: Decode = (
            decoder(PositionalBatchWithTokens).decode
            if with_content_keys
            else decoder(PositionalBatch).decode
        )
        self._removed_type: type[AnyRemoved] = Removed
        self._other_removed_type: type[AnyRemoved] = PositionalRemoved
        self._is_sglang = False
        self._keys: dict[int, int] = {}  # content key by block hash, younger generation
        self._older_keys: dict[int, int] = {}

    def forget_chains(self) -> None:
        """Start a new incarnation: block hashes seen so far mean nothing in it."""
        self._keys = {}
        self._older_keys = {}

    def refuse(self, sequence: int, reason: str, size_bytes: int, outline: str = "") -> None:
        """Count what cannot be read, and keep its outline (never its tokens) for whoever looks."""
        _count(self.errors, reason)
        outline = outline[:MAX_OUTLINE_CHARACTERS]
        self.quarantine.append(Quarantined(sequence, reason, size_bytes, outline))

    def decode(self, sequence: int, payload: bytes) -> Decoded:
        """All that one message tells, in the engine's order."""
        try:
            batch = self._decode(payload)
        except msgspec.MsgspecError:
            try:
                batch = self._decode_otherwise(payload)
            except msgspec.MsgspecError:
                return self._decode_by_event(sequence, payload)
            self._expect_the_other_encoding()
        if not abs(batch.ts) <= MILLISECONDS_FROM:  # a NaN neither
            return self._decode_by_event(sequence, payload)
        rank = self.rank if batch.rank is None else batch.rank
        records = self._records(sequence, batch.ts, rank, batch.events, self._removed_type)
        if self._is_sglang:
            self._is_sglang = False
            return self._decode_by_event(sequence, payload)
        return Decoded(records)

    def _expect_the_other_encoding(self) -> None:
        """An engine sends one encoding; after an upgrade it may be the other one."""
        self._decode, self._decode_otherwise = self._decode_otherwise, self._decode
        self._removed_type, self._other_removed_type = self._other_removed_type, self._removed_type

    def _records(
        self,
        sequence: int,
        wall: float,
        rank: int,
        events: Sequence[AnyStored | AnyRemoved | AnyCleared],
        removed_type: type[AnyRemoved],
    ) -> list[KvRecord]:
        publisher = self.publisher
        records: list[KvRecord] = []
        # The engine sends one event per evicted block; a run of them is one fact.
        run: list[int | bytes] = []
        run_of: AnyRemoved | None = None
        for event in events:
            if isinstance(event, removed_type):
                if run_of is not None:
                    if (
                        event.medium == run_of.medium
                        and event.group_idx == run_of.group_idx
                        and event.locality == run_of.locality
                    ):
                        run += event.block_hashes
                        continue
                    records.append(self._removed(sequence, wall, rank, run_of, run))
                run = list(event.block_hashes)
                run_of = event
                continue
            if run_of is not None:
                records.append(self._removed(sequence, wall, rank, run_of, run))
                run_of = None
            if isinstance(event, STORED_TYPES):
                record = self._stored(sequence, wall, rank, event)
                if record is not None:
                    records.append(record)
            else:
                records.append(TierCleared(publisher, rank, sequence, wall, Tier.HBM))
        if run_of is not None:
            records.append(self._removed(sequence, wall, rank, run_of, run))
        return records

    def _removed(
        self, sequence: int, wall: float, rank: int, event: AnyRemoved, hashes: list[int | bytes]
    ) -> BlocksRemoved:
        return BlocksRemoved(
            self.publisher,
            rank,
            sequence,
            wall,
            self._tier(event.medium, event.locality),
            _unsigned(tuple(hashes)),
            event.group_idx or 0,
        )

    def _stored(
        self, sequence: int, wall: float, rank: int, event: AnyStored
    ) -> BlocksStored | None:
        if not event.block_hashes:  # every block of the step was masked out
            return None
        if event.kv_cache_spec_kind not in WHOLE_PREFIX_KINDS:
            self.windowed_events += 1
        hashes = _unsigned(event.block_hashes)
        parent = event.parent_block_hash
        if parent is not None and type(parent) is not int:
            parent = unsigned_block_hash(parent)
        extra: tuple[int, ...] = ()
        if event.extra_keys and any(event.extra_keys):
            extra = tuple([extra_key_hash(keys) for keys in event.extra_keys])
        adapter = event.lora_name
        if adapter is None and event.lora_id is not None:
            adapter = f"lora-{event.lora_id}"  # before 0.14 the engine tells no name
        keys: tuple[int, ...] = ()
        if self.with_content_keys:
            keys = self._content_keys(event, hashes, parent, extra)
        return BlocksStored(
            self.publisher,
            rank,
            sequence,
            wall,
            self._tier(event.medium, event.locality),
            hashes,
            parent,
            event.block_size,
            event.group_idx or 0,
            adapter,
            extra,
            keys,
            text_hash(event.session_id) if event.session_id is not None else None,
        )

    def _tier(self, medium: str | None, locality: str | None) -> Tier:
        if locality == "REMOTE":
            return Tier.REMOTE
        tier = TIER_OF_MEDIUM.get(medium)
        if tier is None:
            if medium == SGLANG_MEDIUM:
                self._is_sglang = True
                return Tier.REMOTE
            _count(self.unknown_events, f"medium {medium}")
            return Tier.REMOTE  # somewhere, but not where attention can reach it
        return tier

    def _content_keys(
        self, event: AnyStored, hashes: tuple[int, ...], parent: int | None, extra: tuple[int, ...]
    ) -> tuple[int, ...]:
        """Keys of the event's blocks; none where a key would rest on something unknown."""
        tokens: list[int] = getattr(event, "token_ids", [])
        parent_key = NO_PARENT_KEY if parent is None else self._key_of(parent)
        whole = event.block_size > 0 and len(tokens) == event.block_size * len(hashes)
        whole = whole and len(extra) in (0, len(hashes))
        if not whole or parent_key is None or event.extra_keys is None:
            # The offload tier names no salts: only what the HBM stores said of a hash holds.
            known = [self._key_of(block_hash) for block_hash in hashes]
            keys = tuple([key for key in known if key is not None])
            if len(keys) == len(hashes):
                return keys
            self.keyless_blocks += len(hashes)
            return ()
        try:
            keys = content_keys(tokens, event.block_size, extra, parent_key)
        except OverflowError:
            self.keyless_blocks += len(hashes)
            return ()
        if len(self._keys) >= MAX_PARENT_KEYS // 2:
            self._older_keys = self._keys
            self._keys = {}
        self._keys.update(zip(hashes, keys, strict=True))
        return keys

    def _key_of(self, block_hash: int) -> int | None:
        key = self._keys.get(block_hash)
        return self._older_keys.get(block_hash) if key is None else key

    def _decode_by_event(self, sequence: int, payload: bytes) -> Decoded:
        """The patient way: each event for itself, so that one bad event spoils no other."""
        size = len(payload)
        try:
            batch = msgspec.msgpack.decode(payload)
        except msgspec.MsgspecError:
            return self._refused(sequence, "payload is not msgpack", size, "")
        reason = foreign_batch(batch)
        if reason is not None:
            return self._refused(sequence, reason, size, outline(batch))
        events: list[Stored | Removed | Cleared] = []
        lost: str | None = None
        for raw in batch[1]:
            event = self._event(raw)
            if isinstance(event, str):
                lost = event
                self.refuse(sequence, event, size, outline(raw))
            elif event is not None:
                events.append(event)
        rank = batch[2] if len(batch) > 2 and isinstance(batch[2], int) else self.rank
        return Decoded(self._records(sequence, float(batch[0]), rank, events, Removed), lost)

    def _event(self, raw: object) -> Stored | Removed | Cleared | str | None:
        """One event typed; None for a type we do not know; a reason where it cannot be read."""
        named = by_name(raw)
        if named is None:
            return "event has no type: not vLLM's (TensorRT-LLM and LMCache have taps of their own)"
        shape = EVENT_TYPES.get(named["type"])
        if shape is None:
            _count(self.unknown_events, named["type"])
            return None
        foreign = foreign_event(named)
        if foreign is not None:
            return foreign
        try:
            return msgspec.convert(named, shape)
        except msgspec.ValidationError as error:
            return f"malformed {named['type']}: {error}"[:MAX_OUTLINE_CHARACTERS]

    def _refused(self, sequence: int, reason: str, size: int, outline: str) -> Decoded:
        self.refuse(sequence, reason, size, outline)
        return Decoded([], reason)


def _unsigned(hashes: tuple[int | bytes, ...]) -> tuple[int, ...]:
    if bytes in map(type, hashes):
        return tuple([unsigned_block_hash(one) for one in hashes])
    return hashes  # type: ignore[return-value]  # no bytes among them


def _count(counter: Counter[str], name: str) -> None:
    """Count under a bounded number of names, which strangers may choose."""
    name = name[:MAX_OUTLINE_CHARACTERS]
    counter[name if name in counter or len(counter) < MAX_REASONS else "other"] += 1
