"""Gates: worse evidence never earns a better verdict, and one verdict follows from many checks."""

from __future__ import annotations

import math
from itertools import permutations

import msgspec
import pytest
from hypothesis import given, strategies

from kvready.advisor.gate_accuracy import MIN_CELL_PAIRS, MIN_COVERAGE
from kvready.advisor.gate_benefit import MIN_BATCHES, MINUTES_FOR_FINDING
from kvready.advisor.gate_bitwise import MIN_CHECKED
from kvready.advisor.gate_data import MIN_PAIRS
from kvready.advisor.gate_evidence import (
    TARGETS,
    CellEvidence,
    ConstraintEvidence,
    CopyChecks,
    EngineEvidence,
    GateEvidence,
    SavingEvidence,
    SlowdownEvidence,
    TapEvidence,
)
from kvready.advisor.gates import (
    FAILURES_IN_A_ROW,
    GRAVITY,
    PASSES_IN_A_ROW,
    Basis,
    Row,
    Subject,
    checked,
    combined,
    digest_of,
    report_bytes,
    report_of,
    settled,
)
from kvready.advisor.ledger import Target
from kvready.advisor.policies import ORDER, Finding, Mode, Policy, Scope
from kvready.advisor.savings import Bounded
from kvready.advisor.savings import Verdict as Saved
from kvready.advisor.verdicts import Check, Gate, GateReport, Verdict

POLICIES = strategies.sampled_from(ORDER)
replace = msgspec.structs.replace


def good_cell(target: Target, shape: str = "a", pairs: int = 2 * MIN_PAIRS) -> CellEvidence:
    """Errors that alternate, 95 % of outcomes covered."""
    errors = tuple(0.01 * (-1) ** n for n in range(pairs))
    return CellEvidence(target, shape, int(0.95 * pairs), errors)


def good(policy: Policy, mode: Mode = Mode.SHADOW) -> GateEvidence:
    """Evidence on which everything passes."""
    harm = (Check(Gate.HARM, "canary_mean_ttft_ratio", Verdict.PASS, 0.9, None, 1.1),)
    benefit = (Check(Gate.BENEFIT, "canary_mean_ttft_ratio", Verdict.PASS, 0.9, None, 1.0),)
    return GateEvidence(
        policy=policy,
        mode=mode,
        cells=tuple(good_cell(target) for target in TARGETS[policy]),
        bad_cells=(),
        left_out={},
        taps=TapEvidence(100_000, 0),
        engine=EngineEvidence("vllm 0.32.0"),
        saving=SavingEvidence(
            Saved.SHOWN, Bounded(3.0, 1.0, 5.0), Bounded(0.0, -1.0, 1.0),
            Saved.SHOWN, Bounded(0.0, -1.0, 1.0), 5_000,
        ),
        constraint=ConstraintEvidence(60, 30, "link"),
        slowdown=SlowdownEvidence(1.1, 1.0, 1.2),
        copies=CopyChecks(MIN_CHECKED, 0),
        burn=(Check(Gate.ACCURACY, "burn", Verdict.PASS, 0.2, None, 6.0),),
        harm=harm if mode.acts else (),
        benefit=benefit if mode.acts else (),
    )  # fmt: skip


def verdict_of(evidence: GateEvidence) -> Verdict:
    return combined(checked(evidence)[0])


def check_named(evidence: GateEvidence, name: str) -> Check:
    return next(check for check in checked(evidence)[0] if check.name == name)


@pytest.mark.parametrize("mode", [Mode.SHADOW, Mode.ADVISE, Mode.CANARY, Mode.ENFORCE])
@pytest.mark.parametrize("policy", ORDER)
def test_all_gates_pass_on_good_evidence(policy: Policy, mode: Mode) -> None:
    checks, finding = checked(good(policy, mode))
    assert {check.verdict for check in checks} == {Verdict.PASS}
    assert finding is None


def less_covered(evidence: GateEvidence, amount: float) -> GateEvidence:
    cells = tuple(replace(c, covered=int(c.covered * (1.0 - amount))) for c in evidence.cells)
    return replace(evidence, cells=cells)


def more_wrong(evidence: GateEvidence, amount: float) -> GateEvidence:
    cells = tuple(
        replace(c, errors=tuple(e * (1.0 + 100.0 * amount) for e in c.errors))
        for c in evidence.cells
    )
    return replace(evidence, cells=cells)


def one_sided(evidence: GateEvidence, amount: float) -> GateEvidence:
    """No error smaller than before, and all of them to one side."""
    cells = tuple(
        replace(c, errors=tuple(abs(e) + amount for e in c.errors)) for c in evidence.cells
    )
    return replace(evidence, cells=cells)


