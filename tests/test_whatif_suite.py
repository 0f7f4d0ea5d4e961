"""The suite against the paper: its file is whole, its rule is what it says, a tiny one runs."""

from __future__ import annotations

import json
import re
from io import StringIO
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from typer.testing import CliRunner

from kvready.advisor.commands.app import app
from kvready.advisor.whatif.suite.cases import GROUPS, SIMULATED, Case, cases, suite_scenario
from kvready.advisor.whatif.suite.measures import Measured, Points, measured
from kvready.advisor.whatif.suite.ranges import Claim, Kind, ranges, settings
from kvready.advisor.whatif.suite.reasons import REASONS
from kvready.advisor.whatif.suite.rows import Verdict, judged, row
from kvready.advisor.whatif.suite.runs import ALL_AT_ONCE, Point, Task, run_task
from kvready.advisor.whatif.suite.study import CONSTANTS, NO_TRACE, Held, Size, held, tasks
from kvready.advisor.whatif.suite.text import counts_text, print_held
from kvready.advisor.whatif.summary import CountedFrom
from kvready.kernels.published import published_profile

TRACES = Path(__file__).parents[1] / "examples/traces"
TINY = Size(queries=24, design="middle")
KNOWN = ranges()
CLAIMS = {claim.name: claim for claim in KNOWN.claims}
figures = st.floats(-2.0, 10.0)


def silent(done: float) -> None:
    """A progress bar that nobody watches."""


@pytest.fixture(scope="module")
def tiny() -> Held:
    return held(1, silent, TINY, TRACES)


def test_every_result_of_the_paper_has_a_row() -> None:
    listed = {name.partition(".")[0] for name in CLAIMS}
    assert {f"E{number}" for number in range(1, 22)} <= listed
    assert {"R1", "R2", "R3"} <= listed, "negative controls"
    assert len(CLAIMS) == len(KNOWN.claims)


def test_the_file_says_for_every_prediction_what_counts_and_how_it_is_read() -> None:
    for claim in KNOWN.claims:
        if claim.kind is Kind.NOT_TESTABLE:
            assert claim.why
            continue
        assert claim.measure in SIMULATED | {"published", "neighbour_share"} | CONSTANTS.keys()
        if claim.kind is Kind.INPUT:
            assert claim.low is None
            assert claim.high is None
        elif claim.measure == "order":
            assert len(claim.of) > 1
            assert claim.accepts
        else:
            assert claim.low is not None
            assert claim.high is not None
            assert claim.low <= claim.high


def test_a_figure_counts_as_printed_unless_the_file_says_otherwise() -> None:
    for claim in KNOWN.claims:
        printed = re.fullmatch(r"\+?(\d+(?:\.(\d+))?)( %|x)?", claim.paper)
        if claim.low is None or claim.accepts or printed is None:
            continue
        scale = 100.0 if claim.unit == "%" else 1.0
        half = 0.5 * 10.0 ** -len(printed[2] or "")
        value = float(printed[1])
        assert claim.low * scale == pytest.approx(value - half)
        assert claim.high is not None
        assert claim.high * scale == pytest.approx(value + half)


def test_every_unknown_has_a_reason_and_takes_both_ends_equally_often() -> None:
    for unknown in KNOWN.unknowns.values():
        assert unknown.reason
    for signs in KNOWN.designs.values():
        assert not any(signs[0]), "the middle comes first"
        assert all(sum(column) == 0 for column in zip(*signs, strict=True))


def test_claims_that_are_held_against_each_other_run_in_the_same_settings() -> None:
    for claim in KNOWN.claims:
        if claim.measure in SIMULATED:
            assert len({GROUPS[of.split(" ")[0]].design for of in claim.of}) == 1, claim.name


def test_every_case_is_a_scenario_in_every_setting() -> None:
    for case in cases(KNOWN.claims):
        for setting in settings(KNOWN, GROUPS[case.group].design):
            scenario = suite_scenario(case, setting, KNOWN)
            assert scenario.name == case.policy
            assert scenario.engine.batch_tokens == setting.batch_tokens
            assert scenario.mfu == setting.mfu / GROUPS[case.group].slower


def test_reasons_are_of_claims_that_are_predictions() -> None:
    for name, reason in REASONS.items():
        assert CLAIMS[name].kind is Kind.PREDICTION
        assert reason.verdict in list(Verdict)
        assert reason.text


def claim_within(low: float, high: float) -> Claim:
    return Claim("x", Kind.PREDICTION, "some figure", "1", low, high, measure="ratio_of_peaks")


@given(figures, figures, figures, figures)
def test_a_figure_is_covered_exactly_where_some_value_lies_in_both_ranges(
    a: float, b: float, c: float, d: float
) -> None:
    paper, ours = sorted((a, b)), sorted((c, d))
    claim, found = claim_within(*paper), Measured(ours[0], *ours)
    both = [value for value in (*paper, *ours) if paper[0] <= value <= paper[1]]
    shared = any(ours[0] <= value <= ours[1] for value in both)
    assert (judged(claim, found) is Verdict.COVERED) is shared


@given(st.integers(1, 12), st.data())
def test_an_order_is_covered_where_it_holds_in_the_middle_and_in_most(
    count: int, data: st.DataObject
) -> None:
    below = data.draw(st.lists(st.booleans(), min_size=count, max_size=count))
    claim = Claim(
        "x", Kind.PREDICTION, "an order", "order", measure="order", quantity="peak",
        of=("a less", "a more"),
    )  # fmt: skip
    points: Points = {
        "a less": [[point(1.0)] for _ in below],
        "a more": [[point(2.0 if lower else 0.5)] for lower in below],
    }
    found = measured(claim, points, KNOWN.readings)
    assert found.held == sum(below)
    expected = below[0] and sum(below) > count / 2
    assert (judged(claim, found) is Verdict.COVERED) is expected


