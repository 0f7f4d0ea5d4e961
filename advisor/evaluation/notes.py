"""What a reader of the tables must not overlook, in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kvready.advisor.evaluation.bootstrap import BLOCK_SECONDS, MIN_BLOCKS, Between
from kvready.advisor.evaluation.evaluation import FEW
from kvready.advisor.evaluation.first_loads import FirstLoads
from kvready.advisor.evaluation.results import Against, Group, GroupKind, TargetEvaluation
from kvready.advisor.evaluation.split import MIN_TRAINING_SAMPLES
from kvready.advisor.load_priors import PriorKind

FEWEST_COVERED, MOST_COVERED = 0.85, 0.95


def notes_on(
    targets: Sequence[TargetEvaluation], first_loads: Sequence[FirstLoads], refit: bool
) -> list[str]:
    """Losses first, then what the figures lean on."""
    notes: list[str] = []
    for target in targets:
        for group in target.groups:
            notes += _lost(target, group)
            notes += _uncovered(target, group)
    notes += _leaning(targets, refit)
    notes += _on_first_loads(first_loads)
    return notes


def between_text(figure: Between) -> str:
    """A ratio with its interval."""
    if figure.low is None or figure.high is None:
        return f"{figure.value:.2f}"
    return f"{figure.value:.2f} [{figure.low:.2f}, {figure.high:.2f}]"


def place(target: TargetEvaluation, group: Group) -> str:
    """A group of samples by name."""
    return target.target if group.kind is GroupKind.ALL else f"{target.target}, {group.name}"


def _lost(target: TargetEvaluation, group: Group) -> Iterator[str]:
    """Where a rival's loss is smaller."""
    for against in group.against:
        for loss, figure in _losses(against):
            if figure.value <= 1.0:
                continue
            if figure.low is not None and figure.low > 1.0:
                verdict = "kvready is worse"
            elif figure.low is not None:
                verdict = "kvready is worse, by no more than other minutes may show"
            else:
                verdict = "kvready is worse, in too little time to be sure"
            yield (
                f"{place(target, group)}: against {against.rival} on {loss}, {verdict}: "
                f"{between_text(figure)}"
            )


def _losses(against: Against) -> Iterator[tuple[str, Between]]:
    yield "p50 loss", against.pinball_p50
    yield "p90 loss", against.pinball_p90
    yield "interval score", against.interval_score


def _uncovered(target: TargetEvaluation, group: Group) -> Iterator[str]:
    if group.coverage is None:
        return
    share = group.coverage.value
    if not FEWEST_COVERED <= share <= MOST_COVERED:
        what = "too narrow" if share < FEWEST_COVERED else "wider than need be"
        low, high = group.coverage.low, group.coverage.high
        between = "" if low is None or high is None else f" [{low:.0%}, {high:.0%}]"
        yield f"{place(target, group)}: intervals hold {share:.0%}{between}, not 90%: {what}"


def _leaning(targets: Sequence[TargetEvaluation], refit: bool) -> Iterator[str]:
    coverages = [group.coverage for target in targets for group in target.groups[:1]]
    blocks = max((figure.blocks for figure in coverages if figure is not None), default=0)
    if blocks < MIN_BLOCKS:
        yield (
            f"what is scored makes {blocks} of the {MIN_BLOCKS} blocks of {BLOCK_SECONDS:.0f} s "
            "that it takes to say how sure a ratio is: ratios stand without intervals; evaluate "
            "longer recordings, or several"
        )
    for target in targets:
        if target.without_rivals:
            yield (
                f"{target.target}: fewer than {MIN_TRAINING_SAMPLES} outcomes in the first third, "
                "so no rival could learn"
            )
    few = sum(group.samples < FEW for target in targets for group in target.groups)
    if few:
        yield f"{few} groups hold fewer than {FEW} samples: read them as examples, not as figures"
    if refit:
        yield "rivals learned again four times while scored; kvready learns from each outcome"
    else:
        yield (
            "rivals stay as the first third left them, kvready learns on from each outcome; "
            "--refit lets rivals learn on too"
        )


def _on_first_loads(first_loads: Sequence[FirstLoads]) -> Iterator[str]:
    if not first_loads:
        yield "no copies were forecast: nothing to say of where loads start from"
        return
    if all(one.evidence is not PriorKind.MEASURED for one in first_loads):
        yield (
            "no profile of this machine was given, so the first loads have two starts only: "
            "`kvready calibrate`, then --link-profile FILE"
        )
    for way in dict.fromkeys((one.target, one.source, one.mover) for one in first_loads):
        rows = [one for one in first_loads if (one.target, one.source, one.mover) == way]
        best = min(rows, key=lambda one: one.interval_score_seconds)
        measured = [one for one in rows if one.evidence is PriorKind.MEASURED]
        if measured and best.evidence is not PriorKind.MEASURED:
            yield (
                f"first {way[0]}s from {way[1]} by {way[2]}: the measured start is not the best, "
                f"{best.evidence} is"
            )