def more_lost(evidence: GateEvidence, amount: float) -> GateEvidence:
    taps = replace(evidence.taps, lost=evidence.taps.lost + int(1_000 * amount))
    return replace(evidence, taps=taps)


def doubtful(evidence: GateEvidence, amount: float) -> GateEvidence:
    names = tuple(f"tap{n}" for n in range(math.ceil(amount * 3)))
    return replace(evidence, taps=replace(evidence.taps, doubtful=evidence.taps.doubtful + names))


def stale(evidence: GateEvidence, amount: float) -> GateEvidence:
    return replace(evidence, engine=replace(evidence.engine, stale_calibrations=("link",)))


def stalled(evidence: GateEvidence, amount: float) -> GateEvidence:
    return replace(evidence, engine=replace(evidence.engine, is_stalled=True))


def saves_less(evidence: GateEvidence, amount: float) -> GateEvidence:
    saving = evidence.saving
    if saving is None:
        return evidence
    down = 10.0 * amount
    ttft, busy = (
        Bounded(b.seconds - down, (b.low_seconds or 0.0) - down, (b.high_seconds or 0.0) - down)
        for b in (saving.ttft, saving.busy)
    )
    return replace(evidence, saving=replace(saving, ttft=ttft, busy=busy))


def unproven(evidence: GateEvidence, amount: float) -> GateEvidence:
    saving = evidence.saving
    if saving is None or saving.verdict is not Saved.SHOWN:
        return evidence
    worse = replace(saving, placebo=Saved.UNPROVEN, verdict=Saved.UNPROVEN)
    return replace(evidence, saving=worse)


def less_bound(evidence: GateEvidence, amount: float) -> GateEvidence:
    seen = evidence.constraint
    bound = int(seen.bound_minutes * (1.0 - amount))
    return replace(evidence, constraint=replace(seen, bound_minutes=bound))


def mismatched(evidence: GateEvidence, amount: float) -> GateEvidence:
    copies = replace(evidence.copies, mismatched=evidence.copies.mismatched + 1)
    return replace(evidence, copies=copies)


def graver(evidence: GateEvidence, amount: float) -> GateEvidence:
    def worse(checks: tuple[Check, ...]) -> tuple[Check, ...]:
        return tuple(
            replace(c, verdict=GRAVITY[max(0, GRAVITY.index(c.verdict) - 1)]) for c in checks
        )

    return replace(
        evidence,
        burn=worse(evidence.burn),
        harm=worse(evidence.harm),
        benefit=worse(evidence.benefit),
    )


def narrower(evidence: GateEvidence, amount: float) -> GateEvidence:
    more = int(1_000 * amount)
    left = {t: evidence.left_out.get(t, 0) + more for t in TARGETS[evidence.policy]}
    return replace(evidence, left_out=left)


WORSE = (
    less_covered, more_wrong, one_sided, more_lost, doubtful, stale, stalled, saves_less, unproven,
    less_bound, mismatched, graver, narrower,
)  # fmt: skip


@given(
    policy=POLICIES,
    mode=strategies.sampled_from([Mode.SHADOW, Mode.ADVISE, Mode.CANARY, Mode.ENFORCE]),
    minutes=strategies.integers(0, 100),
    steps=strategies.lists(
        strategies.tuples(strategies.sampled_from(WORSE), strategies.floats(0.0, 1.0)),
        min_size=1,
        max_size=5,
    ),
)
def test_worse_evidence_never_earns_a_better_verdict(policy, mode, minutes, steps) -> None:
    evidence = good(policy, mode)
    evidence = replace(evidence, constraint=ConstraintEvidence(minutes, minutes, "link"))
    before = verdict_of(evidence)
    for worsen, amount in steps:
        evidence = worsen(evidence, amount)
        after = verdict_of(evidence)
        # A machinery that is not believed no longer speaks against a policy either: it errs.
        least = Verdict.ERROR if worsen is unproven and before is Verdict.FAIL else before
        assert GRAVITY.index(after) <= GRAVITY.index(least), worsen.__name__
        before = after


@pytest.mark.parametrize("worsen", WORSE, ids=lambda one: one.__name__)
def test_each_kind_of_worse_evidence_is_noticed(worsen) -> None:
    # Wrong bytes and would-be savings are asked of gpu_copy before it acts; all else of all.
    modes = (Mode.SHADOW, Mode.CANARY)
    verdicts = [verdict_of(worsen(good(Policy.GPU_COPY, mode), 1.0)) for mode in modes]
    assert any(verdict is not Verdict.PASS for verdict in verdicts)


@given(policy=POLICIES, pairs=strategies.integers(0, MIN_CELL_PAIRS - 1))
def test_too_few_outcomes_never_pass_and_never_fail(policy: Policy, pairs: int) -> None:
    cells = tuple(
        CellEvidence(target, "a", 0, (9.0,) * pairs) for target in TARGETS[policy] if pairs
    )
    assert verdict_of(replace(good(policy), cells=cells)) is Verdict.INCONCLUSIVE


