"""docs/policies.md: the table of moves and what each needs, from the code that makes them."""

from __future__ import annotations

from kvready.advisor.modes import NEEDS, TABLE, Kind, Need, Row
from kvready.advisor.policies import MODES, ORDER, Mode, Overlay

MEANINGS = {
    Mode.OFF: "not evaluated",
    Mode.OBSERVE: "inputs and predictions only",
    Mode.SHADOW: "decided, and paired with what the engine did; the default",
    Mode.ADVISE: "shown to people, with reasons",
    Mode.CANARY: "acts on a share, beside a control",
    Mode.ENFORCE: "acts on all but the control share, which is never 0",
}
OVERLAYS = {
    Overlay.NONE: "nothing",
    Overlay.PAUSED: "by a person, or by itself until its data gate is current again",
    Overlay.ROLLED_BACK: "harm was measured, or bytes differed: latched until a person clears it",
    Overlay.KILLED: "the kill switch",
}
SHOWN_NEEDS = tuple(need for need in Need if need is not Need.ROW)

INTRODUCTION = """# Policies and modes

Each policy ({policies}) is in one mode per scope. Under any overlay but `none` its
flag says OFF, as it does below `canary`. A scope names an engine, a pool and a request class, `*`
for all. For a request the most specific scope speaks (most parts named; of as many a class beats a
pool, a pool an engine), under the gravest overlay of all scopes that cover it. A new scope starts
in `shadow`.

Nothing but the rows below moves a policy. *Forcible* needs give way to a person who forces with a
reason; the others to nobody. The kill switch comes before everything: a kill takes what acts to
`advise`, so that reviving starts nothing. A policy that comes back after a restart of the sidecar
says OFF until a gate report shows its data current.
"""


def policies() -> str:
    """The page, below its note."""
    lines = [INTRODUCTION.format(policies=", ".join(f"`{one}`" for one in ORDER))]
    lines += ["| mode | means |", "|---|---|"]
    lines += [f"| `{mode}` | {MEANINGS[mode]} |" for mode in MODES]
    lines += ["", "| overlay | what lies there |", "|---|---|"]
    lines += [f"| `{overlay}` | {OVERLAYS[overlay]} |" for overlay in Overlay]
    lines += ["", "## Moves", ""]
    lines.append("| what | who | from | under | to | leaves | needs (forcible) | needs | notes |")
    lines.append("|---" * 9 + "|")
    lines += [_row(row) for row in TABLE]
    lines += ["", "## Needs", "", "| need | is |", "|---|---|"]
    lines += [f"| `{need}` | {NEEDS[need]} |" for need in SHOWN_NEEDS]
    return "\n".join(lines) + "\n"


def _row(row: Row) -> str:
    who = {Kind.PERSON: "a person", Kind.AUTO: "kvready"}[row.who]
    cells = (
        f"`{row.trigger}`",
        who + (", or kvready with `auto_promote`" if row.by_itself else ""),
        ", ".join(row.sources) if row.sources != MODES else "any",
        ", ".join(row.overlays),
        _target(row),
        str(row.overlay or "as it was"),
        ", ".join(row.forcible) or "-",
        ", ".join(row.always) or "-",
        row.says + ("; a longer cool-down" if row.falls else ""),
    )
    return "| " + " | ".join(cells) + " |"


def _target(row: Row) -> str:
    if row.target is None:
        return "as asked" if row.trigger in ("lower", "raise") else "as it was"
    return str(row.target) if row.who is Kind.PERSON else f"{row.target} at most"
