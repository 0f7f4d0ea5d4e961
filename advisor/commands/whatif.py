"""The command of a capacity planner: `whatif`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from kvready.advisor.commands import options
from kvready.advisor.commands import whatif_options as flags
from kvready.advisor.commands.calibrate import check_writable
from kvready.advisor.whatif.jobs import run_all
from kvready.advisor.whatif.presets import PAGE_TOKENS
from kvready.advisor.whatif.questions import Initial, Order
from kvready.advisor.whatif.ray_jobs import run_on_ray
from kvready.advisor.whatif.study import DEFAULT_POLICIES, Asked, Study, studied
from kvready.advisor.whatif.summary import CountedFrom, Summary
from kvready.collectors.errors import SettingsError
from kvready.collectors.names import OverlapMode

INTERRUPTED = 130  # as shells say it


def whatif(
    trace: flags.Trace = None,
    workload: flags.Workload = None,
    requests: flags.Requests = 0,
    order: flags.Ordered = Order.SHUFFLED,
    initial: flags.Initially = Initial.COLD,
    rate: flags.Rate = "",
    model: flags.Model = "llama-3.1-8b",
    tensor_parallel: flags.TensorParallel = 1,
    machine: flags.Machine = None,
    profile: flags.Profile = None,
    gpu: flags.Gpu = None,
    hbm_gib: flags.HbmGib = None,
    host_gib: flags.HostGib = None,
    disk_gib: flags.DiskGib = 0.0,
    compare: flags.Compare = DEFAULT_POLICIES,
    ttft_target: flags.TtftTarget = 5.0,
    tps_target: flags.TpsTarget = None,
    ttft_from: flags.TtftFrom = CountedFrom.ARRIVAL,
    page: flags.Page = PAGE_TOKENS,
    overlap: flags.Overlap = OverlapMode.LAYERWISE,
    in_flight: flags.InFlight = 0,
    seeds: flags.Seeds = 1,
    suite: flags.Suite = None,
    jobs: flags.Jobs = 1,
    ray: flags.Ray = None,
    plot: flags.Plot = None,
    html: flags.Html = None,
    as_json: options.AsJson = False,
) -> None:
    """Simulate an engine with another link, more memory or other policies, side by side.

    Requests inside their targets first. Nothing here is measured: every figure is a simulator's.
    """
    asked = Asked(
        trace, workload, requests, order, initial, rate, model, tensor_parallel, machine, profile,
        gpu, hbm_gib, host_gib, disk_gib, compare, ttft_target, tps_target, ttft_from, page,
        overlap, in_flight, seeds,
    )  # fmt: skip
    if suite is not None:
        _check_alone(asked, plot, html, ray)
        _hold(jobs, as_json)
        return
    study = studied(asked)
    _check_outputs(study, plot, html)
    with _interruptible():
        runs = _run(study, jobs, ray)
    _show(study, runs, plot, html, as_json)


def _check_alone(asked: Asked, plot: Path | None, html: Path | None, ray: str | None) -> None:
    if asked != Asked() or any(one is not None for one in (plot, html, ray)):
        raise SettingsError(
            "--suite brings its own requests, machines and policies; beside it go --jobs and --json"
        )


def _hold(jobs: int, as_json: bool) -> None:
    from kvready.advisor.whatif.suite.study import held, tasks
    from kvready.advisor.whatif.suite.text import print_held

    with _interruptible(), _progress(len(tasks())) as told:
        result = held(jobs, told)
    if as_json:
        typer.echo(msgspec.json.encode(result))
    else:
        print_held(result, Console())


def _check_outputs(study: Study, plot: Path | None, html: Path | None) -> None:
    """Better said before the work than after it."""
    if plot is not None:
        from kvready.advisor.whatif.curves import check_curves_path

        check_curves_path(plot)
        check_writable("--plot", plot)
        if len({job.rate for job in study.jobs}) < 2:
            raise SettingsError("--plot draws curves over rates: give several, as --rate 1,2,4")
    if html is not None:
        check_writable("--html", html)


def _run(study: Study, jobs: int, ray: str | None) -> list[Summary]:
    with _progress(len(study.jobs)) as told:
        if ray is not None:
            return run_on_ray(ray, study.jobs, told)
        return run_all(study.jobs, jobs, told)


def _show(
    study: Study, runs: Sequence[Summary], plot: Path | None, html: Path | None, as_json: bool
) -> None:
    # Here, so that what is wrong with the options is told without the wait for them.
    from kvready.advisor.whatif.curves import plot_curves
    from kvready.advisor.whatif.html_report import rendered
    from kvready.advisor.whatif.text import print_report

    report = study.report(runs)
    if plot is not None:
        plot_curves(report, plot)
    if html is not None:
        html.write_text(rendered(report), encoding="utf-8")
    if as_json:
        typer.echo(msgspec.json.encode(report))
        return
    print_report(report, Console())
    written = [str(file) for file in (plot, html) if file is not None]
    if written:
        typer.echo(f"\nwrote {' and '.join(written)}")


@contextmanager
def _interruptible() -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        typer.echo("stopped; nothing was written", err=True)
        raise typer.Exit(INTERRUPTED) from None


@contextmanager
def _progress(runs: int) -> Iterator[Callable[[float], None]]:
    console = Console(stderr=True)
    columns = (BarColumn(), TextColumn("{task.description}"), TimeRemainingColumn())
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as progress:
        task = progress.add_task(f"0 of {runs} runs", total=runs)
        yield lambda done: progress.update(
            task, completed=done, description=f"{int(done)} of {runs} runs"
        )
