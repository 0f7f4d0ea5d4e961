"""The pictures of a sweep in a file: SVG by our own hand, PNG with the `plots` extra."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING

from kvready.advisor.profile_plot import check_plot_path, figure_class, write_picture
from kvready.advisor.whatif.comparison import Report
from kvready.advisor.whatif.panels import Line, Panel, Scale, panels, x_scale, y_scale
from kvready.advisor.whatif.svg import COLOURS, DASHES, drawn, number_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PANEL_INCHES = (5.4, 5.0)
CAPTION_CHARACTERS_PER_INCH = 15
MARKERS = "osD^"
CAPTION = (
    "model", "machine", "workload", "context length", "HBM for KV", "host memory", "page size",
    "initial cache state", "TTFT target", "throughput target", "seed",
)  # fmt: skip


def check_curves_path(file: Path) -> None:
    """Raise before any work where the picture could not be made."""
    if file.suffix.lower() != ".svg":
        check_plot_path(file)


def plot_curves(report: Report, file: Path) -> None:
    """Draw them. Raises `OSError` where the disk refuses."""
    shown, caption = panels(report), curves_caption(report)
    if file.suffix.lower() == ".svg":
        write_picture(file, drawn(shown, caption).encode())
    else:
        write_picture(file, _png(shown, caption))


def curves_caption(report: Report) -> str:
    """The conditions of the pictures."""
    told = [f"{name}: {report.conditions[name]}" for name in CAPTION if name in report.conditions]
    return "; ".join(["simulated", *told]) + "."


def _png(shown: tuple[Panel, ...], caption: str) -> bytes:
    width, height = PANEL_INCHES
    figure = figure_class()(figsize=(width * len(shown), height), layout="constrained")
    for axes, panel in zip(figure.subplots(1, len(shown), squeeze=False)[0], shown, strict=True):
        _draw(axes, panel)
    handles, names = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside upper left", ncols=5, frameon=False, fontsize=9)
    characters = int(CAPTION_CHARACTERS_PER_INCH * width * len(shown))
    figure.supxlabel(fill(caption, characters), fontsize=8, color="#444444")
    picture = BytesIO()
    figure.savefig(picture, dpi=150, format="png")
    return picture.getvalue()


def _draw(axes: Axes, panel: Panel) -> None:
    across, up = x_scale(panel), y_scale(panel)
    for number, line in enumerate(panel.lines):
        _line(axes, number, line)
    if panel.marked_x is not None:
        axes.axvline(panel.marked_x, color="#66717f", lw=1, ls="--")
        axes.annotate(
            " target", (panel.marked_x, 1), xycoords=("data", "axes fraction"), va="top",
            color="#66717f", fontsize=9,
        )  # fmt: skip
    if panel.diagonal:
        end = min(across.high, up.high)
        axes.plot([0, end], [0, end], color="#66717f", lw=1, ls="--", label="_")
    axes.set_xscale("log" if panel.x_log else "linear")
    _ticks(axes, across, up)
    axes.set_title(panel.title, loc="left", fontsize=11)
    axes.set_xlabel(panel.x_label)
    axes.set_ylabel(panel.y_label)
    axes.grid(color="#dddddd", lw=0.6)
    axes.spines[["top", "right"]].set_visible(False)


def _line(axes: Axes, number: int, line: Line) -> None:
    dash = DASHES[number // len(COLOURS) % len(DASHES)]
    style = (0, tuple(map(float, dash.split()))) if dash else "-"
    axes.plot(
        [x for x, _ in line.points],
        [y for _, y in line.points],
        color=COLOURS[number % len(COLOURS)][0],
        ls=style,
        lw=1.6,
        marker=MARKERS[number % len(MARKERS)],
        ms=4.5,
        label=line.name,
    )


def _ticks(axes: Axes, across: Scale, up: Scale) -> None:
    axes.minorticks_off()
    axes.set_xticks(across.ticks(), [number_text(tick) for tick in across.ticks()])
    axes.set_yticks(up.ticks(), [number_text(tick) for tick in up.ticks()])
    axes.set_xlim(across.low, across.high)
    axes.set_ylim(up.low, up.high)
