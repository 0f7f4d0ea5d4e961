"""`evidence`: a gate's verdict with all that it follows from, in one file that anyone replays.

Exit code 1: the verdict does not come out again.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from kvready.advisor.commands.options import AsJson
from kvready.advisor.commands.recorded import part_of
from kvready.advisor.evidence_bundle import Verified, make_bundle, verify_bundle

DIFFERS = 1

app = typer.Typer(help="A verdict with all that it follows from, to be replayed by anyone.")

Bundle = Annotated[Path, typer.Argument(help="An evidence bundle.")]


@app.command()
def make(
    recording: Annotated[Path, typer.Argument(help="A recording (.kvr); share it first.")],
    out: Annotated[Path, typer.Argument(help="New bundle; never overwritten.")],
    report_id: Annotated[
        str, typer.Option("--report", help="The verdict to prove; else the last ones.")
    ] = "",
    part: Annotated[
        str | None,
        typer.Option(
            "--slice",
            help="Of SECONDS from START on, judged by these alone.",
            metavar="START:SECONDS",
        ),
    ] = None,
) -> None:
    """Put the verdicts of RECORDING and every record up to them into OUT.

    Ids and hashes are those of the recording: run `kvready share` first if others may not see them.
    """
    cut = part_of(part) if part is not None else None
    for report in make_bundle(recording, out, report_id, cut):
        typer.echo(f"{report.policy:9} {report.verdict:12} {report.report_id}")
    typer.echo(f"{out}: {out.stat().st_size:,} bytes; `kvready evidence verify` replays it")


@app.command()
def verify(bundle: Bundle, as_json: AsJson = False) -> None:
    """Replay BUNDLE and say whether its verdicts come out again, byte for byte."""
    found = verify_bundle(bundle)
    typer.echo(msgspec.json.encode(found) if as_json else _text(found))
    if not found.equal:
        raise typer.Exit(DIFFERS)


def _text(found: Verified) -> str:
    if found.equal:
        names = ", ".join(found.report_ids)
        lines = [f"equal: {len(found.report_ids)} verdicts come out again, byte for byte ({names})"]
        lines += [
            f"on the way: {one.policy} {one.trigger}, {one.after.mode} ({one.reason})"
            for one in found.moves
        ]
        return "\n".join(lines)
    lines = ["different: what comes out here is not what the bundle says", *found.differences]
    if found.made_by != found.replayed_by:
        lines.append(
            f"it was made by kvready {found.made_by}, this is {found.replayed_by}: verdicts are "
            "promised to be equal within one version"
        )
    return "\n".join(lines)
