"""vLLM's KV-event messages become records: real captures against a plain untyped reading."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from streams import captured_frames

from kvready.collectors.hashing import content_keys, extra_key_hash, text_hash
from kvready.collectors.records import BlocksRemoved, BlocksStored, Tier, TierCleared
from kvready.collectors.vllm import (
    MAX_QUARANTINED,
    MAX_REASONS,
    KvEventDecoder,
    KvRecord,
)

CAPTURES = [
    "vllm_kv_events",
    "vllm_kv_events_bytes_hashes",
    "vllm_kv_events_offload",
    "vllm_kv_events_offload_small_cpu",
    "engine_kv_events",
]
PUBLISHER = "engine"


def stored(**changes: Any) -> dict[str, Any]:
    """A BlockStored as vLLM 0.32 sends it, changed as told."""
    event = {
        "type": "BlockStored",
        "block_hashes": [11, 2**64 - 1],
        "parent_block_hash": None,
        "token_ids": [1, 2, 3, 4],
        "block_size": 2,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
        "extra_keys": [None, None],
        "group_idx": 0,
        "kv_cache_spec_kind": "full_attention",
    }
    return {**event, **changes}


def removed(*hashes: int, **changes: Any) -> dict[str, Any]:
    event = {"type": "BlockRemoved", "block_hashes": list(hashes), "medium": "GPU", "group_idx": 0}
    return {**event, **changes}


def message(*events: Any, rank: int | None = 0, wall: float = 5.0) -> bytes:
    return msgspec.msgpack.encode([wall, list(events), rank])


def decode(*events: Any, keys: bool = False) -> list[KvRecord]:
    return KvEventDecoder(PUBLISHER, with_content_keys=keys).decode(7, message(*events)).records


def unsigned(block_hash: int | bytes) -> int:
    return int.from_bytes(block_hash[-8:], "big") if isinstance(block_hash, bytes) else block_hash


@pytest.mark.parametrize("keys", [False, True])
@pytest.mark.parametrize("capture", CAPTURES)
def test_a_capture_says_what_an_untyped_reading_of_it_says(capture: str, keys: bool) -> None:
    decoder = KvEventDecoder(PUBLISHER, with_content_keys=keys)
    told: list[tuple[Any, ...]] = []
    wanted: list[tuple[Any, ...]] = []
    for _, number, payload in captured_frames(capture):
        sequence = int.from_bytes(number, "big")
        decoded = decoder.decode(sequence, payload)
        assert decoded.lost is None
        for record in decoded.records:
            assert not isinstance(record, TierCleared)
            assert record.sequence == sequence
            parent = record.parent_hash if isinstance(record, BlocksStored) else None
            size = record.block_tokens if isinstance(record, BlocksStored) else None
            told += [
                (type(record).__name__, record.tier.value, one, parent, size)
                for one in record.block_hashes
            ]
        wall, events, rank = msgspec.msgpack.decode(payload)
        assert all(record.published_wall_seconds == wall for record in decoded.records)
        assert all(record.rank == rank for record in decoded.records)
        for event in events:
            tier = {"GPU": "hbm", "CPU": "host"}[event["medium"]]
            is_store = event["type"] == "BlockStored"
            parent = event["parent_block_hash"] if is_store else None
            wanted += [
                (
                    "BlocksStored" if is_store else "BlocksRemoved",
                    tier,
                    unsigned(one),
                    None if parent is None else unsigned(parent),
                    event["block_size"] if is_store else None,
                )
                for one in event["block_hashes"]
            ]
    assert told == wanted
    assert not decoder.errors
    assert not decoder.unknown_events


def test_no_token_id_survives_decoding() -> None:
    secret = 123_456_789
    event = stored(token_ids=[secret] * 4)
    for keys in (False, True):
        decoder = KvEventDecoder(PUBLISHER, with_content_keys=keys)
        records = decoder.decode(0, message(event)).records
        kept = msgspec.msgpack.encode(records)
        assert msgspec.msgpack.encode(secret) not in kept
    decoder.decode(0, message({**event, "block_hashes": None}, [secret] * 4))
    assert str(secret) not in repr(decoder.quarantine)


def test_a_store_keeps_adapter_group_salt_and_session_as_names_or_hashes() -> None:
    (record,) = decode(
        stored(
            lora_name="adapter-a",
            group_idx=2,
            extra_keys=[["adapter-a", "salt"], ["adapter-a"]],
            session_id="alice",
        )
    )
    assert isinstance(record, BlocksStored)
    assert (record.adapter, record.group) == ("adapter-a", 2)
    assert record.block_hashes == (11, 2**64 - 1)
    assert record.extra_key_hashes == (
        extra_key_hash(["adapter-a", "salt"]),
        extra_key_hash(["adapter-a"]),
    )
    assert record.session_hash == text_hash("alice")


def test_no_extra_keys_leave_no_extra_hashes() -> None:
    (record,) = decode(stored())
    assert isinstance(record, BlocksStored)
    assert record.extra_key_hashes == ()
    (record,) = decode(stored(extra_keys=[["salt"], None]))
    assert isinstance(record, BlocksStored)
    assert record.extra_key_hashes == (extra_key_hash(["salt"]), 0)


@pytest.mark.parametrize(
    ("medium", "locality", "tier"),
    [
        ("GPU", None, Tier.HBM),
        (None, None, Tier.HBM),
        ("CPU", None, Tier.HOST),
        ("CPU", "LOCAL", Tier.HOST),
        ("STORAGE", None, Tier.DISK),
        ("STORAGE", "REMOTE", Tier.REMOTE),
        ("CPU", "REMOTE", Tier.REMOTE),
    ],
)
def test_media_map_to_tiers(medium: str | None, locality: str | None, tier: Tier) -> None:
    records = decode(
        stored(medium=medium, locality=locality), removed(1, medium=medium, locality=locality)
    )
    assert [getattr(record, "tier", None) for record in records] == [tier, tier]


def test_a_medium_of_a_later_version_is_counted_and_is_never_hbm() -> None:
    decoder = KvEventDecoder(PUBLISHER)
    (record,) = decoder.decode(0, message(stored(medium="CXL"))).records
    assert record.tier is Tier.REMOTE
    assert decoder.unknown_events["medium CXL"] == 1


def test_removals_in_a_row_are_one_fact_and_keep_their_order_among_stores() -> None:
    records = decode(removed(1), removed(2), stored(), removed(3), removed(4, medium="CPU"))
    kinds = [(type(record).__name__, getattr(record, "block_hashes", ())) for record in records]
    assert kinds == [
        ("BlocksRemoved", (1, 2)),
        ("BlocksStored", (11, 2**64 - 1)),
        ("BlocksRemoved", (3,)),
        ("BlocksRemoved", (4,)),
    ]


def test_clearing_means_hbm() -> None:
    (record,) = decode({"type": "AllBlocksCleared"})
    assert isinstance(record, TierCleared)
    assert record.tier is Tier.HBM


def test_an_offload_placeholder_is_a_block_of_unknown_size() -> None:
    (record,) = decode(stored(block_hashes=[9], token_ids=[], block_size=0, medium="CPU"))
    assert isinstance(record, BlocksStored)
    assert (record.block_tokens, record.parent_hash, record.tier) == (0, None, Tier.HOST)


def test_later_fields_and_events_are_skipped_and_counted_without_loss() -> None:
    decoder = KvEventDecoder(PUBLISHER)
    payload = msgspec.msgpack.encode(
        [1.0, [stored(temperature=3), {"type": "BlockPinned"}, removed(1)], 0, "later"]
    )
    decoded = decoder.decode(0, payload)
    assert [type(record) for record in decoded.records] == [BlocksStored, BlocksRemoved]
    assert decoded.lost is None
    assert decoder.unknown_events == Counter({"BlockPinned": 1})


def test_one_broken_event_spoils_no_other_and_is_told_as_a_loss() -> None:
    decoder = KvEventDecoder(PUBLISHER)
    decoded = decoder.decode(3, message(removed(1), {"type": "BlockRemoved"}, removed(2)))
    assert [record.block_hashes for record in decoded.records if isinstance(record, BlocksRemoved)]
    assert decoded.lost is not None
    assert "BlockRemoved" in decoded.lost
    assert decoder.errors.total() == 1
    assert decoder.quarantine[0].sequence == 3


@pytest.mark.parametrize(
    ("payload", "words"),
    [
        (b"\xc1", "not msgpack"),
        (b"", "not msgpack"),
        (msgspec.msgpack.encode({"events": []}), "not a vLLM"),
        (msgspec.msgpack.encode([1.0, {"events": []}]), "not a vLLM"),
        (msgspec.msgpack.encode(["now", []]), "time is not a number"),
        (msgspec.msgpack.encode([1.7e12, [], 0]), "Mooncake"),
        (message(stored(block_hashes=[-5])), "SGLang"),
        (message(["BlockStored", [-1], None, [1], 1, None]), "SGLang"),
        (message({"event_id": 1, "data": {"type": "created"}}), "TensorRT-LLM"),
    ],
)
def test_another_engines_stream_is_refused_with_a_reason(payload: bytes, words: str) -> None:
    decoder = KvEventDecoder(PUBLISHER)
    decoded = decoder.decode(0, payload)
    assert decoded.records == []
    assert decoded.lost is not None
    assert words in decoded.lost
    assert list(decoder.errors) == [decoded.lost]


@given(payload=st.binary(max_size=200))
def test_no_bytes_make_it_raise(payload: bytes) -> None:
    KvEventDecoder(PUBLISHER, with_content_keys=True).decode(0, payload)


JSON_LIKE = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.text(max_size=5)
    | st.floats()
    | st.binary(max_size=9),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(
    field=st.sampled_from(sorted(stored())),
    value=JSON_LIKE,
    keys=st.booleans(),
)
def test_no_value_of_any_field_makes_it_raise(field: str, value: Any, keys: bool) -> None:
    decoder = KvEventDecoder(PUBLISHER, with_content_keys=keys)
    decoded = decoder.decode(0, message(stored(**{field: value}), removed(1)))
    for record in decoded.records:
        msgspec.msgpack.encode(record)


def test_what_is_kept_of_refused_messages_is_bounded() -> None:
    decoder = KvEventDecoder(PUBLISHER)
    for number in range(500):
        decoder.decode(number, message({"type": f"Unknown{number}"}, {"type": "BlockStored"}))
        decoder.refuse(number, f"reason {number}", 1)
    assert len(decoder.unknown_events) <= MAX_REASONS + 1
    assert len(decoder.errors) <= MAX_REASONS + 1
    assert len(decoder.quarantine) == MAX_QUARANTINED


def test_content_keys_are_equal_for_equal_prompts_however_they_are_cut() -> None:
    tokens = list(range(12))
    whole = content_keys(tokens, 2)
    head, tail = tokens[:4], tokens[4:]
    decoder = KvEventDecoder(PUBLISHER, with_content_keys=True)
    events = [
        stored(block_hashes=[1, 2], token_ids=head),
        stored(
            block_hashes=[3, 4, 5, 6], parent_block_hash=2, token_ids=tail, extra_keys=[None] * 4
        ),
    ]
    records = decoder.decode(0, message(*events)).records
    keys = [key for record in records for key in getattr(record, "content_keys", ())]
    assert tuple(keys) == whole
    assert len(set(whole)) == 6


def test_content_keys_differ_by_token_order_salt_and_parent() -> None:
    salted = content_keys([1, 2, 3, 4], 2, [extra_key_hash(["salt"]), 0])
    plain = content_keys([1, 2, 3, 4], 2)
    swapped = content_keys([2, 1, 3, 4], 2)
    assert len({*salted, *plain, *swapped}) == 6


def test_a_chain_of_unknown_parent_has_no_keys_and_is_counted() -> None:
    decoder = KvEventDecoder(PUBLISHER, with_content_keys=True)
    (record,) = decoder.decode(0, message(stored(parent_block_hash=99))).records
    assert isinstance(record, BlocksStored)
    assert record.content_keys == ()
    assert decoder.keyless_blocks == 2


def test_a_host_copy_takes_the_key_that_hbm_told_since_it_names_no_salt() -> None:
    decoder = KvEventDecoder(PUBLISHER, with_content_keys=True)
    salted = stored(extra_keys=[["salt"], None])
    copy = stored(medium="CPU", extra_keys=None)
    first, second = decoder.decode(0, message(salted, copy)).records
    assert isinstance(first, BlocksStored)
    assert isinstance(second, BlocksStored)
    assert first.content_keys
    assert second.content_keys == first.content_keys
    decoder.forget_chains()
    (third,) = decoder.decode(1, message(copy)).records
    assert isinstance(third, BlocksStored)
    assert third.content_keys == ()


def test_extra_keys_that_match_no_block_make_no_content_keys() -> None:
    (record,) = decode(stored(extra_keys=[["salt"]]), keys=True)
    assert isinstance(record, BlocksStored)
    assert record.content_keys == ()


def test_windowed_groups_are_counted_as_unsupported() -> None:
    decoder = KvEventDecoder(PUBLISHER)
    decoder.decode(0, message(stored(kv_cache_spec_kind="sliding_window")))
    assert decoder.windowed_events == 1


@pytest.mark.parametrize("wall", [float("nan"), float("inf"), float("-inf"), -1e12])
@pytest.mark.parametrize("positional", [False, True])
def test_a_time_that_no_recording_could_hold_is_quarantined(wall: float, positional: bool) -> None:
    event: Any = ["BlockRemoved", [1], "GPU"] if positional else removed(1)
    decoder = KvEventDecoder(PUBLISHER)
    decoded = decoder.decode(3, message(event, wall=wall))
    assert decoded.records == []
    assert decoded.lost is not None
    assert decoded.lost.startswith("message time is")
    assert [one.sequence for one in decoder.quarantine] == [3]
    assert decoder.errors.total() == 1
    assert decoder.decode(4, message(event)).records
