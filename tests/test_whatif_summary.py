"""What a run was worth, by hand-made outcomes whose figures can be told without a computer."""

from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvready.advisor.whatif.comparison import Point, throughput_at
from kvready.advisor.whatif.outcome import LinkTime, RequestOutcome, SimOutcome
from kvready.advisor.whatif.pairing import Ratio, paired
from kvready.advisor.whatif.presets import scenario
from kvready.advisor.whatif.standing import Standing
from kvready.advisor.whatif.steps_between import steps_between
from kvready.advisor.whatif.summary import (
    Constraint,
    CountedFrom,
    Summary,
    Targets,
    percentile,
    reuse_cell,
    spread,
    summarize,
)
from kvready.advisor.whatif.verdict import Finding, Kind, Step, ratio_text, verdict

SCENARIO = scenario("llama-3.1-8b", "h200", "fast-copies")
BARE = scenario("llama-3.1-8b", "h200", "recompute")


def request(name: str, ttft: float, **given: object) -> RequestOutcome:
    arrived = 10.0
    whole = {
        "admitted_seconds": arrived + 0.5,
        "first_token_seconds": arrived + ttft,
        "finished_seconds": arrived + ttft + 1.0,
    }
    return RequestOutcome(name, arrived, 1_000, 11, **(whole | given))


def outcome(requests: list[RequestOutcome], **given: object) -> SimOutcome:
    return SimOutcome("fast-copies", "by hand", requests, 20.0, **given)


def test_only_requests_inside_both_targets_are_good() -> None:
    run = outcome(
        [
            request("in time", 1.0),
            request("late", 3.0),
            request("slow", 1.0, finished_seconds=16.0),
            request("cut off", 0.0, first_token_seconds=0.0, finished_seconds=0.0),
        ],
        unfinished=1,
    )
    both = summarize(run, SCENARIO, Targets(2.0, 10.0))
    assert (both.good_share, both.good_rate) == (1 / 4, 1 / 20)
    assert (both.requests, both.unfinished, both.ttft.count) == (4, 1, 3)
    assert summarize(run, SCENARIO, Targets(2.0)).good_share == 2 / 4
    assert summarize(run, SCENARIO, Targets(9.0)).good_share == 3 / 4


def test_a_request_of_one_token_has_no_pace_to_keep() -> None:
    single = request("single", 1.0)
    single.output_tokens = 1
    assert summarize(outcome([single]), SCENARIO, Targets(2.0, 1e9)).good_share == 1.0


def test_ttft_says_where_it_is_counted_from() -> None:
    run = outcome([request("one", 2.0)])
    assert summarize(run, SCENARIO, Targets(2.0)).ttft.mean == pytest.approx(2.0)
    admitted = summarize(run, SCENARIO, Targets(2.0, None, CountedFrom.ADMISSION))
    assert admitted.ttft.mean == pytest.approx(1.5)
    assert admitted.targets.counted_from == "admission"


def test_hits_are_told_by_what_they_were_worth() -> None:
    run = outcome(
        [
            request("in time", 1.0, nominal_tokens=600, host_tokens=600, computed_tokens=400),
            request("late", 1.0, nominal_tokens=800, host_tokens=800, computed_tokens=200,
                    exposed_seconds=0.1),
            request("lost", 1.0, nominal_tokens=600, computed_tokens=1_000),
        ],
        duplicate_tokens=70,
    )  # fmt: skip
    told = summarize(run, SCENARIO, Targets(2.0))
    hits = told.hits
    assert (hits.nominal, hits.in_time) == pytest.approx((2 / 3, 0.2))
    assert (hits.late, hits.lost) == pytest.approx((0.8 / 3, 0.2))
    assert (told.sources.host, told.sources.computed, told.sources.duplicate) == (1_400, 1_600, 70)


def test_an_exposed_load_of_one_decode_step_is_still_in_time() -> None:
    hit = request("hit", 1.0, nominal_tokens=100, host_tokens=100, exposed_seconds=0.02)
    slow = outcome([hit], decode_seconds=3.0, decode_steps=100)
    quick = outcome([hit], decode_seconds=1.0, decode_steps=100)
    assert summarize(slow, SCENARIO, Targets(2.0)).hits.in_time > 0.0
    assert summarize(quick, SCENARIO, Targets(2.0)).hits.in_time == 0.0


