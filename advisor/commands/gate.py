"""`gate`: what the gates of each policy say, from a sidecar, a recording or an evidence bundle.

Exit code 1: a gate fails, or its evidence is broken.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from kvready.advisor.commands.options import AsJson
from kvready.advisor.commands.policy import URL, Token, Url
from kvready.advisor.commands.policy_client import PolicyClient
from kvready.advisor.evidence_bundle import bundled_reports, is_bundle
from kvready.advisor.gate_text import report_lines
from kvready.advisor.gates import report_bytes
from kvready.advisor.playback import play
from kvready.advisor.policies import ORDER, Policy
from kvready.advisor.verdicts import GateReport, Verdict
from kvready.collectors.errors import RecordingError, ServiceError

FOUND = 1

app = typer.Typer(help="What the gates of each policy say.")

From = Annotated[
    Path | None,
    typer.Option("--from", help="A recording (.kvr) or a bundle, in place of a sidecar."),
]


@app.callback()
def gate() -> None:
    """What the gates of each policy say."""


@app.command()
def report(
    name: Annotated[Policy | None, typer.Argument(metavar="POLICY", help="All, if none.")] = None,
    source: From = None,
    url: Url = URL,
    token_file: Token = None,
    as_json: AsJson = False,
) -> None:
    """The latest verdict of each policy, with every check, its figure and its limit."""
    found = [one for one in latest_reports(source, url, token_file) if name in (None, one.policy)]
    print_reports(found, as_json)
    if any(one.verdict in (Verdict.FAIL, Verdict.ERROR) for one in found):
        raise typer.Exit(FOUND)


def latest_reports(source: Path | None, url: str, token_file: Path | None) -> list[GateReport]:
    """From a file, or from a sidecar. Raises `RecordingError` or `ServiceError`."""
    if source is None:
        client = PolicyClient(url, token_file)
        return [one for policy in ORDER for one in served_reports(client, policy, 1)]
    if is_bundle(source):
        return list(bundled_reports(source))
    found = list(play(source).pipeline.gates.latest.values())
    if not found:
        raise RecordingError(
            f"no gate was asked in {source}: it is shorter than a minute; record for longer"
        )
    return found


def served_reports(client: PolicyClient, policy: Policy, limit: int) -> list[GateReport]:
    """The latest that a sidecar keeps, newest first."""
    document = client.get("/v1/gates", policy=policy.value, limit=limit)
    try:
        return msgspec.convert(document["reports"], type=list[GateReport])
    except (KeyError, msgspec.ValidationError) as error:
        raise ServiceError(f"its gate reports cannot be read ({error}): upgrade kvready") from None


def print_reports(found: Sequence[GateReport], as_json: bool) -> None:
    """As lines, or as a JSON list in their one spelling."""
    if as_json:
        typer.echo(b"[" + b",".join(report_bytes(one) for one in found) + b"]")
    elif found:
        typer.echo("\n\n".join("\n".join(report_lines(one)) for one in found))
    else:
        typer.echo("no gate report yet: gates are asked once a minute")
