"""`policy`: where policies stand, and what a person wants of them, over a sidecar's API.

Exit codes: 0 done, 1 the policy lacks what the move needs, 2 it could not be asked.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Annotated, Any

import typer

from kvready.advisor.commands.options import AsJson
from kvready.advisor.commands.policy_client import PolicyClient
from kvready.advisor.commands.policy_text import history_text, moved_text, policies_text, shown_text
from kvready.advisor.policies import Mode, Policy
from kvready.collectors.commanded import EVERYWHERE
from kvready.collectors.errors import SettingsError

app = typer.Typer(help="Where policies stand, and how far each may go.")

Name = Annotated[Policy, typer.Argument(metavar="POLICY", help="dedup, balance or gpu_copy.")]
Url = Annotated[str, typer.Option("--url", help="The sidecar.")]
Token = Annotated[
    Path | None,
    typer.Option("--token-file", help="File with the token of an operator or admin."),
]
Ca = Annotated[Path | None, typer.Option("--ca-file", help="PEM authorities of the sidecar.")]
Certificate = Annotated[
    Path | None, typer.Option("--certificate", help="PEM certificate to show, where one is wanted.")
]
Key = Annotated[Path | None, typer.Option("--key", help="PEM key of that certificate.")]
Reason = Annotated[str, typer.Option("--reason", help="Why; it is kept in the audit.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask before a policy may act.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would happen.")]
Force = Annotated[bool, typer.Option("--force", help="In place of what a promotion lacks.")]
Engine = Annotated[str, typer.Option("--engine", help="Of this engine alone.")]
Pool = Annotated[str, typer.Option("--pool", help="Of this pool alone.")]
RequestClass = Annotated[str, typer.Option("--class", help="Of this request class alone.")]

URL = "http://127.0.0.1:8430"
# How the sidecar is reached, as the options before the command say; connected when first needed.
_reach: list[Callable[[], PolicyClient]] = []


@app.callback()
def policy(
    url: Url = URL,
    token_file: Token = None,
    ca_file: Ca = None,
    certificate: Certificate = None,
    key: Key = None,
) -> None:
    """Where policies stand, and how far each may go."""
    _reach[:] = [cache(partial(PolicyClient, url, token_file, ca_file, certificate, key))]


@app.command("list")
def list_command(as_json: AsJson = False) -> None:
    """Every policy in every scope, and what it lacks to go on."""
    _print(document := _client().get("/v1/policies"), as_json, policies_text(document))


@app.command()
def show(name: Name, as_json: AsJson = False) -> None:
    """One policy, with the gate report that speaks for or against it."""
    found = [one for one in _client().get("/v1/policies")["policies"] if one["policy"] == name]
    _print(found, as_json, shown_text(found))


@app.command("set")
def set_command(
    name: Name,
    mode: Annotated[Mode, typer.Argument(metavar="MODE", help=", ".join(Mode))],
    reason: Reason,
    engine: Engine = EVERYWHERE,
    pool: Pool = EVERYWHERE,
    request_class: RequestClass = EVERYWHERE,
    force: Force = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Set a policy's mode."""
    scope = _scope(engine, pool, request_class)
    revision = _revision(name, scope)
    if mode.acts and not dry_run:
        _confirm(f"{name} in {mode} acts on what the engine serves", yes)
    body = {"mode": mode.value, "forced": force, "dry_run": dry_run}
    _change("PUT", f"/v1/policies/{name}", body | scope, reason, as_json, revision)


@app.command()
def history(
    name: Annotated[Policy | None, typer.Argument(metavar="POLICY", help="All, if none.")] = None,
    count: Annotated[int, typer.Option("--count", min=1, max=1_000, help="Entries.")] = 20,
    as_json: AsJson = False,
) -> None:
    """What happened to policies, newest first."""
    document = _client().get("/v1/audit", policy=name and name.value, limit=count)
    _print(document, as_json, history_text(document))


@app.command()
def clear(
    name: Name,
    reason: Reason,
    engine: Engine = EVERYWHERE,
    pool: Pool = EVERYWHERE,
    request_class: RequestClass = EVERYWHERE,
    as_json: AsJson = False,
) -> None:
    """Take away the latch of a roll-back; the policy stays where it fell to."""
    scope = _scope(engine, pool, request_class)
    _change("POST", f"/v1/policies/{name}/clear", scope, reason, as_json)


@app.command()
def pause(
    name: Name,
    reason: Reason,
    engine: Engine = EVERYWHERE,
    pool: Pool = EVERYWHERE,
    request_class: RequestClass = EVERYWHERE,
    as_json: AsJson = False,
) -> None:
    """Switch a policy off until somebody resumes it."""
    scope = _scope(engine, pool, request_class)
    _change("POST", f"/v1/policies/{name}/pause", scope, reason, as_json)


@app.command()
def resume(
    name: Name,
    reason: Reason,
    engine: Engine = EVERYWHERE,
    pool: Pool = EVERYWHERE,
    request_class: RequestClass = EVERYWHERE,
    force: Force = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Let a paused policy act again."""
    _confirm(f"{name} acts again on what the engine serves", yes)
    scope = _scope(engine, pool, request_class)
    _change("POST", f"/v1/policies/{name}/resume", {"forced": force} | scope, reason, as_json)


@app.command()
def kill(reason: Reason, as_json: AsJson = False) -> None:
    """Switch every policy off, now."""
    _change("POST", "/v1/kill", {}, reason, as_json)


@app.command()
def revive(reason: Reason, yes: Yes = False, as_json: AsJson = False) -> None:
    """Let go of the kill switch. Exit code 1: something else still holds it."""
    _confirm("policies may be let act again once nothing holds the kill switch", yes)
    if _change("POST", "/v1/revive", {}, reason, as_json)["held_by"]:
        raise typer.Exit(1)


def _client() -> PolicyClient:
    return _reach[0]()


def _scope(engine: str, pool: str, request_class: str) -> dict[str, str]:
    return {"engine": engine, "pool": pool, "request_class": request_class}


def _revision(name: Policy, scope: dict[str, str]) -> int | None:
    """Of the state as it is now: what comes between is refused. None: the scope is new."""
    for one in _client().get("/v1/policies")["policies"]:
        if one["policy"] == name and all(one[part] == value for part, value in scope.items()):
            return int(one["revision"])
    return None


def _confirm(what: str, yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise SettingsError(f"{what}: say that you mean it with --yes")
    if not typer.confirm(f"{what}. Go on?", err=True):
        raise typer.Exit(1)


def _change(
    method: str,
    path: str,
    body: dict[str, Any],
    reason: str,
    as_json: bool,
    revision: int | None = None,
) -> Any:
    done, document = _client().change(method, path, {"reason": reason} | body, revision)
    _print(document, as_json, moved_text(document))
    if not done:
        raise typer.Exit(1)
    return document


def _print(document: object, as_json: bool, text: str) -> None:
    typer.echo(json.dumps(document, indent=1) if as_json else text)