def test_ttft_is_told_by_reuse_distance_class_and_what_was_resident() -> None:
    run = outcome(
        [
            request("new", 4.0, request_class="chat"),
            request("near", 1.0, request_class="batch", reuse_tokens=5_000, nominal_tokens=900),
            request("far", 2.0, request_class="batch", reuse_tokens=400_000, nominal_tokens=900),
        ]
    )
    cells = {(c.kind, c.name): c.ttft.mean for c in summarize(run, SCENARIO, Targets(2.0)).cells}
    assert cells == pytest.approx(
        {
            ("reuse distance", "first use"): 4.0,
            ("reuse distance", "0 to 10k"): 1.0,
            ("reuse distance", "300k to 1M"): 2.0,
            ("class", "batch"): 1.5,
            ("class", "chat"): 4.0,
            ("at arrival", "nothing resident"): 4.0,
            ("at arrival", "resident"): 1.5,
        }
    )


def test_cells_of_reuse_have_no_gap() -> None:
    assert [reuse_cell(t) for t in (None, 0, 9_999, 10_000, 3_000_000)] == [
        "first use", "0 to 10k", "0 to 10k", "10k to 100k", "3M and more",
    ]  # fmt: skip


def test_a_links_time_and_bandwidths_are_shares_of_the_run() -> None:
    link = LinkTime(
        busy_seconds=5.0, payload_bytes=200 * 10**9, copies=3, idle_no_demand_seconds=8.0,
        idle_scheduler_seconds=4.0, idle_compute_seconds=3.0,
    )  # fmt: skip
    use = summarize(outcome([request("one", 1.0)], load_link=link), SCENARIO, Targets(2.0))
    assert msgspec.structs.astuple(use.load_link) == (0.25, 0.4, 0.2, 0.15, 10e9, 40e9)
    assert use.backup_link.effective_bandwidth is None


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({"load_link": LinkTime(busy_seconds=10.0), "stall_seconds": 1.0}, Constraint.LINK),
        ({"load_link": LinkTime(busy_seconds=10.0)}, Constraint.NONE),
        ({"load_link": LinkTime(busy_seconds=9.9), "stall_seconds": 1.0}, Constraint.NONE),
        ({"prefill_seconds": 10.0, "decode_seconds": 8.0}, Constraint.COMPUTE),
        ({"prefill_seconds": 9.0, "decode_seconds": 8.0}, Constraint.NONE),
    ],
)
def test_the_constraint_is_what_the_definitions_say(
    given: dict[str, object], wanted: Constraint
) -> None:
    run = outcome([request("one", 1.0)], **given)
    assert summarize(run, SCENARIO, Targets(2.0)).constraint is wanted


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=50))
def test_percentiles_lie_between_neighbours(values: list[float]) -> None:
    ordered = sorted(values)
    told = [percentile(ordered, share) for share in (0.0, 0.5, 0.9, 1.0)]
    assert told == sorted(told)
    assert (told[0], told[-1]) == (ordered[0], ordered[-1])


def test_nothing_gives_no_spread_and_a_run_without_requests_no_figure() -> None:
    assert spread([]).mean is None
    empty = summarize(outcome([]), SCENARIO, Targets(2.0))
    assert (empty.good_share, empty.good_rate, empty.ttft.mean) == (0.0, 0.0, None)


def test_pairing_by_seed_cancels_what_the_draws_do_to_both() -> None:
    base = {seed: 1.0 + seed for seed in range(5)}
    one = paired({seed: 1.5 * value for seed, value in base.items()}, base)
    assert one is not None
    assert (one.low, one.middle, one.high) == pytest.approx((1.5, 1.5, 1.5))
    assert paired({0: 0.0}, {0: 1.0}) is None
    assert paired({0: 1.0}, {1: 1.0}) is None


