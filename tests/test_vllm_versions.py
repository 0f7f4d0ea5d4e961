"""Every version's KV events, positional or map, become the records that its fields say."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from streams import FIXTURES, captured_frames

from kvready.advisor.inventory import Inventory
from kvready.collectors.hashing import content_keys, extra_key_hash, text_hash
from kvready.collectors.records import BlocksRemoved, BlocksStored, Tier, TierCleared
from kvready.collectors.vllm import KvEventDecoder, KvRecord
from kvready.collectors.zmq_stream import END_OF_REPLAY

PUBLISHER = "engine"
SAMPLES = FIXTURES / "samples"
VLLM_SAMPLES = sorted(path.stem for path in SAMPLES.glob("vllm_*.json"))
DOCUMENT = Path(__file__).parents[1] / "docs" / "vllm-events.md"
# Positions behind the tag, as published: kept apart from the ones that the decoder uses.
STORED_ORDER = (
    "block_hashes",
    "parent_block_hash",
    "token_ids",
    "block_size",
    "lora_id",
    "medium",
    "lora_name",
    "extra_keys",
    "group_idx",
    "kv_cache_spec_kind",
    "kv_cache_spec_sliding_window",
)
REMOVED_ORDER = ("block_hashes", "medium", "group_idx")
MEDIA = {None: Tier.HBM, "GPU": Tier.HBM, "CPU": Tier.HOST, "STORAGE": Tier.DISK}
STORED: dict[str, Any] = {
    "block_hashes": [11, 2**64 - 1],
    "parent_block_hash": 7,
    "token_ids": [1, 2, 3, 4],
    "block_size": 2,
    "lora_id": 3,
    "medium": "CPU",
    "lora_name": "adapter-a",
    "extra_keys": [["salt"], None],
    "group_idx": 2,
    "kv_cache_spec_kind": "full_attention",
    "kv_cache_spec_sliding_window": None,
}
REMOVED: dict[str, Any] = {"block_hashes": [11, 5], "medium": "CPU", "group_idx": 2}


def named(event: list[Any] | dict[str, Any]) -> dict[str, Any]:
    if isinstance(event, dict):
        return event
    order = {"BlockStored": STORED_ORDER, "BlockRemoved": REMOVED_ORDER}.get(event[0], ())
    return {"type": event[0], **dict(zip(order, event[1:], strict=False))}


def u64(block_hash: int | str | bytes) -> int:
    """A hash as it should come out; JSON shows byte strings in base64."""
    if isinstance(block_hash, str):
        block_hash = base64.b64decode(block_hash)
    return block_hash if isinstance(block_hash, int) else int.from_bytes(block_hash[-8:], "big")


def expected(sequence: int, decoded: list[Any]) -> list[KvRecord]:
    """The records that a message's plain reading asks for."""
    wall, events, rank = decoded
    records: list[KvRecord] = []
    for event in map(named, events):
        head = (PUBLISHER, rank or 0, sequence, wall)
        if event["type"] == "AllBlocksCleared":
            records.append(TierCleared(*head, Tier.HBM))
            continue
        tier = MEDIA[event.get("medium")]
        hashes = tuple(map(u64, event["block_hashes"]))
        group = event.get("group_idx") or 0
        if event["type"] == "BlockRemoved":
            records.append(BlocksRemoved(*head, tier, hashes, group))
            continue
        parent = event["parent_block_hash"]
        session = event.get("session_id")
        records.append(
            BlocksStored(
                *head,
                tier,
                hashes,
                None if parent is None else u64(parent),
                event["block_size"],
                group,
                event.get("lora_name"),
                session_hash=None if session is None else text_hash(session),
            )
        )
    return records


def message(*events: Any, rank: int | None = 0) -> bytes:
    return msgspec.msgpack.encode([5.0, list(events), rank])


def positional(tag: str, fields: dict[str, Any], elements: int) -> list[Any]:
    return [tag, *fields.values()][:elements]


@pytest.mark.parametrize("sample", VLLM_SAMPLES)
def test_a_published_sample_becomes_exactly_its_records(sample: str) -> None:
    shown = json.loads((SAMPLES / f"{sample}.json").read_text())
    _, number, payload = map(bytes.fromhex, shown["frames_hex"])
    assert payload == (SAMPLES / f"{sample}.payload.msgpack").read_bytes()
    decoder = KvEventDecoder(PUBLISHER)
    decoded = decoder.decode(int.from_bytes(number, "big"), payload)
    assert decoded.records == expected(shown["seq"], shown["decoded"])
    assert decoded.records
    assert decoded.lost is None
    assert not decoder.errors
    assert not decoder.unknown_events


