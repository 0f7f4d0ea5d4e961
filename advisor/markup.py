"""HTML that more than one document is made of. Names and values are escaped here. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape


def definitions(values: Mapping[str, str], style: str = "") -> str:
    """Names with their values, such as the conditions that figures hold under."""
    each = (
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>"
        for name, value in values.items()
    )
    kind = f' class="{style}"' if style else ""
    return f"<dl{kind}>{''.join(each)}</dl>"


def table(
    label: str, heads: Sequence[str], rows: Sequence[Sequence[str]], text_columns: int = 1
) -> str:
    """Rows of ready HTML cells, each row's first its head; past `text_columns` they are numbers."""

    def kind(index: int) -> str:
        return ' class="number"' if index >= text_columns else ""

    head = "".join(f'<th scope="col"{kind(i)}>{escape(h)}</th>' for i, h in enumerate(heads))
    body = "".join(
        f'<tr><th scope="row">{row[0]}</th>'
        + "".join(f"<td{kind(i)}>{cell}</td>" for i, cell in enumerate(row[1:], 1))
        + "</tr>"
        for row in rows
    )
    top = f"<thead><tr>{head}</tr></thead>" if heads else ""
    # It may be wider than a phone: then it alone is scrolled.
    return (
        f'<div class="scrolled"><table aria-label="{escape(label)}">'
        f"{top}<tbody>{body}</tbody></table></div>"
    )


def marked(style: str, text: str) -> str:
    """Words in a style of theirs; what they mean is in the words."""
    return f'<span class="{style}">{escape(text)}</span>'


def section(name: str, title: str, body: str, style: str = "", beside: str = "") -> str:
    """A region that is named by its heading; `beside`: ready HTML in the heading's line."""
    kind = f' class="{style}"' if style else ""
    return (
        f'<section id="{name}" aria-labelledby="{name}-title"{kind}><div class="top">'
        f'<h2 id="{name}-title" tabindex="-1">{escape(title)}</h2>{beside}</div>{body}</section>'
    )


def folded(name: str, title: str, body: str) -> str:
    """What is there to be looked up, closed at first."""
    return f'<details id="{name}"><summary>{escape(title)}</summary>{body}</details>'