def told_at(moments: int, covered: int, pairs: int = 400) -> CellEvidence:
    """Outcomes that come in as many clusters, each as well covered as all."""
    seconds = tuple(float(n % moments) for n in range(pairs))
    share = covered / pairs
    return CellEvidence(
        Target.INFLIGHT_READY, "a", covered, (0.0,) * pairs, seconds, share * moments
    )


@pytest.mark.parametrize(
    ("moments", "covered", "verdict"),
    [
        (400, 100, Verdict.FAIL),
        (MIN_CELL_PAIRS, 100, Verdict.FAIL),
        (MIN_CELL_PAIRS - 1, 100, Verdict.INCONCLUSIVE),  # fewer leaders tell nothing
        (400, 320, Verdict.FAIL),
        (MIN_CELL_PAIRS, 320, Verdict.INCONCLUSIVE),  # as 24 of 30: may be chance
        (MIN_CELL_PAIRS, 360, Verdict.PASS),
    ],
)
def test_outcomes_that_are_told_at_one_moment_count_once(
    moments: int, covered: int, verdict: Verdict
) -> None:
    evidence = replace(good(Policy.DEDUP), cells=(told_at(moments, covered),))
    assert check_named(evidence, "inflight_ready_coverage").verdict is verdict


def test_one_late_leader_does_not_make_most_of_a_cell_wrong() -> None:
    """Forty leaders in time, one late with four hundred who waited for it."""
    errors = (0.0,) * 40 + (1.0,) * 400
    seconds = tuple(map(float, range(40))) + (99.0,) * 400
    cell = CellEvidence(Target.INFLIGHT_READY, "a", 440, errors, seconds, 41.0)
    evidence = replace(good(Policy.DEDUP), cells=(cell,))
    assert check_named(evidence, "inflight_ready_bias").verdict is Verdict.INCONCLUSIVE
    apart = replace(cell, told_seconds=())
    evidence = replace(evidence, cells=(apart,))
    assert check_named(evidence, "inflight_ready_bias").verdict is Verdict.FAIL


@given(POLICIES)
def test_nothing_seen_is_doubt(policy: Policy) -> None:
    nothing = GateEvidence(
        policy=policy, mode=Mode.SHADOW, cells=(), bad_cells=(), left_out={},
        taps=TapEvidence(0, 0), engine=EngineEvidence(""), saving=None,
        constraint=ConstraintEvidence(0, 0, "link"),
    )  # fmt: skip
    assert verdict_of(nothing) is Verdict.INCONCLUSIVE


def test_one_bad_shape_is_not_hidden_by_many_good_ones() -> None:
    target = Target.INFLIGHT_READY
    cells = [good_cell(target, f"good{n}") for n in range(20)]
    bad = CellEvidence(target, "bad", 10, (0.01,) * 40)
    evidence = replace(good(Policy.DEDUP), cells=(*cells, bad))
    coverage = check_named(evidence, "inflight_ready_coverage")
    pooled = (20 * cells[0].covered + 10) / (20 * cells[0].scored + 40)
    assert pooled > MIN_COVERAGE  # an average would have passed
    assert coverage.verdict is Verdict.FAIL
    assert coverage.value == 0.25
    assert "bad" in coverage.note


def test_errors_that_cancel_each_other_fail_all_the_same() -> None:
    target = Target.INFLIGHT_READY
    cell = CellEvidence(target, "a", 190, tuple(math.log(3.0) * (-1) ** n for n in range(200)))
    evidence = replace(good(Policy.DEDUP), cells=(cell,))
    assert check_named(evidence, "inflight_ready_bias").verdict is not Verdict.FAIL
    error = check_named(evidence, "inflight_ready_median_error")
    assert error.verdict is Verdict.FAIL
    assert error.value == pytest.approx(3.0)


@given(strategies.lists(strategies.sampled_from(Verdict), max_size=8))
def test_failures_beat_errors_beat_doubt_beat_passes(verdicts: list[Verdict]) -> None:
    checks = [Check(Gate.DATA, f"c{n}", verdict, None) for n, verdict in enumerate(verdicts)]
    # An oracle that reads the rule off its words.
    expected = Verdict.INCONCLUSIVE
    for verdict in (Verdict.PASS, Verdict.INCONCLUSIVE, Verdict.ERROR, Verdict.FAIL):
        if verdict in verdicts:
            expected = verdict
    assert combined(checks) is expected


def test_the_order_of_checks_does_not_matter() -> None:
    checks = [Check(Gate.DATA, str(one), one, None) for one in Verdict]
    assert {combined(order) for order in permutations(checks)} == {Verdict.FAIL}


