"""An evaluation from files to figures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from kvready.advisor.evaluation.evaluation import check, evaluate_target
from kvready.advisor.evaluation.first_loads import FirstLoads, Way, first_pairs, judge, ways
from kvready.advisor.evaluation.gathering import Gathered, gather
from kvready.advisor.evaluation.notes import notes_on
from kvready.advisor.evaluation.results import Evaluation, Origin
from kvready.advisor.evaluation.split import period_of
from kvready.advisor.ledger import Pair, Target
from kvready.advisor.load_priors import LoadPriors
from kvready.collectors.errors import RecordingError

Say = Callable[[str], None]


def evaluate(
    files: Sequence[Path],
    repeats: Sequence[Path] = (),
    starts: Sequence[LoadPriors] = (),
    targets: Sequence[Target] = tuple(Target),
    refit: bool = False,
    say: Say = lambda text: None,
) -> Evaluation:
    """Judge recordings; `repeats` are runs of the same traffic, in the order of `files`.

    `starts` are what the first loads are judged from. Raises `RecordingError` for a file that is no
    recording, for one too short, and for kinds that do not belong together.
    """
    runs = [_gathered(path, say) for path in files]
    evidence = check(runs)
    again = [_gathered(path, say) for path in repeats]
    _refuse_copies([*runs, *again])
    matched: list[Gathered | None] = [*again, *[None] * (len(runs) - len(again))]
    found = [
        evaluation
        for target in targets
        if (evaluation := evaluate_target(target, runs, matched, refit, say)) is not None
    ]
    first_loads = _first_loads(files, runs, starts, say)
    return Evaluation(
        evidence=evidence,
        recordings=[_origin(run) for run in runs],
        targets=found,
        first_loads=first_loads,
        notes=notes_on(found, first_loads, refit),
        refit=refit,
    )


def _refuse_copies(runs: Sequence[Gathered]) -> None:
    """One run told twice would make all look surer than it is, and the noise floor nothing."""
    seen: dict[tuple[float, ...], str] = {}
    for run in runs:
        outcomes = tuple(sample.actual_seconds for sample in run.samples)
        if outcomes in seen:
            raise RecordingError(
                f"{run.name} is the same run as {seen[outcomes]}; name each run once, and as a "
                "repeat another run of the same seed"
            )
        seen[outcomes] = run.name


def _gathered(path: Path, say: Say) -> Gathered:
    say(f"{path.name}: replaying")
    return gather(path, on_progress=lambda records: say(f"{path.name}: {records:,} records"))


def _first_loads(
    files: Sequence[Path], runs: Sequence[Gathered], starts: Sequence[LoadPriors], say: Say
) -> list[FirstLoads]:
    wanted = [ways(run.samples) for run in runs]
    every_way: list[Way] = sorted({way for counts in wanted for way in counts})
    judged = []
    for priors in starts if every_way else ():
        pooled: dict[Way, list[Pair]] = {way: [] for way in every_way}
        for path, counts in zip(files, wanted, strict=True):
            if counts:
                say(f"{path.name}: first loads, {priors.described}")
                for way, pairs in first_pairs(path, priors, counts).items():
                    pooled[way] += pairs
        judged += [judge(way, priors, pairs) for way, pairs in pooled.items() if pairs]
    return sorted(judged, key=lambda one: (one.target, one.source, one.mover))


def _origin(run: Gathered) -> Origin:
    period = period_of(run)
    return Origin(
        name=run.name,
        records=run.records,
        scored_seconds=period.end_seconds - period.begin_seconds,
        conditions=run.header.conditions | run.conditions,
        damage=run.damage,
        unkept=run.unkept,
    )
