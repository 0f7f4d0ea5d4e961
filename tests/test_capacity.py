"""What memory there is and what lies in it: bytes where they follow, and nothing where not."""

from __future__ import annotations

import msgspec
import pytest
from story import BLOCK_TOKENS, ENGINE, Story, prefill

from kvready.advisor.capacity import Capacity, PromptLengths, capacity
from kvready.advisor.requests import RequestState
from kvready.collectors.records import (
    BatchPlanned,
    RequestArrived,
    Surface,
    TapEvent,
    TapState,
    TapStatus,
    Tier,
)

BLOCK_BYTES = BLOCK_TOKENS * ENGINE.kv_bytes_per_token


def now(story: Story) -> Capacity:
    return capacity(story.pipeline.ranks.values(), story.pipeline.inventory)


def test_bytes_follow_from_what_the_engine_and_its_events_tell() -> None:
    story = Story()
    story.tell(0.1, msgspec.structs.replace(ENGINE, host_bytes=1 << 30, disk_bytes=1 << 34))
    story.stored(0.2, [1, 2, 3, 4])
    story.stored(0.3, [1, 2], tier=Tier.HOST)
    story.stored(0.4, [1, 9], tier=Tier.DISK)
    story.tell(0.5, BatchPlanned(1, 0.5, 1.0, (prefill("r", 8),), free_blocks=200))
    assert now(story) == Capacity(
        token_bytes=ENGINE.kv_bytes_per_token,
        tier_bytes={
            Tier.HBM: ENGINE.hbm_blocks * BLOCK_BYTES,
            Tier.HOST: 1 << 30,
            Tier.DISK: 1 << 34,
        },
        held_bytes={
            Tier.HBM: 4 * BLOCK_BYTES,
            Tier.HOST: 2 * BLOCK_BYTES,
            Tier.DISK: 2 * BLOCK_BYTES,
            Tier.REMOTE: 0,
        },
        free_hbm_bytes=200 * BLOCK_BYTES,
        disk_ratio=2 / 5,  # of 1, 2, 3, 4 and 9
    )


def test_what_nobody_told_is_unknown_and_not_zero() -> None:
    silent = Story(kv_tap=False)
    told = now(silent)
    assert told.held_bytes == {}
    assert told.disk_ratio is None
    assert told.free_hbm_bytes is None
    assert set(told.tier_bytes) == {Tier.HBM}  # the engine has no other, or does not say


def test_an_inventory_that_is_known_to_be_empty_holds_zero_bytes() -> None:
    told = now(Story())
    assert told.held_bytes == dict.fromkeys(Tier, 0)
    assert told.disk_ratio is None  # a share of nothing


def test_without_an_engine_that_describes_itself_there_are_blocks_and_no_bytes() -> None:
    story = Story()
    story.stored(0.1, [1])
    story.pipeline.ranks[0].engine = None
    told = now(story)
    assert (told.token_bytes, told.tier_bytes, told.held_bytes) == (None, {}, {})
    assert told.disk_ratio == 0.0


@pytest.mark.parametrize("change", ["another kind of state", "another size in a rank"])
def test_blocks_of_unknown_or_several_sizes_are_not_made_into_bytes(change: str) -> None:
    story = Story()
    story.stored(0.1, [1])
    if change == "another kind of state":
        story.tell(0.2, msgspec.structs.replace(ENGINE, supported_kv_state=False))
    else:
        story.tell(0.2, msgspec.structs.replace(ENGINE, rank=1, kv_bytes_per_token=1))
    assert now(story).held_bytes == {}


def test_hbm_left_is_unknown_until_every_rank_told_of_its_own() -> None:
    story = Story()
    story.tell(0.1, msgspec.structs.replace(ENGINE, rank=1))
    story.tell(0.2, BatchPlanned(1, 0.2, 1.0, (), free_blocks=5))
    assert now(story).free_hbm_bytes is None
    story.tell(0.3, BatchPlanned(1, 0.3, 1.0, (), free_blocks=6, rank=1))
    assert now(story).free_hbm_bytes == 11 * BLOCK_BYTES


def test_a_lost_tap_leaves_nothing_known_of_what_is_held() -> None:
    story = Story()
    story.stored(0.1, [1])
    story.tell(0.2, TapStatus("e", 0, TapEvent.CLOSED, TapState.CLOSED), tap="e")
    assert now(story).held_bytes == {}


def test_lengths_are_of_all_prompts_and_of_the_prefixes_that_were_known() -> None:
    lengths = PromptLengths()
    for tokens, nominal in ((100, None), (1_000, 0), (5_000, 4_096)):
        state = RequestState(RequestArrived("r", Surface.SCHEDULER, 0.0, tokens))
        state.nominal_tokens = nominal
        lengths.arrive(state)
    assert (lengths.prompts.count, lengths.prompts.total) == (3, 6_100)
    assert (lengths.prefixes.count, lengths.prefixes.total) == (2, 4_096)


def test_nominal_hits_by_tier_add_up_to_the_nominal_hits(told_story: Story) -> None:
    totals = told_story.pipeline.totals
    assert sum(totals.nominal_tier_tokens.values()) == totals.nominal_hit_tokens > 0
    assert totals.nominal_tier_tokens[Tier.HOST] > 0
