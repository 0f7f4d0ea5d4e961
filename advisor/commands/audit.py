"""`audit`: who moved which policy, when and why, and whether anybody changed that since."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from kvready.advisor.audit_chain import AuditEntry, Chain
from kvready.advisor.commands import options
from kvready.advisor.service.audit import files_of, tail, verify
from kvready.advisor.service.policy_desk import policy_folder
from kvready.collectors.errors import ServiceError

MIN_HEAD_CHARACTERS = 12
HEX = frozenset("0123456789abcdef")

app = typer.Typer(help="The audit of policies: who moved what, and whether it is whole.")

Folder = Annotated[
    Path | None,
    typer.Argument(help="Folder of the audit; the settings' own if none.", show_default=False),
]


@app.command("verify")
def verify_command(
    folder: Folder = None,
    expect_head: Annotated[
        str | None,
        typer.Option("--expect-head", help="Hash of the last entry, or its first digits."),
    ] = None,
    config: options.Config = None,
    as_json: options.AsJson = False,
) -> None:
    """Check the whole chain. Exit code 1: it is broken, torn, or ends elsewhere than expected."""
    place = _place(folder, config)
    try:
        chain = verify(place)
    except OSError as error:
        raise ServiceError(f"cannot read the audit in {place}: {error.strerror}") from None
    wrong = _wrong(chain, expect_head)
    if as_json:
        sys.stdout.buffer.write(msgspec.json.encode({"chain": chain, "wrong": wrong}) + b"\n")
    else:
        typer.echo(_told(chain))
        for text in wrong:
            typer.echo(text)
    if wrong:
        raise typer.Exit(1)


@app.command("tail")
def tail_command(
    folder: Folder = None,
    count: Annotated[int, typer.Option("--count", min=1, max=10_000, help="Entries.")] = 20,
    config: options.Config = None,
    as_json: options.AsJson = False,
) -> None:
    """Print the latest entries, oldest first."""
    entries = tail(_place(folder, config), count)
    for entry in entries:
        if as_json:
            sys.stdout.buffer.write(msgspec.json.encode(entry) + b"\n")
        else:
            typer.echo(_line(entry))


def _place(folder: Path | None, config: Path | None) -> Path:
    place = folder or policy_folder(options.effective(config).settings)
    if not files_of(place):
        raise ServiceError(
            f"there is no audit in {place}; name the folder that --policy-folder set"
        )
    return place


def _wrong(chain: Chain, expect_head: str | None) -> list[str]:
    wrong = [f"broken: {chain.problem}"] if chain.problem else []
    if chain.torn_bytes:
        wrong.append(
            f"torn tail: {chain.torn_bytes} bytes after entry {chain.last_sequence} are the start "
            "of a line that was never finished"
        )
    if expect_head is not None:
        wanted = expect_head.strip().lower()
        if len(wanted) < MIN_HEAD_CHARACTERS or not HEX.issuperset(wanted):
            raise ServiceError(
                f"--expect-head wants at least {MIN_HEAD_CHARACTERS} hexadecimal digits of a hash"
            )
        if not chain.head.startswith(wanted):
            wrong.append(f"ends elsewhere: the head is {chain.head}, not {wanted}")
    return wrong


def _told(chain: Chain) -> str:
    told = f"{chain.entries} entries verified, up to {chain.last_sequence}; head {chain.head}"
    if chain.first_sequence > 1:
        told += f"; entries before {chain.first_sequence} were rotated away"
    return told


def _line(entry: AuditEntry) -> str:
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(entry.wall_seconds))
    parts = [f"{entry.sequence:6d}  {when}Z  {entry.event}"]
    if entry.after is not None and entry.before is not None:
        before, after = entry.before, entry.after
        parts.append(
            f"{entry.policy} {before.mode}/{before.overlay} -> {after.mode}/{after.overlay}"
        )
        parts.append(f"by {entry.actor} ({entry.trigger}{', forced' if entry.forced else ''})")
    if entry.reason:
        parts.append(entry.reason)
    return "  ".join(parts)
