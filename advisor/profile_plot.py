"""A link profile as a picture: bandwidth over fragment size, with the spread of the repeats."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

from kvready.advisor.profile_text import described, label
from kvready.collectors.errors import ServiceError, SettingsError
from kvready.kernels.profile import CONTIGUOUS, Curve, LinkProfile, Provenance
from kvready.kernels.summary import points, size_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FORMATS = frozenset({".svg", ".png"})
GIGA = 1e9
WORKERS = "xN: N threads, SMs or reads in flight."
ONE_PIECE = "one contiguous copy, by the plain mover"
# Told apart by readers who do not see red and green alike; one per mover.
COLOURS = {
    "gather": "#0072b2",
    "dma_per_page": "#d55e00",
    "dma_batch": "#009e73",
    "read": "#8b5aa5",
}
OTHER_COLOUR = "#444444"
LIGHTEST = 0.6  # how far the curve with the fewest workers goes towards white
PANEL_INCHES = (5.0, 5.6)
CAPTION_CHARACTERS_PER_INCH = 13
SIZE_TICKS = (512, 4 << 10, 32 << 10, 256 << 10, 2 << 20)
RATE_TICKS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500)


def check_plot_path(file: Path) -> None:
    """Raise before any work where the picture could not be made."""
    if file.suffix.lower() not in FORMATS:
        raise SettingsError(f"--plot {file}: name a file that ends in .svg or .png")
    figure_class()


def plot_profile(profile: LinkProfile, file: Path) -> None:
    """Draw all paths side by side. Raises `OSError` where the disk refuses."""
    paths: dict[tuple[str, str], list[Curve]] = {}
    for curve in profile.curves:
        paths.setdefault((curve.source, curve.destination), []).append(curve)
    panel_width, height = PANEL_INCHES
    width = panel_width * len(paths)
    figure = figure_class()(figsize=(width, height), layout="constrained")
    panels = figure.subplots(1, len(paths), squeeze=False)[0]
    for panel, ((source, destination), curves) in zip(panels, paths.items(), strict=True):
        _draw(panel, curves)
        panel.set_title(f"{source} to {destination}", loc="left")
    panels[0].set_ylabel("bandwidth of payload, GB/s")
    figure.suptitle(
        f"{profile.name} ({profile.provenance})", x=0.01, ha="left", fontsize=13, fontweight="bold"
    )
    characters = int(CAPTION_CHARACTERS_PER_INCH * width)
    figure.supxlabel(fill(_caption(profile), characters), fontsize=8, color="#444444")
    picture = BytesIO()
    figure.savefig(picture, dpi=150, format=file.suffix.lower().removeprefix("."))
    write_picture(file, picture.getvalue())


def write_picture(file: Path, picture: bytes) -> None:
    """Write it whole or not at all. Raises `OSError` that names the file."""
    try:
        file.write_bytes(picture)
    except OSError as error:
        file.unlink(missing_ok=True)  # part of a picture is none
        raise OSError(error.errno, error.strerror, str(file)) from error


def _draw(panel: Axes, curves: Sequence[Curve]) -> None:
    shades = _shades(curves)
    for curve in curves:
        along = points(curve)
        if curve.mover == CONTIGUOUS:
            if not curve.contended:
                best = max(point.middle for point in along) / GIGA
                panel.axhline(best, color=OTHER_COLOUR, lw=1, ls=":", label=ONE_PIECE)
            continue
        sizes = [point.fragment_bytes for point in along]
        colour = shades[curve.mover, curve.workers]
        panel.plot(
            sizes,
            [point.middle / GIGA for point in along],
            color=colour,
            lw=1.6,
            ls="--" if curve.contended else "-",
            label="_" if curve.contended else label(curve),
        )
        panel.fill_between(
            sizes,
            [point.low / GIGA for point in along],
            [point.high / GIGA for point in along],
            color=colour,
            alpha=0.10 if curve.contended else 0.18,
            lw=0,
        )
    _axes(panel)
    _legend(panel, any(curve.contended for curve in curves))


def _axes(panel: Axes) -> None:
    panel.set_xscale("log", base=2)
    panel.set_yscale("log")
    low, high = panel.get_ylim()
    left, right = panel.get_xlim()
    sizes = [size for size in SIZE_TICKS if left <= size <= right]
    panel.set_xticks(sizes, [size_text(size) for size in sizes])
    ticks = [tick for tick in RATE_TICKS if low <= tick <= high]
    panel.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    panel.minorticks_off()
    panel.set_xlim(left, right)
    panel.set_ylim(low, high)
    panel.set_xlabel("fragment")
    panel.grid(color="#dddddd", lw=0.6)
    panel.spines[["top", "right"]].set_visible(False)


def _legend(panel: Axes, has_contended: bool) -> None:
    from matplotlib.lines import Line2D

    handles, names = panel.get_legend_handles_labels()
    if ONE_PIECE in names:
        place = names.index(ONE_PIECE)
        handles.append(handles.pop(place))
        names.append(names.pop(place))
    if has_contended:
        handles.append(Line2D([], [], color=OTHER_COLOUR, ls="--", lw=1.6))
        names.append("beside compute")
    panel.legend(
        handles, names, loc="upper center", bbox_to_anchor=(0.5, -0.13), ncols=2, frameon=False,
        fontsize=9,
    )  # fmt: skip


def _shades(curves: Sequence[Curve]) -> dict[tuple[str, int], tuple[float, ...]]:
    """One colour per mover; the more workers, the darker."""
    from matplotlib.colors import to_rgb

    shades = {}
    for mover in {curve.mover for curve in curves}:
        workers = sorted({curve.workers for curve in curves if curve.mover == mover})
        colour = to_rgb(COLOURS.get(mover, OTHER_COLOUR))
        for place, count in enumerate(workers):
            white = LIGHTEST * (1 - place / (len(workers) - 1)) if len(workers) > 1 else 0.0
            shades[mover, count] = tuple(part + (1 - part) * white for part in colour)
    return shades


def _caption(profile: LinkProfile) -> str:
    told = f"{described(profile)}. "
    if profile.provenance is Provenance.PUBLISHED:
        return told + f"Drawn from a published cost, at loads of 1 GiB. {WORKERS}"
    rounds = profile.conditions.get("rounds", "all")
    return told + (
        f"Lines: medians of {rounds} repeats; bands: 10th to 90th percentile. "
        f"Calibration {profile.calibration_id}. {WORKERS}"
    )


def figure_class() -> Any:
    """The class of figures, without the state that pyplot keeps."""
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise ServiceError(
            f"{error.name} is not installed, which --plot needs: pip install 'kvready[plots]'"
        ) from error
    return Figure