def test_the_published_end_of_a_replay_is_read_as_one() -> None:
    shown = json.loads((SAMPLES / "replay_reply_end.json").read_text())
    frames = [bytes.fromhex(frame) for frame in shown["router_to_dealer_frames_hex"]]
    assert frames[-2] == END_OF_REPLAY
    assert frames[0] == frames[-1] == b""


def documented_versions() -> list[tuple[str, int, int]]:
    rows = re.findall(
        r"^\| ([^|]+) \| array \| (\d+) \| (\d+) \|", DOCUMENT.read_text(encoding="utf-8"), re.M
    )
    return [(version, int(stored), int(removed)) for version, stored, removed in rows]


@pytest.mark.parametrize("keys", [False, True])
@pytest.mark.parametrize(("version", "stored_size", "removed_size"), documented_versions())
def test_every_documented_length_is_read_field_by_field(
    version: str, stored_size: int, removed_size: int, keys: bool
) -> None:
    told = dict(list(STORED.items())[: stored_size - 1])
    payload = message(
        positional("BlockStored", STORED, stored_size),
        positional("BlockRemoved", REMOVED, removed_size),
        ["AllBlocksCleared"],
        rank=3,
    )
    decoder = KvEventDecoder(PUBLISHER, with_content_keys=keys)
    decoded = decoder.decode(9, payload)
    stored, removed, cleared = decoded.records
    assert isinstance(stored, BlocksStored)
    assert isinstance(removed, BlocksRemoved)
    assert isinstance(cleared, TierCleared)
    assert (stored.rank, stored.sequence, stored.block_hashes) == (3, 9, (11, 2**64 - 1))
    assert (stored.parent_hash, stored.block_tokens) == (7, 2)
    assert stored.tier is (Tier.HOST if "medium" in told else Tier.HBM)
    assert stored.adapter == told.get("lora_name", "lora-3")
    extra = (extra_key_hash(["salt"]), 0) if "extra_keys" in told else ()
    assert stored.extra_key_hashes == extra
    assert stored.group == told.get("group_idx", 0)
    assert removed.tier is (Tier.HOST if removed_size > 2 else Tier.HBM)
    assert removed.group == (2 if removed_size > 3 else 0)
    assert decoded.lost is None
    assert len(documented_versions()) == 6


@pytest.mark.parametrize("keys", [False, True])
def test_positions_behind_the_last_known_one_are_skipped(keys: bool) -> None:
    decoder = KvEventDecoder(PUBLISHER, with_content_keys=keys)
    plain = decoder.decode(
        0, message(["BlockStored", *STORED.values()], ["BlockRemoved", *REMOVED.values()])
    )
    longer = decoder.decode(
        0,
        message(
            ["BlockStored", *STORED.values(), "REMOTE", {"later": 1}, "alice"],
            ["BlockRemoved", *REMOVED.values(), "REMOTE", [1]],
        ),
    )
    assert longer == plain
    assert longer.lost is None


@pytest.mark.parametrize("keys", [False, True])
def test_positional_event_types_of_other_versions_are_skipped_and_counted(keys: bool) -> None:
    decoder = KvEventDecoder(PUBLISHER, with_content_keys=keys)
    decoded = decoder.decode(0, message(["BlockPinned", [1]], ["BlockRemoved", [1], "GPU"]))
    assert [type(record) for record in decoded.records] == [BlocksRemoved]
    assert decoded.lost is None
    assert decoder.unknown_events == {"BlockPinned": 1}


@pytest.mark.parametrize("keys", [False, True])
def test_the_same_stream_in_either_encoding_says_the_same(keys: bool) -> None:
    """Real captures, their maps written as the arrays that 0.23 would have sent."""
    told: list[KvRecord] = []
    again: list[KvRecord] = []
    maps = KvEventDecoder(PUBLISHER, with_content_keys=keys)
    arrays = KvEventDecoder(PUBLISHER, with_content_keys=keys)
    for capture in ("vllm_kv_events", "vllm_kv_events_bytes_hashes", "vllm_kv_events_offload"):
        for sequence, (_, _, payload) in enumerate(captured_frames(capture)):
            told += map(without_session, maps.decode(sequence, payload).records)
            again += arrays.decode(sequence, as_arrays(payload)).records
    assert again == told
    assert len(told) > 200
    assert any(record.content_keys for record in told if isinstance(record, BlocksStored)) == keys
    assert not arrays.errors


