"""All commands in one application."""

from __future__ import annotations

from typing import Annotated

import typer

from kvready.advisor.commands import (
    attach,
    audit,
    calibrate,
    evaluate,
    evidence,
    explain,
    gate,
    gateway,
    live,
    outside,
    policy,
    policy_plan,
    recorded,
    shown,
    sim_engine,
    whatif,
)
from kvready.advisor.version import VERSION

app = typer.Typer(
    name="kvready",
    help="Will this KV prefix be ready for attention in time? A sidecar that only watches.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.command("look")(outside.look)
app.command("attach")(attach.attach)
app.command("doctor")(outside.doctor)
app.add_typer(calibrate.app, name="calibrate")
app.command("serve")(live.serve)
app.command("record")(live.record)
app.command("gateway")(gateway.gateway)
app.command("replay")(recorded.replay)
app.command("report")(recorded.report)
app.command("evaluate")(evaluate.evaluate)
app.command("whatif")(whatif.whatif)
app.add_typer(policy.app, name="policy")
app.add_typer(audit.app, name="audit")
app.add_typer(gate.app, name="gate")
app.add_typer(evidence.app, name="evidence")
app.command("explain")(explain.explain)
app.command("share")(recorded.share)
app.command("demo")(recorded.demo)
policy.app.command("plan")(policy_plan.plan)
app.command("settings")(shown.settings)
app.command("sim-engine")(sim_engine.sim_engine)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(VERSION)
        raise typer.Exit


@app.callback()
def kvready(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Will this KV prefix be ready for attention in time? A sidecar that only watches."""
