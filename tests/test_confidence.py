"""Evidence from pairs: valid at every peek, agreed with by a randomisation test."""

from __future__ import annotations

import itertools
import math
import random

from hypothesis import given
from hypothesis import strategies as st

from kvready.advisor.confidence import BETS, Evidence, bounds

DIFFERENCES = st.lists(st.floats(-3.0, 3.0), min_size=1, max_size=8)
ROUNDING = 1e-9


def evidence_of(differences: list[float], null: float = 0.0, restarts: bool = False) -> float:
    evidence = Evidence(null, restarts)
    for one in differences:
        evidence.add(one)
    return evidence.value


def all_flips(differences: list[float]) -> list[list[float]]:
    signs = itertools.product((1.0, -1.0), repeat=len(differences))
    return [[s * d for s, d in zip(drawn, differences, strict=True)] for drawn in signs]


@given(DIFFERENCES)
def test_over_all_coins_evidence_is_one_on_average(differences: list[float]) -> None:
    values = [evidence_of(flipped) for flipped in all_flips(differences)]
    assert math.isclose(sum(values) / len(values), 1.0, rel_tol=ROUNDING)


@given(DIFFERENCES)
def test_evidence_that_looks_for_a_later_begin_never_exceeds_its_stake(
    differences: list[float],
) -> None:
    values = [evidence_of(flipped, restarts=True) for flipped in all_flips(differences)]
    assert sum(values) / len(values) <= 1.0 + ROUNDING


@given(DIFFERENCES, st.floats(0.0, 1.0))
def test_any_effects_on_the_safe_side_only_lower_it(
    differences: list[float], benefit: float
) -> None:
    values = []
    for flipped in all_flips(differences):
        # An effect of its own in each pair, none of them harm.
        treated = [d - benefit * (n % 3) for n, d in enumerate(flipped)]
        values.append(evidence_of(treated))
    assert sum(values) / len(values) <= 1.0 + ROUNDING


@given(DIFFERENCES)
def test_what_evidence_proves_a_randomisation_test_proves_too(differences: list[float]) -> None:
    # The share of coins under which the evidence would be as great or greater is the p-value of a
    # permutation test; an e-value never claims more.
    own = evidence_of(differences)
    as_great = [evidence_of(f) >= own * (1.0 - ROUNDING) for f in all_flips(differences)]
    p_value = sum(as_great) / len(as_great)
    assert 1.0 / own >= p_value - ROUNDING if own > 0.0 else True


def test_no_peek_of_many_claims_more_than_its_share() -> None:
    source = random.Random(1)
    alpha, courses, crossed = 0.05, 1_000, 0
    for _ in range(courses):
        evidence = Evidence(restarts=True)
        level = 0.0
        for _ in range(100):
            # Scatter that hangs together from pair to pair, with a heavy tail.
            level = 0.8 * level + source.gauss(0.0, 0.5)
            size = abs(source.gauss(0.0, 0.3)) * math.exp(level)
            evidence.add(size if source.random() < 0.5 else -size)
            if evidence.proves(alpha):
                crossed += 1
                break
    # Three standard errors of a share of 5 % in 1,000 courses.
    assert crossed / courses <= alpha + 3.0 * math.sqrt(alpha * (1.0 - alpha) / courses)


def test_bounds_hold_a_steady_effect_at_every_peek() -> None:
    source = random.Random(2)
    alpha, courses, effect, missed = 0.1, 100, 0.2, 0
    for _ in range(courses):
        seen: list[float] = []
        for number in range(1, 41):
            size = abs(source.gauss(0.0, 0.3))
            seen.append(effect + (size if source.random() < 0.5 else -size))
            if number % 5 == 0:
                found = bounds(seen, alpha)
                low = -math.inf if found.low is None else found.low
                high = math.inf if found.high is None else found.high
                if not low <= effect <= high:
                    missed += 1
                    break
    assert missed / courses <= alpha + 3.0 * math.sqrt(alpha * (1.0 - alpha) / courses)


@given(st.lists(st.floats(-1.0, 1.0), min_size=8, max_size=24), st.floats(-2.0, 2.0))
def test_bounds_move_with_the_differences(differences: list[float], shift: float) -> None:
    before = bounds(differences, 0.1)
    after = bounds([one + shift for one in differences], 0.1)
    assert (before.low is None) == (after.low is None)
    if before.low is not None and after.low is not None:
        assert math.isclose(before.low + shift, after.low, abs_tol=1e-4)


def test_too_few_pairs_prove_nothing_however_great_the_effect() -> None:
    for pairs in range(1, 12):
        assert evidence_of([50.0] * pairs) <= 2.0**pairs
    assert bounds([50.0] * 4, 0.05).low is None  # 2 ** 4 < 2 / 0.05
    assert bounds([50.0] * 6, 0.05).low is not None


def test_bets_span_small_effects_in_much_scatter_to_great_ones_in_little() -> None:
    assert list(BETS) == sorted(BETS)
    assert BETS[0] < 0.1 / 0.5**2
    assert BETS[-1] > 0.1 / 0.05**2