def without_session(record: KvRecord) -> KvRecord:
    """As before 0.30, which sent none."""
    is_store = isinstance(record, BlocksStored)
    return msgspec.structs.replace(record, session_hash=None) if is_store else record


def as_arrays(payload: bytes) -> bytes:
    wall, events, rank = msgspec.msgpack.decode(payload)
    orders = {"BlockStored": STORED_ORDER, "BlockRemoved": REMOVED_ORDER, "AllBlocksCleared": ()}
    arrays = [
        [event["type"], *(event.get(name) for name in orders[event["type"]])] for event in events
    ]
    return msgspec.msgpack.encode([wall, arrays, rank])


def test_an_upgrade_from_arrays_to_maps_and_back_needs_no_restart_of_ours() -> None:
    decoder = KvEventDecoder(PUBLISHER)
    one = message(["BlockStored", *STORED.values()], ["BlockRemoved", *REMOVED.values()])
    other = message({"type": "BlockStored", **STORED}, {"type": "BlockRemoved", **REMOVED})
    decoded = [decoder.decode(0, payload) for payload in (one, other, other, one)]
    assert decoded[1:] == decoded[:1] * 3
    assert len(decoded[0].records) == 2
    assert not decoder.errors


def test_content_keys_need_to_know_the_salts() -> None:
    old = [*positional("BlockStored", {**STORED, "parent_block_hash": None, "medium": "GPU"}, 8)]
    new = {"type": "BlockStored", **STORED, "parent_block_hash": None, "medium": "GPU"}
    decoder = KvEventDecoder(PUBLISHER, with_content_keys=True)
    (blind,) = decoder.decode(0, message(old)).records
    assert isinstance(blind, BlocksStored)
    assert blind.content_keys == ()
    assert decoder.keyless_blocks == 2
    (seeing,) = decoder.decode(1, message(new)).records
    assert isinstance(seeing, BlocksStored)
    salts = [extra_key_hash(["salt"]), 0]
    assert seeing.content_keys == content_keys([1, 2, 3, 4], 2, salts)


def test_a_message_that_names_no_rank_has_its_endpoints() -> None:
    decoder = KvEventDecoder(PUBLISHER, rank=3)
    event = ["BlockStored", *STORED.values()]
    unnamed = decoder.decode(0, msgspec.msgpack.encode([1.0, [event]])).records
    null = decoder.decode(0, message(event, rank=None)).records
    other = decoder.decode(0, message(event, rank=1)).records
    assert [record.rank for record in (*unnamed, *null, *other)] == [3, 3, 1]


@pytest.mark.parametrize(
    ("sample", "words"),
    [
        ("sglang_0.5.6_array", "signed block hash"),
        ("sglang_0.5.9_array", "medium CPU_PINNED"),
        ("sglang_0.5.18_array_salted", "a map where the adapter's name should be"),
        ("sglang_0.5.23_map", "medium CPU_PINNED"),
    ],
)
@pytest.mark.parametrize("keys", [False, True])
def test_sglangs_stream_is_named_by_what_gives_it_away(sample: str, words: str, keys: bool) -> None:
    payload = (SAMPLES / f"{sample}.payload.msgpack").read_bytes()
    decoder = KvEventDecoder(PUBLISHER, with_content_keys=keys)
    decoded = decoder.decode(0, payload)
    assert decoded.lost is not None
    assert any(words in reason and "SGLang" in reason for reason in decoder.errors)


@given(
    field=st.integers(0, len(STORED) - 1),
    value=st.recursive(
        st.none() | st.integers(-(2**63), 2**64 - 1) | st.text(max_size=4) | st.binary(max_size=9),
        lambda inner: st.lists(inner, max_size=3),
    ),
    keys=st.booleans(),
)
def test_no_value_in_any_position_makes_it_raise_or_spoils_the_next_event(
    field: int, value: Any, keys: bool
) -> None:
    event = ["BlockStored", *STORED.values()]
    event[1 + field] = value
    decoder = KvEventDecoder(PUBLISHER, with_content_keys=keys)
    decoded = decoder.decode(0, message(event, ["BlockRemoved", [5], "GPU", 0]))
    assert isinstance(decoded.records[-1], BlocksRemoved)
    inventory = Inventory()
    for record in decoded.records:
        inventory.apply(record)
    assert decoded.lost is None or decoder.errors.total() == 1
