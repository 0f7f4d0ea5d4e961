"""The inventory counts as vLLM does, and where it cannot know it counts too few, never too many."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from streams import captured_frames, captured_lines

from kvready.advisor.inventory import Inventory, Knowledge
from kvready.collectors.records import (
    BlocksRemoved,
    BlocksStored,
    TapEvent,
    TapState,
    TapStatus,
    Tier,
    TierCleared,
)
from kvready.collectors.vllm import KvEventDecoder

PUBLISHER = "engine"


def stored(
    *hashes: int, parent: int | None = None, tier: Tier = Tier.HBM, rank: int = 0, tokens: int = 16
) -> BlocksStored:
    return BlocksStored(PUBLISHER, rank, 0, 0.0, tier, hashes, parent, tokens)


def removed(*hashes: int, tier: Tier = Tier.HBM, rank: int = 0) -> BlocksRemoved:
    return BlocksRemoved(PUBLISHER, rank, 0, 0.0, tier, hashes)


def status(event: TapEvent, state: TapState, first_missing: int | None = None) -> TapStatus:
    return TapStatus(PUBLISHER, 0, event, state, first_missing=first_missing)


def holding(*records: BlocksStored | BlocksRemoved | TierCleared | TapStatus) -> Inventory:
    inventory = Inventory()
    for record in records:
        inventory.apply(record)
    return inventory


def replayed(capture: str) -> Inventory:
    inventory = Inventory()
    decoder = KvEventDecoder(PUBLISHER)
    for _, number, payload in captured_frames(capture):
        for record in decoder.decode(int.from_bytes(number, "big"), payload).records:
            inventory.apply(record)
    return inventory


@pytest.mark.parametrize(
    ("capture", "duplicates"),
    [
        ("vllm_kv_events", 0),
        ("vllm_kv_events_offload", 0),
        ("vllm_kv_events_offload_small_cpu", 0),
    ],
)
def test_a_capture_ends_where_a_plain_loop_over_it_ends(capture: str, duplicates: int) -> None:
    live: dict[str, Counter[int]] = {"GPU": Counter(), "CPU": Counter()}
    again = unknown = 0
    for _, _, payload in captured_frames(capture):
        for event in msgspec.msgpack.decode(payload)[1]:
            held = live[event["medium"]]
            for one in event["block_hashes"]:
                if event["type"] == "BlockStored":
                    again += one in held
                    held[one] += 1
                else:
                    unknown += one not in held
                    held[one] -= 1
                    if not held[one]:
                        del held[one]
    inventory = replayed(capture)
    assert inventory.blocks(Tier.HBM) == live["GPU"]
    assert inventory.blocks(Tier.HOST) == live["CPU"]
    assert inventory.live_blocks(Tier.HBM) == len(live["GPU"])
    assert inventory.live_blocks(Tier.HOST) == len(live["CPU"])
    assert len(live["GPU"]) + len(live["CPU"]) > 200
    assert inventory.counts["unknown_removes"] == unknown == 0
    assert again == duplicates == inventory.counts["ambiguous_stores"]


def test_the_engines_own_maps_agree_at_every_probed_moment() -> None:
    inventory = Inventory()
    decoder = KvEventDecoder(PUBLISHER)
    probes = captured_lines("engine_truth")
    compared = 0
    for _, number, payload in captured_frames("engine_kv_events"):
        sequence = int.from_bytes(number, "big")
        for record in decoder.decode(sequence, payload).records:
            inventory.apply(record)
        for probe in probes:
            if probe["kv_sequence"] == sequence:
                compared += 1
                hbm = {int(block_hash): count for block_hash, count in probe["hbm"].items()}
                assert inventory.blocks(Tier.HBM) == hbm
                assert inventory.blocks(Tier.HOST) == dict.fromkeys(map(int, probe["host"]), 1)
    assert compared == len(probes) > 10


def test_a_second_block_of_a_hash_needs_a_second_removal() -> None:
    inventory = holding(stored(1, 2), stored(2, parent=1), removed(2))
    assert inventory.resident(2, Tier.HBM)
    inventory.apply(removed(2))
    assert not inventory.resident(2, Tier.HBM)


def test_a_hit_report_adds_no_block() -> None:
    inventory = holding(stored(1, 2, 3), stored(1, 2), removed(2))
    assert inventory.blocks(Tier.HBM) == {1: 1, 3: 1}
    assert inventory.counts["ambiguous_stores"] == 1


def test_a_prompt_computed_whole_though_half_known_adds_second_blocks() -> None:
    inventory = holding(stored(1, 2), stored(1, 2, 3), removed(1))
    assert inventory.blocks(Tier.HBM) == {1: 1, 2: 2, 3: 1}


def test_once_messages_stayed_lost_a_report_may_name_new_blocks_but_adds_no_second_ones() -> None:
    dropped = status(TapEvent.DROPPED, TapState.DEGRADED)
    inventory = holding(stored(7), dropped, stored(1, 2), stored(1, 2, 3))
    assert inventory.blocks(Tier.HBM) == {1: 1, 2: 1, 3: 1}
    inventory.apply(status(TapEvent.EPOCH, TapState.LIVE))
    for record in (stored(1, 2), stored(1, 2, 3)):
        inventory.apply(record)
    assert inventory.blocks(Tier.HBM) == {1: 2, 2: 2, 3: 1}


def test_a_host_chunk_stored_again_is_the_same_chunk_but_shared_hashes_add_up() -> None:
    host = Tier.HOST
    inventory = holding(stored(5, tier=host), stored(5, tier=host), removed(5, tier=host))
    assert inventory.blocks(host) == {}
    assert inventory.counts["restored_blocks"] == 1
    inventory = holding(
        stored(1, 2, tier=host), stored(1, 2, 3, 4, tier=host), removed(1, 2, tier=host)
    )
    assert inventory.blocks(host) == {1: 1, 2: 1, 3: 1, 4: 1}


def test_tiers_ranks_and_groups_are_apart() -> None:
    inventory = holding(stored(1), stored(1, tier=Tier.HOST), stored(1, rank=1), removed(1))
    assert not inventory.resident(1, Tier.HBM)
    assert inventory.resident(1, Tier.HOST)
    assert inventory.resident(1, Tier.HBM, rank=1)
    assert not inventory.resident(1, Tier.HBM, group=3)
    assert inventory.live_blocks(Tier.HBM) == inventory.live_blocks(Tier.HOST) == 1


def test_clearing_one_tier_leaves_the_others() -> None:
    cleared = TierCleared(PUBLISHER, 0, 0, 0.0, Tier.HBM)
    inventory = holding(stored(1, 2), stored(2, tier=Tier.HOST), stored(3, rank=1), cleared)
    assert inventory.blocks(Tier.HBM) == {}
    assert inventory.blocks(Tier.HOST) == {2: 1}
    assert inventory.blocks(Tier.HBM, rank=1) == {3: 1}
    assert inventory.live_blocks(Tier.HBM) == 1


def test_the_prefix_counts_each_block_in_its_nearest_tier_and_ends_at_the_first_absent() -> None:
    inventory = holding(
        status(TapEvent.CONNECTED, TapState.LIVE),
        stored(1, 2, 4),
        stored(2, 3, tier=Tier.HOST, tokens=0),
        stored(6, tier=Tier.DISK, tokens=0),
    )
    prefix = inventory.tier_prefix([1, 2, 3, 4, 5, 6])
    assert (prefix.blocks, prefix.tokens) == (4, 64)
    assert prefix.blocks_by_tier == {Tier.HBM: 3, Tier.HOST: 1, Tier.DISK: 0, Tier.REMOTE: 0}
    assert not prefix.degraded
    assert inventory.tier_prefix([5, 1]).blocks == 0
    assert inventory.tier_prefix([]).blocks == 0
    assert inventory.tier_prefix([6]).blocks_by_tier[Tier.DISK] == 1
    assert Inventory().tier_prefix([1]).degraded


@pytest.mark.parametrize(
    ("event", "state", "first_missing", "keeps", "knowledge"),
    [
        (TapEvent.GAP, TapState.DEGRADED, 3, True, Knowledge.DEGRADED),
        (TapEvent.HEALED, TapState.LIVE, None, True, Knowledge.LIVE),
        (TapEvent.CLOSED, TapState.CLOSED, None, True, Knowledge.UNKNOWN),
        (TapEvent.SILENT, TapState.SILENT, None, True, Knowledge.DEGRADED),
        (TapEvent.EPOCH, TapState.LIVE, None, False, Knowledge.LIVE),
        (TapEvent.DROPPED, TapState.DEGRADED, 3, False, Knowledge.DEGRADED),
        (TapEvent.DECODE_ERROR, TapState.DEGRADED, 3, False, Knowledge.DEGRADED),
        (TapEvent.DECODE_ERROR, TapState.LIVE, None, True, Knowledge.LIVE),
    ],
)
def test_news_of_the_tap_changes_what_is_kept_and_how_far_it_is_trusted(
    event: TapEvent,
    state: TapState,
    first_missing: int | None,
    keeps: bool,
    knowledge: Knowledge,
) -> None:
    inventory = holding(status(TapEvent.CONNECTED, TapState.LIVE), stored(1, 2), stored(9, rank=1))
    assert not inventory.degraded
    inventory.apply(status(event, state, first_missing))
    assert bool(inventory.live_blocks(Tier.HBM)) is keeps
    assert inventory.state(PUBLISHER) is knowledge
    assert inventory.degraded is (knowledge is not Knowledge.LIVE)


def test_another_taps_trouble_is_not_the_blocks() -> None:
    other = TapStatus("observer-scheduler-0", 0, TapEvent.EPOCH, TapState.DEGRADED)
    inventory = holding(status(TapEvent.CONNECTED, TapState.LIVE), stored(1), other)
    assert not inventory.degraded
    assert inventory.resident(1, Tier.HBM)


def test_blocks_beyond_the_bound_are_shed_and_counted_and_removals_of_them_harm_nothing() -> None:
    inventory = Inventory(max_live_blocks=3)
    inventory.apply(stored(1, 2))
    inventory.apply(stored(3, 4, parent=2))
    assert inventory.live_blocks(Tier.HBM) == 2
    assert inventory.counts["shed_blocks"] == 2
    inventory.apply(removed(3, 1))
    assert inventory.blocks(Tier.HBM) == {2: 1}
    assert inventory.counts["unknown_removes"] == 1


OPERATIONS = st.lists(
    st.tuples(
        st.booleans(),
        st.sampled_from(list(Tier)),
        st.lists(st.integers(1, 12), min_size=1, max_size=4, unique=True),
    ),
    max_size=40,
)


@given(operations=OPERATIONS)
def test_every_tiers_counts_agree_with_plain_counters(
    operations: list[tuple[bool, Tier, list[int]]],
) -> None:
    inventory = Inventory()
    plain: dict[Tier, Counter[int]] = {tier: Counter() for tier in Tier}
    for is_store, tier, hashes in operations:
        held = plain[tier]
        if is_store:
            inventory.apply(stored(*hashes, parent=99, tier=tier))
            if tier is Tier.HBM or len(hashes) > 1 or not held[hashes[0]]:
                held.update(hashes)
        else:
            inventory.apply(removed(*hashes, tier=tier))
            held.subtract(one for one in hashes if held[one])
    for tier, held in plain.items():
        assert inventory.blocks(tier) == dict(+held)
        assert inventory.live_blocks(tier) == len(+held)
    order: Any = list(range(1, 13))
    prefix = inventory.tier_prefix(order)
    nearest = []
    for one in order:
        tiers = [tier for tier in Tier if plain[tier][one]]
        if not tiers:
            break
        nearest.append(tiers[0])
    if any(is_store for is_store, _, _ in operations):
        assert prefix.blocks_by_tier == {tier: nearest.count(tier) for tier in Tier}