def point(output_rate: float, ttft: float = 1.0, rate: float = ALL_AT_ONCE) -> Point:
    return Point(rate, output_rate, dict.fromkeys(CountedFrom, ttft), ttft, 0.0, 0.0, 0.0)


@given(st.floats(1.1, 8.0), st.lists(st.floats(0.5, 2.0), min_size=1, max_size=4))
def test_the_range_holds_the_middle_and_every_setting(ratio: float, scales: list[float]) -> None:
    """The same TTFT at so many times the throughput is that ratio at every level."""
    claim = Claim(
        "x", Kind.PREDICTION, "a ratio", "2x", 1.0, 2.0, measure="ratio_at_ttft",
        of=("a strata", "a base"),
    )  # fmt: skip
    curve = [(0.5, 1.0), (4.0, 2.0), (20.0, 3.0)]
    points: Points = {
        "a strata": [
            [point(ratio * scale * rate, ttft, ratio * rate) for ttft, rate in curve]
            for scale in scales
        ],
        "a base": [[point(rate, ttft, rate) for ttft, rate in curve] for _ in scales],
    }
    found = measured(claim, points, KNOWN.readings)
    assert found.middle == pytest.approx(ratio * scales[0])
    assert found.low == pytest.approx(ratio * min(scales))
    assert found.high == pytest.approx(ratio * max(scales))
    assert found.unread == 0


def test_a_curve_above_every_level_gives_no_figure_and_says_so() -> None:
    claim = CLAIMS["E1.1"]
    points: Points = {of: [[point(1.0, 99.0)]] for of in claim.of}
    found = measured(claim, points, KNOWN.readings)
    assert found.middle is None
    assert judged(claim, found) is Verdict.MISSED
    assert "no value" in row(claim, found).why


def test_a_curve_goes_from_the_lowest_ttft_level_to_all_at_once() -> None:
    setting = settings(KNOWN, "middle")[0]
    case = Case("loogle-70b", "per-page", curve=True)
    points = run_task(Task(case, setting, TRACES, queries=60))
    assert [one.rate for one in points] == sorted({one.rate for one in points})
    assert points[-1].rate == ALL_AT_ONCE
    levels = KNOWN.readings.ttft_seconds
    assert max(points[0].ttft_mean.values()) <= min(levels)
    assert points[-1].ttft_mean[CountedFrom.ARRIVAL] > points[0].ttft_mean[CountedFrom.ARRIVAL]


@pytest.mark.parametrize("claim", [c for c in KNOWN.claims if c.measure == "published"])
def test_links_are_those_of_the_published_profiles(claim: Claim, tiny: Held) -> None:
    profile, name = claim.of
    one = next(one for one in published_profile(profile).claims if one.name == name)
    shown = next(shown for shown in tiny.rows if shown.name == claim.name)
    assert shown.ours == one.ours
    assert one.kind == claim.kind.value


def test_a_tiny_suite_gives_every_row_and_verdicts_to_predictions_alone(tiny: Held) -> None:
    assert [one.name for one in tiny.rows] == list(CLAIMS)
    for one in tiny.rows:
        assert (one.verdict is not None) is (one.kind is Kind.PREDICTION)
        if one.kind is Kind.PREDICTION:
            assert one.held or one.ours is not None or "no value" in one.why
        if one.ours is not None and one.range is not None:
            assert one.range[0] <= one.ours <= one.range[1]
    assert tiny.evidence == "simulated"
    placebo = next(one for one in tiny.rows if one.name == "R3")
    assert placebo.range == (0.0, 0.0)


def test_the_table_fits_a_terminal_and_names_every_row(tiny: Held) -> None:
    console = Console(width=80, record=True, file=StringIO())
    print_held(tiny, console)
    shown = console.export_text()
    assert all(len(line) <= 80 for line in shown.splitlines())
    assert all(re.search(rf"^{re.escape(name)} ", shown, re.MULTILINE) for name in CLAIMS)
    assert counts_text(tiny) in " ".join(shown.split())


def test_without_the_traces_their_rows_are_not_testable_and_say_why(tmp_path: Path) -> None:
    assert not [task for task in tasks(TINY, tmp_path) if GROUPS[task.case.group].trace]
    shown = row(CLAIMS["R2"], None, NO_TRACE)
    assert shown.kind is Kind.NOT_TESTABLE
    assert shown.verdict is None
    assert "examples/traces" in shown.why


def test_json_is_the_whole_of_it(tiny: Held) -> None:
    told = json.loads(msgspec.json.encode(tiny))
    assert msgspec.convert(told, Held) == tiny
    assert {"claim", "kind", "paper", "ours", "range", "verdict", "why"} <= told["rows"][0].keys()


@pytest.mark.parametrize("beside", [["--rate", "2"], ["--model", "qwen2.5-14b"], ["--html", "x"]])
def test_what_the_suite_brings_itself_is_refused_beside_it(beside: list[str]) -> None:
    result = CliRunner().invoke(app, ["whatif", "--suite", "strata", *beside])
    assert result.exit_code != 0
    assert "--jobs" in result.output + str(result.exception)
