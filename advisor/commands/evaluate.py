"""The command that judges predictions: `evaluate`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn

from kvready.advisor.commands import options
from kvready.advisor.ledger import Target
from kvready.advisor.link_curves import priors_of
from kvready.advisor.load_priors import NO_PROFILE, LoadPriors
from kvready.collectors.errors import SettingsError
from kvready.kernels.profile import read_profile
from kvready.kernels.profile_source import PUBLISHED_PREFIX
from kvready.kernels.published import PUBLISHED, published_profile

FOUND = 1
MAX_RECORDINGS = 32
DEFAULT_PUBLISHED = next(iter(PUBLISHED))


def evaluate(
    files: Annotated[
        list[Path], typer.Argument(help="Recordings (.kvr), judged together.", metavar="FILE...")
    ],
    repeat: Annotated[
        list[Path] | None,
        typer.Option(
            "--repeat",
            help="A recording of the same traffic, run once more: the noise floor; once per FILE.",
            metavar="OTHER",
        ),
    ] = None,
    link_profile: Annotated[
        list[str] | None,
        typer.Option(
            "--link-profile",
            help="Link profile of the recorded machine, or published:NAME; repeatable.",
            metavar="PROFILE",
        ),
    ] = None,
    target: Annotated[
        list[Target] | None, typer.Option("--target", help="Judge this alone; repeatable.")
    ] = None,
    refit: Annotated[
        bool, typer.Option("--refit", help="Let rivals learn again, four times, while scored.")
    ] = False,
    as_json: options.AsJson = False,
) -> None:
    """Judge what is predicted in recordings against what happened, beside simpler predictions.

    A recording's first third is learned from, the rest is scored.
    """
    if len(files) > MAX_RECORDINGS:
        raise SettingsError(f"{len(files)} recordings: at most {MAX_RECORDINGS} at a time")
    if len(repeat or []) > len(files):
        raise SettingsError("more --repeat than recordings: give one per FILE, in their order")
    # Here: numpy and scikit-learn take a second to load.
    from kvready.advisor.evaluation.run import evaluate as judged
    from kvready.advisor.evaluation.text import print_evaluation

    with _progress() as say:
        evaluation = judged(
            files,
            repeat or [],
            _starts(link_profile or []),
            [one for one in Target if not target or one in target],
            refit,
            say,
        )
    if as_json:
        typer.echo(msgspec.json.encode(evaluation))
    else:
        print_evaluation(evaluation, Console())
    damaged = [one for one in evaluation.recordings if one.damage]
    for one in damaged:
        print(f"warning: {one.name}: {one.damage}; what is left was used", file=sys.stderr)
    if damaged:
        raise typer.Exit(FOUND)


def _starts(places: list[str]) -> list[LoadPriors]:
    """What loads start from: nothing, a published machine, and whatever was named."""
    names = [place.removeprefix(PUBLISHED_PREFIX) for place in places if _is_published(place)]
    profiles = [published_profile(name) for name in names or [DEFAULT_PUBLISHED]]
    # Of the machine that was recorded, which need not be this one.
    profiles += [read_profile(Path(place)) for place in places if not _is_published(place)]
    return [NO_PROFILE, *map(priors_of, profiles)]


def _is_published(place: str) -> bool:
    return place.startswith(PUBLISHED_PREFIX)


@contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda text: None
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=None)
        yield lambda text: progress.update(task, description=text)
