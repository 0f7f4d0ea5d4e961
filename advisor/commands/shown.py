"""Commands that only show: `settings`."""

from __future__ import annotations

import json

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kvready.advisor.commands import options
from kvready.advisor.settings import setting_names


def settings(config: options.Config = None, as_json: options.AsJson = False) -> None:
    """Print every setting's effective value, and where it came from."""
    effective = options.effective(config)
    values = effective.settings.model_dump(mode="json")
    rows = {}
    for name in setting_names():
        section, key = name.split(".")
        rows[name] = {"value": values[section][key], "origin": effective.origins[name]}
    if as_json:
        typer.echo(json.dumps(rows))
        return
    table = Table(box=None, pad_edge=False, header_style="dim")
    for head in ("setting", "value", "origin"):
        table.add_column(head, overflow="fold")
    for name, row in rows.items():
        table.add_row(name, json.dumps(row["value"]), Text(str(row["origin"]), style="dim"))
    Console().print(table)
