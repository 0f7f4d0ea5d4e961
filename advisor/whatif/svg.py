"""Panels as one SVG, without any library: it also stands inside the HTML report. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from kvready.advisor.whatif.panels import Line, Panel, Scale, x_scale, y_scale

WIDTH, HEIGHT = 460, 330  # of one panel, in pixels
LEFT, RIGHT, TOP, BOTTOM = 62, 14, 34, 46
LEGEND_ROW, LEGEND_COLUMN = 20, 230
CHARACTER_WIDTH = 6.2  # on average, of the caption's 11 pixels; a little wide
# Told apart by readers who do not see red and green alike: a colour for light paper, one for dark.
COLOURS = (
    ("#0072b2", "#56b4e9"), ("#d55e00", "#f08b3e"), ("#009e73", "#3cc9a0"),
    ("#a3508a", "#e49ac6"), ("#7a6a00", "#e8d24a"), ("#5a5a5a", "#b5b5b5"),
    ("#3b3bb3", "#9d9df5"), ("#a01c1c", "#f28080"),
)  # fmt: skip
DASHES = ("", "7 3", "2 3", "9 3 2 3")  # beyond the colours, and for whoever sees none
SHAPES = ("circle", "square", "diamond", "triangle")
STYLE = """
.kv { --ink: #1c2430; --dim: #66717f; --grid: #dfe4ea; --paper: #ffffff;
  font-family: system-ui, sans-serif; font-size: 11px; }
