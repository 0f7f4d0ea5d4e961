"""Commands that judge an engine from its URL: `look` and `doctor`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from kvready.advisor.commands import options
from kvready.advisor.doctor import diagnose
from kvready.advisor.doctor_text import print_diagnosis
from kvready.advisor.look import look as look_at
from kvready.advisor.look_text import print_look
from kvready.advisor.service.examine import SETTLE_SECONDS, TRAIL_SECONDS, examine
from kvready.advisor.service.scrape import scrape
from kvready.collectors.discover import discover
from kvready.collectors.errors import TapError
from kvready.collectors.rank_sources import given_sources
from kvready.collectors.surfaces import Surfaces
from kvready.kernels.profile_source import load_reference, profile_from

FOUND = 1
MIN_INTERVAL_SECONDS = 0.5

Url = Annotated[str, typer.Argument(help="The engine's HTTP server, as http://host:port.")]


def look(
    url: Url,
    seconds: Annotated[
        float, typer.Option("--seconds", help="How long to watch.", min=1, max=3600)
    ] = 60.0,
    interval: Annotated[
        float,
        typer.Option(
            "--interval",
            help="Seconds between scrapes; each costs the engine's API process some time.",
            min=MIN_INTERVAL_SECONDS,
        ),
    ] = 5.0,
    observer_dir: options.ObserverDir = None,
    link_profile: options.LinkProfile = None,
    as_json: options.AsJson = False,
) -> None:
    """Watch an engine's /metrics for a minute: where prompts come from, and what to change next.

    GETs only; nothing is installed and nothing restarts. Exit code 1: something hurts now.
    """
    place = options.effective(None, calibration__link_profile=link_profile).settings.calibration
    profile = None if place.link_profile is None else profile_from(place.link_profile)
    reference = None if profile is None else load_reference(profile)
    surfaces = found_at(url, observer_dir)
    if surfaces.page is None:
        raise TapError(f"{surfaces.url}: {surfaces.page_problem}")
    with watching(f"looking at {surfaces.url}", seconds) as on_progress:
        shots = scrape(surfaces, seconds, interval, on_progress)
    found = look_at(surfaces, shots, *(reference or ()))
    if as_json:
        typer.echo(msgspec.json.encode(found))
    else:
        print_look(found, Console())
    if found.found:
        raise typer.Exit(FOUND)


def doctor(
    url: Url,
    seconds: Annotated[
        float, typer.Option("--seconds", help="How long to watch.", min=1, max=3600)
    ] = 20.0,
    kv_events: options.KvEvents = None,
    replay: options.Replay = None,
    observer_dir: options.ObserverDir = None,
    as_json: options.AsJson = False,
) -> None:
    """Say what hurts an engine and what cannot be seen of it, each with the flag to change.

    GETs, a subscription to what it publishes, one bounded replay. Exit code 1: something was found.
    """
    surfaces = found_at(url, observer_dir, kv_events, replay)
    with watching(
        f"examining {surfaces.url}", seconds + SETTLE_SECONDS + TRAIL_SECONDS
    ) as progress:
        evidence = examine(
            surfaces, seconds, observer_wanted=observer_dir is not None, on_progress=progress
        )
    found = diagnose(evidence)
    if as_json:
        typer.echo(msgspec.json.encode(found))
    else:
        print_diagnosis(found, Console())
    if found.findings:
        raise typer.Exit(FOUND)


def found_at(
    url: str,
    observer_dir: Path | None,
    kv_events: list[str] | None = None,
    replay: list[str] | None = None,
) -> Surfaces:
    """What answers there, KV events as the user names them where the engine does not.

    Raises TapError that names the fix where it is no vLLM.
    """
    surfaces = discover(url, observer_dir)
    if surfaces.problem:
        raise TapError(surfaces.problem)
    if not kv_events:
        return surfaces
    sources = given_sources(
        surfaces.url, tuple(kv_events), tuple(replay or ()), surfaces.ranks or (0,)
    )
    return msgspec.structs.replace(surfaces, sources=sources)


@contextmanager
def watching(what: str, seconds: float) -> Iterator[Callable[[float], None] | None]:
    """A bar on a terminal while something is watched; None where nobody would see it."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed:.0f} s"))
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(what, total=seconds)
        yield lambda passed: progress.update(task, completed=passed)
