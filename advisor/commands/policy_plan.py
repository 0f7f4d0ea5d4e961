"""`policy plan`: what a canary could tell of this traffic, and how long it takes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from kvready.advisor.canary import CANARY_PERCENTS
from kvready.advisor.commands import options
from kvready.advisor.measures import is_ratio
from kvready.advisor.playback import play
from kvready.advisor.policies import Policy, Scope
from kvready.advisor.power import POWER, Detection, PowerPlan, planned
from kvready.collectors.errors import SettingsError

CANNOT_CONCLUDE = 1


def plan(
    policy: Annotated[Policy, typer.Argument(help="dedup, balance or gpu_copy.")],
    recording: Annotated[
        Path, typer.Option("--recording", help="This traffic, recorded with nothing acting (.kvr).")
    ],
    share: Annotated[
        int, typer.Option("--share", help="Per cent that the canary treats: 1, 5, 20 or 50.")
    ] = 50,
    benefit: Annotated[
        float, typer.Option("--benefit", help="Share of the mean TTFT that is hoped for.")
    ] = 0.1,
    as_json: options.AsJson = False,
) -> None:
    """Say what a canary of POLICY could detect, and in how many hours of the recorded traffic.

    Exit code 1: it could not conclude, and is refused.
    """
    if share not in CANARY_PERCENTS:
        known = ", ".join(map(str, CANARY_PERCENTS))
        raise SettingsError(f"--share {share}: a canary treats one of {known} per cent")
    if not 0.0 < benefit < 1.0:
        raise SettingsError(f"--benefit {benefit:g}: name a share between 0 and 1")
    windows = play(recording).pipeline.canaries.windows((policy, Scope()))
    made = planned(windows, policy, share, benefit)
    if as_json:
        typer.echo(msgspec.json.encode(made))
    else:
        _print(made, len(windows), recording.name)
    if made.refusals:
        raise typer.Exit(CANNOT_CONCLUDE)


def _print(made: PowerPlan, windows: int, source: str) -> None:
    console = Console()
    pair = f"{made.pair_seconds:.0f} s a pair" if made.pair_seconds else "no pair of windows"
    usable = f", {made.usable_ratio:.0%} of pairs usable" if made.usable_ratio is not None else ""
    console.print(
        f"{made.policy} at {made.percent} %: {windows} windows of {source}, {pair}{usable}; "
        f"{made.split_ratio:.0%} of pairs will have both arms"
    )
    if made.measures:
        table = Table(title=f"Hours until it is told, with {POWER:.0%} power", title_justify="left")
        for name in ("measure", "scatter", "10 % harm", "25 % harm", "50 % harm", "no harm"):
            table.add_column(name)
        table.add_column("least harm found")
        for one in made.measures:
            harms = [_hours(found) for found in one.harms] or ["-"] * 3
            least = "none" if one.detectable is None else f"{one.detectable:+.1%}"
            scatter = f"{one.scatter:.0%}" if is_ratio(one.measure) else f"{one.scatter:.3f}"
            table.add_row(one.measure, scatter, *harms, _hours(one.harmless), least)
        console.print(table)
    if made.benefit is not None:
        console.print(f"{made.benefit.what}: {_hours(made.benefit)}")
    for why in made.refusals:
        console.print(f"refused: {why}")
    if not made.refusals:
        console.print("this canary can conclude")


def _hours(found: Detection) -> str:
    return "not in time" if found.hours is None else f"{found.hours:.1f} h"