.kv .paper { fill: var(--paper); } .kv text { fill: var(--ink); } .kv .dim { fill: var(--dim); }
.kv .title { font-size: 13px; font-weight: 600; } .kv .grid { stroke: var(--grid); }
.kv .rule { stroke: var(--dim); stroke-dasharray: 4 4; fill: none; }
.kv .line { fill: none; stroke-width: 1.8; } .kv .mark { stroke: var(--paper); stroke-width: 1; }
"""


def drawn(panels: Sequence[Panel], caption: str = "") -> str:
    """A whole picture with its legend; `caption` names its conditions."""
    names = [line.name for line in panels[0].lines]
    width = WIDTH * len(panels)
    columns = max(1, width // LEGEND_COLUMN)
    rows = -(-len(names) // columns)
    told = _wrapped(caption, int((width - LEFT - RIGHT) / CHARACTER_WIDTH))
    height = HEIGHT + rows * LEGEND_ROW + 14 * len(told) + 16
    parts = [
        f'<svg class="kv" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" role="img" '
        f'aria-label="{escape("; ".join(panel.title for panel in panels))}">',
        f"<style>{STYLE}{_colours(len(names))}</style>",
        f'<rect class="paper" width="{width}" height="{height}"/>',
    ]
    for number, panel in enumerate(panels):
        parts.append(f'<g transform="translate({number * WIDTH} 0)">')
        parts += _panel(panel)
        parts.append("</g>")
    for number, name in enumerate(names):
        x = LEFT + (number % columns) * LEGEND_COLUMN
        y = HEIGHT + 8 + (number // columns) * LEGEND_ROW
        parts.append(f'<path class="line s{number}" d="M{x} {y}h26"/>')
        parts.append(_mark(number, x + 13, y))
        parts.append(f'<text x="{x + 34}" y="{y + 4}">{escape(name)}</text>')
    for number, text in enumerate(told):
        y = HEIGHT + rows * LEGEND_ROW + 16 + 14 * number
        parts.append(f'<text class="dim" x="{LEFT}" y="{y}">{escape(text)}</text>')
    parts.append("</svg>")
    return "\n".join(parts)


def number_text(value: float) -> str:
    """As short as an axis wants it."""
    return f"{value:,.0f}" if value >= 1_000 else f"{value:.3g}"


def _panel(panel: Panel) -> Iterator[str]:
    across, up = x_scale(panel), y_scale(panel)
    left, bottom = LEFT, HEIGHT - BOTTOM
    right, top = WIDTH - RIGHT, TOP
    yield f'<text class="title" x="{left}" y="18">{escape(panel.title)}</text>'
    for tick in up.ticks():
        y = _y(up, tick)
        yield f'<path class="grid" d="M{left} {y:.1f}H{right}"/>'
        yield f'<text x="{left - 7}" y="{y + 4:.1f}" text-anchor="end">{number_text(tick)}</text>'
    for tick in across.ticks():
        x = _x(across, tick)
        yield f'<path class="grid" d="M{x:.1f} {top}V{bottom}"/>'
        yield f'<text x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">{number_text(tick)}</text>'
    middle = (left + right) / 2
    yield (
        f'<text class="dim" x="{middle}" y="{bottom + 34}" text-anchor="middle">'
        f"{escape(panel.x_label)}</text>"
    )
    yield (
        f'<text class="dim" text-anchor="middle" transform="translate(14 {(top + bottom) / 2}) '
        f'rotate(-90)">{escape(panel.y_label)}</text>'
    )
    yield from _rules(panel, across, up)
    for number, line in enumerate(panel.lines):
        yield from _line(number, line, across, up)


def _rules(panel: Panel, across: Scale, up: Scale) -> Iterator[str]:
    if panel.marked_x is not None:
        x = _x(across, panel.marked_x)
        yield f'<path class="rule" d="M{x:.1f} {TOP}V{HEIGHT - BOTTOM}"/>'
        yield f'<text class="dim" x="{x + 4:.1f}" y="{TOP + 10}">target</text>'
    if panel.diagonal:
        end = min(across.high, up.high)
        yield (
            f'<path class="rule" d="M{_x(across, 0):.1f} {_y(up, 0):.1f}'
            f'L{_x(across, end):.1f} {_y(up, end):.1f}"/>'
        )


def _line(number: int, line: Line, across: Scale, up: Scale) -> Iterator[str]:
    places = [(_x(across, x), _y(up, y)) for x, y in line.points]
    if len(places) > 1:
        path = "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
        yield f'<path class="line s{number}" d="M{path}"/>'
    for (x, y), (value, result) in zip(places, line.points, strict=True):
        mark = _mark(number, x, y)
        told = f"{line.name}: {number_text(value)}, {number_text(result)}"
        yield f"<g><title>{escape(told)}</title>{mark}</g>"


def _mark(number: int, x: float, y: float) -> str:
    shape = SHAPES[number % len(SHAPES)]
    style = f'class="mark f{number}"'
    if shape == "circle":
        return f'<circle {style} cx="{x:.1f}" cy="{y:.1f}" r="3.6"/>'
    outline = {
        "square": "m-3.2 -3.2h6.4v6.4h-6.4z",
        "diamond": "m0 -4.5l4.5 4.5l-4.5 4.5l-4.5 -4.5z",
        "triangle": "m0 -4.2l4.2 7.4h-8.4z",
    }[shape]
    return f'<path {style} d="M{x:.1f} {y:.1f}{outline}"/>'


def _colours(count: int) -> str:
    light, dark = [], []
    for number in range(count):
        on_light, on_dark = COLOURS[number % len(COLOURS)]
        dash = DASHES[number // len(COLOURS) % len(DASHES)]
        light.append(
            f".kv .s{number} {{ stroke: {on_light}; stroke-dasharray: {dash or 'none'} }} "
            f".kv .f{number} {{ fill: {on_light} }}"
        )
        dark.append(f".kv .s{number} {{ stroke: {on_dark} }} .kv .f{number} {{ fill: {on_dark} }}")
    night = ".kv { --ink: #e6eaf0; --dim: #93a0b0; --grid: #2b3440; --paper: #171d26; }"
    return (
        "\n".join(light)
        + f"\n@media (prefers-color-scheme: dark) {{ {night}\n"
        + "\n".join(dark)
        + " }\n"
    )


def _wrapped(text: str, characters: int) -> list[str]:
    lines: list[str] = []
    for word in text.split():
        if lines and len(lines[-1]) + 1 + len(word) <= characters:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines


def _x(scale: Scale, value: float) -> float:
    return LEFT + scale.place(value) * (WIDTH - LEFT - RIGHT)


def _y(scale: Scale, value: float) -> float:
    return HEIGHT - BOTTOM - scale.place(value) * (HEIGHT - TOP - BOTTOM)
