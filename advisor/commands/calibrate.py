"""Commands about this machine's links: `calibrate`, and `calibrate show`."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from kvready.advisor.profile_plot import check_plot_path, plot_profile
from kvready.advisor.profile_text import print_bandwidths, print_summary
from kvready.collectors.errors import SettingsError
from kvready.kernels.calibrate import CPU_SECONDS, GPU_SECONDS, Request, calibrate
from kvready.kernels.model_source import model_from
from kvready.kernels.profile import LinkProfile, read_profile, write_profile
from kvready.kernels.profile_source import PUBLISHED_PREFIX
from kvready.kernels.published import published_profile
from kvready.kernels.timed_sweep import Progress as Step

MAX_SECONDS = 3600.0

INTERRUPTED = 130  # as shells say it

app = typer.Typer(rich_markup_mode=None)


@app.callback(invoke_without_command=True)
def measure(
    context: typer.Context,
    out: Annotated[
        Path | None, typer.Option("--out", help="Link profile to write.", dir_okay=False)
    ] = None,
    disk_folder: Annotated[
        Path | None,
        typer.Option("--disk-folder", help="Folder on the disk to measure; else a temporary one."),
    ] = None,
    no_disk: Annotated[bool, typer.Option("--no-disk", help="Measure no disk.")] = False,
    seconds: Annotated[
        float | None,
        typer.Option(
            "--seconds",
            help=f"About how long; {CPU_SECONDS:g} if not given, {GPU_SECONDS:g} with a GPU.",
            min=1,
            max=MAX_SECONDS,
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option("--model", help="A config.json or a preset, whose pages are measured too."),
    ] = None,
    page_tokens: Annotated[
        int, typer.Option("--page-tokens", help="Tokens in a page of that model.", min=1)
    ] = 16,
    tensor_parallel: Annotated[
        int, typer.Option("--tensor-parallel", help="Ranks that share that model.", min=1)
    ] = 1,
    kv_dtype: Annotated[
        str | None,
        typer.Option("--kv-dtype", help="KV cache dtype, where it is not the model's own."),
    ] = None,
) -> None:
    """Measure how fast this machine moves KV pages, and write a link profile.

    Quiet and beside a compute load that takes every CPU: not while this machine serves.
    """
    if context.invoked_subcommand is not None:
        return
    if out is None:
        raise SettingsError("name the link profile to write: kvready calibrate --out links.json")
    if no_disk and disk_folder is not None:
        raise SettingsError("--no-disk and --disk-folder contradict each other; give one")
    check_writable("--out", out)
    shape = None if model is None else model_from(model, kv_dtype)
    request = Request(
        seconds=seconds,
        disk_folder=None if no_disk else disk_folder or Path(tempfile.gettempdir()),
        disk_required=disk_folder is not None,
        layout=shape.layout(page_tokens, tensor_parallel) if shape else None,
        model=f"{shape.name}, pages of {page_tokens} tokens, TP {tensor_parallel}" if shape else "",
    )
    try:
        profile = _run(calibrate(request))
    except KeyboardInterrupt:
        typer.echo("stopped; nothing was written", err=True)
        raise typer.Exit(INTERRUPTED) from None
    write_profile(profile, out)
    print_summary(profile, Console())
    typer.echo(f"\nwrote {out}; see `kvready calibrate show {out}`")


@app.command("show")
def show(
    file: Annotated[str, typer.Argument(help="A link profile, or published:NAME.")],
    plot: Annotated[
        Path | None, typer.Option("--plot", help="Draw it into this .svg or .png.")
    ] = None,
) -> None:
    """Print a link profile: bandwidth over fragment size with intervals, waits, slow-downs."""
    if plot is not None:
        check_plot_path(plot)
        check_writable("--plot", plot)
    profile = _profile(file)
    console = Console()
    print_summary(profile, console)
    print_bandwidths(profile, console)
    if plot is not None:
        plot_profile(profile, plot)
        typer.echo(f"\nwrote {plot}")


def _run(running: Generator[Step, None, LinkProfile]) -> LinkProfile:
    """Drive it to its end, with a bar on a terminal that moves only between measurements."""
    console = Console(stderr=True)
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
    # Drawn by hand: a thread that draws would compete with what is timed.
    bar = Progress(
        *columns, console=console, transient=True, auto_refresh=False,
        disable=not console.is_terminal,
    )  # fmt: skip
    with bar:
        task = bar.add_task("", total=None)
        try:
            while True:
                step = next(running)
                bar.update(task, completed=step.done, total=step.planned, description=step.doing)
                bar.refresh()
        except StopIteration as ended:
            profile: LinkProfile = ended.value
            return profile
        finally:
            running.close()


def _profile(file: str) -> LinkProfile:
    if file.startswith(PUBLISHED_PREFIX):
        return published_profile(file.removeprefix(PUBLISHED_PREFIX))
    return read_profile(Path(file))


def check_writable(option: str, file: Path) -> None:
    """Better said before the work than after it."""
    folder = file.parent
    if file.exists() and not file.is_file():
        raise SettingsError(f"{option} {file} is no regular file; name another")
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise SettingsError(
            f"{option} {file}: {folder} is no writable folder; make it or name another"
        )