def test_an_interval_is_students() -> None:
    # Logs 0 and 1: mean 0.5, standard error 0.5, t(1 degree, 95 %) = 6.314.
    one = paired({0: 1.0, 1: math.e}, {0: 1.0, 1: 1.0})
    assert one is not None
    assert math.log(one.high) == pytest.approx(0.5 + 6.314 / 2)
    assert not one.differs(0.02)
    assert Ratio(1.2, 1.2, 1.2, 1).differs(0.02)


def test_throughput_is_read_where_a_curve_passes_the_target() -> None:
    curve = [Point(1, 1.0, 10.0, 0, 0), Point(2, 4.0, 20.0, 0, 0)]
    assert throughput_at(curve, 2.0) == (pytest.approx(15.0), True)
    assert throughput_at(curve, 8.0) == (20.0, False)
    assert throughput_at(curve, 0.5) == (None, False)


def standing(policy: str, good: float, ttft: float, *, seeds: int = 3, **given: object) -> Standing:
    """Runs of which `good` of 100 requests come in time, with a little scatter over seeds."""
    runs = []
    for seed in range(seeds):
        count = round(good * (1 + 0.002 * seed))
        rows = [request("good", ttft) for _ in range(count)]
        rows += [request("late", 9.0) for _ in range(100 - count)]
        scenario_of = BARE if policy.startswith("recompute") else SCENARIO
        for row in rows:
            row.computed_tokens = 100
            row.host_tokens = 900 if scenario_of is SCENARIO else 0
        run = SimOutcome(policy, "by hand", rows, 20.0, **given)
        runs.append(summarize(run, scenario_of, Targets(5.0), seed))
    return Standing(policy, tuple(runs))


def kinds(findings: tuple[Finding, ...]) -> list[Kind]:
    return [finding.kind for finding in findings]


def only(findings: tuple[Finding, ...], kind: Kind) -> str:
    (found,) = (finding.text for finding in findings if finding.kind is kind)
    return found


def judged(*standings: Standing) -> tuple[Finding, ...]:
    names = [one.policy for one in standings]
    return verdict(standings, steps_between(names), frozenset({"oracle"}))


def test_a_tier_that_serves_more_requests_in_time_pays() -> None:
    told = judged(standing("recompute", 40, 1.0), standing("fast-copies", 80, 1.0))
    assert "x2.00" in only(told, Kind.TIER_PAYS)


def test_a_tier_that_changes_nothing_does_not_pay() -> None:
    told = judged(standing("recompute", 80, 1.0), standing("fast-copies", 80, 1.0))
    assert "does not pay here" in only(told, Kind.TIER_DOES_NOT_PAY)


def test_what_the_order_gains_is_not_the_tiers() -> None:
    bare, plain = standing("recompute", 80, 2.0), standing("fast-copies", 80, 2.0)
    ordered = standing("strata", 80, 1.0)
    # Its gain came without one token from below HBM.
    no_loads = [
        msgspec.structs.replace(run, sources=msgspec.structs.replace(run.sources, host=0))
        for run in ordered.runs
    ]
    ordered = Standing("strata", tuple(no_loads))
    told = judged(bare, plain, ordered)
    assert "comes of the order" in only(told, Kind.TIER_DOES_NOT_PAY)
    assert "strata" in only(told, Kind.HELPS)


def test_a_policy_that_relieves_nothing_is_told_so() -> None:
    told = judged(standing("fast-copies", 80, 1.0), standing("fast-copies+dedup", 80, 1.0))
    assert only(told, Kind.NO_BENEFIT).startswith("No benefit expected of dedup")
    worse = judged(standing("fast-copies", 80, 1.0), standing("naive-reorder", 50, 1.0))
    assert "Does harm" in only(worse, Kind.HARMS)


def test_a_ratio_without_measure_is_not_spelled_out() -> None:
    assert ratio_text(Ratio(657.84, 600.0, 700.0, 3)) == ">x99"
    assert ratio_text(Ratio(1.5, 1.4, 1.6, 3)) == "x1.50 (1.40 to 1.60)"
    assert ratio_text(None) == "-"


