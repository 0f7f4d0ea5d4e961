"""What all that is printed looks like: headings, and tables that fit a terminal of 80."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text


def heading(title: str, note: str = "") -> Text:
    """After an empty line, what follows; beside it, how to read it."""
    return Text.assemble(("\n" + title, "bold"), ("  " + note if note else "", "dim"))


def figures_table() -> Table:
    """Without lines, one space between columns."""
    return Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="dim")