def test_a_pass_counts_once_it_came_up_often_enough() -> None:
    row = Row()
    told = [settled(checked(good(Policy.DEDUP))[0], row)[1] for _ in range(PASSES_IN_A_ROW + 1)]
    expected = [Verdict.INCONCLUSIVE] * (PASSES_IN_A_ROW - 1) + [Verdict.PASS] * 2
    assert told == expected


def test_doubt_ends_a_row_of_passes() -> None:
    row = Row()
    for _ in range(PASSES_IN_A_ROW - 1):
        settled(checked(good(Policy.DEDUP))[0], row)
    settled(checked(less_covered(good(Policy.DEDUP), 0.12))[0], row)
    assert settled(checked(good(Policy.DEDUP))[0], row)[1] is Verdict.INCONCLUSIVE


def test_a_failure_counts_when_it_comes_up_again() -> None:
    row = Row()
    bad = less_covered(good(Policy.DEDUP), 0.9)
    told = [settled(checked(bad)[0], row)[1] for _ in range(FAILURES_IN_A_ROW)]
    assert told == [Verdict.INCONCLUSIVE] * (FAILURES_IN_A_ROW - 1) + [Verdict.FAIL]


def test_two_failures_of_different_checks_are_no_row() -> None:
    row = Row()
    settled(checked(less_covered(good(Policy.DEDUP), 0.9))[0], row)
    idle = replace(
        good(Policy.DEDUP), constraint=ConstraintEvidence(MINUTES_FOR_FINDING, 0, "compute")
    )
    assert settled(checked(idle)[0], row)[1] is Verdict.INCONCLUSIVE


@pytest.mark.parametrize("gate", [Gate.HARM, Gate.BITWISE])
def test_harm_and_wrong_bytes_count_at_once(gate: Gate) -> None:
    evidence = good(Policy.GPU_COPY, Mode.CANARY)
    if gate is Gate.HARM:
        worse = replace(evidence, harm=(Check(gate, "h", Verdict.FAIL, 2.0, None, 1.1),))
    else:
        worse = mismatched(evidence, 1.0)
    assert settled(checked(worse)[0], Row())[1] is Verdict.FAIL


def test_what_does_not_act_is_not_asked_for_harm() -> None:
    gates = {check.gate for check in checked(good(Policy.BALANCE, Mode.ADVISE))[0]}
    assert Gate.HARM not in gates


@pytest.mark.parametrize(
    ("evidence", "finding"),
    [
        (replace(good(Policy.DEDUP), engine=EngineEvidence("e 1", supported_kv_state=False)),
         Finding.NO_HOOK),
        (replace(good(Policy.GPU_COPY), engine=EngineEvidence("e 1", gathers_itself=True)),
         Finding.NATIVE),
        (replace(good(Policy.BALANCE), engine=EngineEvidence("e 1", has_lower_tier=False)),
         Finding.NO_BENEFIT),
        (replace(good(Policy.DEDUP),
                 constraint=ConstraintEvidence(MINUTES_FOR_FINDING, 0, "compute")),
         Finding.NO_BENEFIT),
        (replace(good(Policy.DEDUP),
                 saving=replace(good(Policy.DEDUP).saving, verdict=Saved.NATIVE)),
         Finding.NATIVE),
        (replace(good(Policy.DEDUP),
                 saving=replace(good(Policy.DEDUP).saving, verdict=Saved.NO_EPISODES,
                                batches=MIN_BATCHES)),
         Finding.NO_BENEFIT),
    ],
)  # fmt: skip
def test_a_policy_with_nothing_to_do_is_found_so_twice_before_it_is_told(evidence, finding) -> None:
    row = Row()
    first, second = (_report(evidence, row) for _ in range(2))
    assert first.finding is None
    assert second.finding is finding
    assert second.verdict is Verdict.FAIL


def test_what_acts_is_not_judged_by_what_it_relieves() -> None:
    """It works where the constraint is gone."""
    evidence = replace(
        good(Policy.BALANCE, Mode.ENFORCE), constraint=ConstraintEvidence(100, 0, "link")
    )
    assert verdict_of(evidence) is Verdict.PASS


def test_a_report_is_named_by_all_that_it_says() -> None:
    report = _report(good(Policy.DEDUP), Row())
    assert report.report_id == digest_of(report)
    other = replace(report, made_seconds=report.made_seconds + 1.0)
    assert digest_of(other) != report.report_id
    assert msgspec.json.decode(report_bytes(report), type=GateReport) == report


def _report(evidence: GateEvidence, row: Row) -> GateReport:
    subject = Subject(evidence.policy, Scope(), evidence.mode, "1", 7, 70.0)
    return report_of(evidence, row, subject, Basis({"evidence": "measured"}))