def test_an_oracle_tells_whether_a_faster_link_has_room() -> None:
    none = judged(standing("strata", 80, 1.0), standing("oracle", 80, 1.0))
    assert "buys nothing" in only(none, Kind.HEADROOM)
    much = judged(standing("strata", 40, 1.0), standing("oracle", 80, 1.0))
    assert "room to help" in only(much, Kind.HEADROOM)
    assert "Best here: strata" in only(much, Kind.CONSTRAINT)


@pytest.mark.parametrize(
    ("given", "change"),
    [
        ({"load_link": LinkTime(busy_seconds=15.0), "stall_seconds": 1.0}, "Change the link"),
        ({"prefill_seconds": 10.0, "decode_seconds": 9.9}, "Change the compute"),
        (
            {"prefill_seconds": 10.0, "decode_seconds": 9.9, "duplicate_tokens": 5_000},
            "Change the order: 50%",
        ),
        ({}, "Neither link nor compute is full"),
    ],
)
def test_the_constraint_says_what_to_change(given: dict[str, object], change: str) -> None:
    told = judged(standing("fast-copies", 60, 1.0, **given))
    assert only(told, Kind.CHANGE).startswith(change)


def test_slow_copies_over_the_same_link_are_changed_before_the_link() -> None:
    busy = LinkTime(busy_seconds=15.0, payload_bytes=150 * 10**9)
    quick = LinkTime(busy_seconds=5.0, payload_bytes=150 * 10**9)
    told = judged(
        standing("per-page", 60, 1.0, load_link=busy, stall_seconds=1.0),
        standing("fast-copies", 60, 1.0, load_link=quick),
    )
    assert "fast-copies moves bytes faster" in only(told, Kind.CHANGE)


def test_where_targets_are_kept_nothing_is_to_be_changed() -> None:
    assert only(judged(standing("fast-copies", 100, 1.0, seeds=1)), Kind.CHANGE).startswith(
        "Change nothing"
    )


def test_where_only_prompts_that_are_nowhere_miss_the_target_that_is_told() -> None:
    rows = [request("hit", 1.0, nominal_tokens=900) for _ in range(10)]
    rows += [request("miss", 9.0) for _ in range(10)]
    run = summarize(SimOutcome("fast-copies", "by hand", rows, 20.0), SCENARIO, Targets(5.0))
    told = verdict([Standing("fast-copies", (run,))], [])
    assert "nothing was resident: 0% come in time, of the others 100%" in only(told, Kind.CHANGE)


def test_a_class_that_falls_behind_asks_for_isolation() -> None:
    rows = [request("quick", 1.0, request_class="chat") for _ in range(10)]
    rows += [request("late", 9.0, request_class="documents") for _ in range(10)]
    run = summarize(SimOutcome("fast-copies", "by hand", rows, 20.0), SCENARIO, Targets(5.0))
    told = verdict([Standing("fast-copies", (run,))], [])
    assert any("SLO isolation: class documents" in finding.text for finding in told)


def test_nobody_in_time_is_no_base_of_a_ratio_but_still_worse() -> None:
    told = judged(standing("recompute", 0, 1.0), standing("fast-copies", 50, 1.0))
    assert "goodput -" in only(told, Kind.TIER_PAYS)


def test_steps_name_the_one_thing_in_which_policies_differ() -> None:
    names = ["recompute", "per-page", "fast-copies", "fast-copies+dedup", "strata", "prefix-order"]
    assert steps_between(names) == [
        Step("per-page", "recompute", "a tier below HBM", tier=True),
        Step("fast-copies", "recompute", "a tier below HBM", tier=True),
        Step("fast-copies", "per-page", "a gather"),
        Step("fast-copies+dedup", "fast-copies", "dedup"),
        Step("strata", "fast-copies+dedup", "balance, decode-fill"),
        Step("prefix-order", "fast-copies", "longest prefix order"),
    ]


def test_a_summary_survives_the_way_to_another_process() -> None:
    told = summarize(outcome([request("one", 1.0)]), SCENARIO, Targets(2.0), 3, {"model": "m"})
    assert msgspec.json.decode(msgspec.json.encode(told), type=Summary) == told
