"""`kvready whatif` end to end on small workloads: its report, its files, its refusals, its jobs."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import pytest
from typer.testing import CliRunner

from kvready.advisor.commands.app import app
from kvready.advisor.whatif.comparison import Report
from kvready.advisor.whatif.html_report import rendered
from kvready.advisor.whatif.jobs import run_all
from kvready.advisor.whatif.recipes import at_rate, mean_rate
from kvready.advisor.whatif.study import Asked, Study, studied
from kvready.advisor.whatif.workload import SimRequest, Workload
from kvready.collectors.errors import KvreadyError, ServiceError, SettingsError
from kvready.kernels.errors import KernelError

SMALL = Asked(shape="loogle", requests=40, rates="2,8", policies="recompute,fast-copies,strata")


def silent(done: float) -> None:
    """A progress bar that nobody watches."""


def results(study: Study, workers: int = 1) -> Report:
    return study.report(run_all(study.jobs, workers, silent))


@pytest.fixture(scope="module")
def report() -> Report:
    return results(studied(msgspec.structs.replace(SMALL, seeds=2)))


def test_a_report_has_every_policy_at_every_rate_with_intervals(report: Report) -> None:
    assert [one.rate for one in report.comparisons] == [2.0, 8.0]
    for one in report.comparisons:
        assert [row.policy for row in one.rows] == ["recompute", "fast-copies", "strata"]
        assert {row.seeds for row in one.rows} == {2}
        assert one.findings
    assert [curve.policy for curve in report.curves] == ["recompute", "fast-copies", "strata"]
    assert len(report.runs) == 12


def test_every_figure_carries_its_conditions(report: Report) -> None:
    wanted = {
        "evidence", "model", "context length", "page size", "host memory", "link",
        "reuse distance", "request rate", "initial cache state", "TTFT target", "seed", "version",
    }  # fmt: skip
    for run in report.runs:
        assert wanted <= run.conditions.keys()
        assert run.conditions["evidence"] == "simulated"
    assert wanted - {"link", "page size", "host memory"} <= report.conditions.keys()
    assert all("link" in own for own in report.own.values())


def test_tokens_and_link_time_add_up_in_every_run(report: Report) -> None:
    for run in report.runs:
        use = run.load_link
        whole = use.busy + use.idle_no_demand + use.idle_scheduler + use.idle_compute
        assert whole == pytest.approx(1.0, abs=1e-6)
        hits = run.hits
        assert hits.in_time + hits.late + hits.lost == pytest.approx(hits.nominal)


def test_processes_give_what_one_process_gives(report: Report) -> None:
    alone = msgspec.json.encode(report)
    many = msgspec.json.encode(results(studied(msgspec.structs.replace(SMALL, seeds=2)), 2))
    assert many == alone


def test_a_cluster_gives_what_one_process_gives(report: Report) -> None:
    pytest.importorskip("ray", reason="the scale extra is not installed")
    from kvready.advisor.whatif.ray_jobs import run_on_ray

    study = studied(msgspec.structs.replace(SMALL, seeds=2))
    told = study.report(run_on_ray("local", study.jobs, silent))
    assert msgspec.json.encode(told) == msgspec.json.encode(report)


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    done = CliRunner().invoke(app, ["whatif", "--workload", "loogle", "--rate", "1",
                                    "--requests", "5", "--ray", "local"])  # fmt: skip
    assert isinstance(done.exception, KvreadyError)
    assert "kvready[scale]" in str(done.exception)


def test_a_cluster_that_is_not_there_is_told_at_once() -> None:
    pytest.importorskip("ray", reason="the scale extra is not installed")
    from kvready.advisor.whatif.ray_jobs import run_on_ray

    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(ServiceError, match="no Ray cluster answers"):
            run_on_ray(address, [], silent)


class Outline(HTMLParser):
    """What a page is made of."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attributes if name in ("src", "href")]


def test_the_page_is_one_file_without_scripts(report: Report) -> None:
    page = rendered(report)
    outline = Outline()
    outline.feed(page)
    assert "svg" in outline.tags
    assert "script" not in outline.tags
    assert not outline.links
    assert "prefers-color-scheme: dark" in page
    for name in report.conditions:
        assert name in page


def test_names_from_files_cannot_become_markup(report: Report) -> None:
    hostile = msgspec.structs.replace(
        report, conditions=report.conditions | {"workload": "<script>alert(1)</script>"}
    )
    assert "<script" not in rendered(hostile)


def test_the_command_prints_goodput_first_and_writes_what_it_was_asked_for(tmp_path: Path) -> None:
    files = [tmp_path / "curves.svg", tmp_path / "report.html"]
    done = CliRunner().invoke(app, [
        "whatif", "--workload", "loogle", "--requests", "20", "--rate", "2,4",
        "--compare", "per-page,strata", "--plot", str(files[0]), "--html", str(files[1]),
    ])  # fmt: skip
    assert done.exit_code == 0, done.output
    assert done.output.index("Goodput") < done.output.index("Mean time to first token")
    assert "evidence: simulated" in done.output
    picture = ElementTree.parse(files[0]).getroot()
    assert picture.tag.endswith("svg")
    assert files[1].read_text(encoding="utf-8").startswith("<!doctype html>")


def test_one_rate_tells_all_tables_and_json_tells_the_same(tmp_path: Path) -> None:
    given = ["whatif", "--workload", "sharegpt", "--requests", "30", "--rate", "5",
             "--compare", "recompute,strata"]  # fmt: skip
    text = CliRunner().invoke(app, given)
    assert text.exit_code == 0, text.output
    for heading in ("Goodput", "Time to first token", "Prompt tokens", "Prefill and the link"):
        assert heading in text.output
    told = json.loads(CliRunner().invoke(app, [*given, "--json"]).output)
    assert [row["policy"] for row in told["comparisons"][0]["rows"]] == ["recompute", "strata"]
    assert told["evidence"] == "simulated"


def test_a_picture_in_pixels_needs_the_plots_extra(report: Report, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the plots extra is not installed")
    from kvready.advisor.whatif.curves import plot_curves

    plot_curves(report, tmp_path / "curves.png")
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"rates": ""}, "--rate"),
        ({"rates": "fast"}, "--rate"),
        ({"rates": "1,1"}, "different"),
        ({"policies": "recompute,magic"}, "fast-copies"),
        ({"policies": "strata,strata"}, "twice"),
        ({"policies": " "}, "--compare"),
        ({"gpu": "h100"}, "--profile"),
        ({"profile": "published:gh200"}, "--gpu"),
        ({"profile": "published:gh200", "gpu": "h100", "machine": "h200"}, "contradict"),
        ({"profile": "published:gh200", "gpu": "h100"}, "--host-gib"),
        ({"machine": "abacus"}, "gh200"),
        ({"model": "no-such"}, r"llama-3\.1-8b"),
        ({"hbm_gib": 0.0}, "--hbm-gib"),
        ({"shape": None}, "TRACE"),
        ({"trace": Path("x.jsonl")}, "either"),
        ({"seeds": 100, "rates": ",".join(map(str, range(1, 40)))}, "up to"),
    ],
)
def test_what_cannot_be_planned_is_refused_with_the_option_to_mend(
    given: dict[str, object], named: str
) -> None:
    with pytest.raises((KvreadyError, KernelError), match=named):
        studied(msgspec.structs.replace(SMALL, **given))


def test_a_trace_that_replays_alike_wants_no_seeds(tmp_path: Path) -> None:
    lines = [
        {"timestamp": 1_037 * n + n * n, "input_length": 600, "output_length": 5, "hash_ids": [n]}
        for n in range(20)
    ]
    trace = tmp_path / "trace.jsonl"
    trace.write_text("".join(json.dumps(line) + "\n" for line in lines))
    asked = Asked(trace=trace, policies="recompute,strata")
    (comparison,) = results(studied(asked)).comparisons
    assert comparison.rate is None
    with pytest.raises(SettingsError, match="--seeds"):
        studied(msgspec.structs.replace(asked, seeds=3))


def test_curves_want_several_rates(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["whatif", "--workload", "loogle", "--rate", "1",
                                    "--plot", str(tmp_path / "c.svg")])  # fmt: skip
    assert "several" in str(done.exception)


def test_another_rate_stretches_arrivals_evenly_and_leaves_thinking_alone() -> None:
    requests = tuple(
        SimRequest(str(n), 3.0 + n * n, 10, 1, (), think_seconds=7.0) for n in range(5)
    )
    before = Workload("by hand", "here", 32, requests)
    after = at_rate(before, 2.0)
    assert mean_rate(after) == pytest.approx(2.0)
    gaps = [one.arrived_seconds - 3.0 for one in after.requests]
    assert gaps == pytest.approx([n * n * gaps[1] for n in range(5)])
    assert {one.think_seconds for one in after.requests} == {7.0}
    assert any("stretched" in note for note in after.notes)


def test_an_interrupt_ends_every_process_and_writes_nothing(tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    command = [
        sys.executable, "-m", "kvready.advisor.cli", "whatif", "--workload", "loogle",
        "--rate", "1,2,4", "--seeds", "5", "--jobs", "2", "--html", str(page),
    ]  # fmt: skip
    running = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    deadline = time.monotonic() + 30
    while len(_group(running.pid)) < 3 and time.monotonic() < deadline:
        time.sleep(0.05)  # until its workers run
    os.killpg(running.pid, signal.SIGINT)  # as a terminal does it, to all
    _, said = running.communicate(timeout=60)
    assert running.returncode == 130, said
    assert said.strip().endswith("stopped; nothing was written")
    assert "Traceback" not in said
    assert not page.exists()
    deadline = time.monotonic() + 10
    while _group(running.pid) and time.monotonic() < deadline:
        time.sleep(0.05)  # multiprocessing's own tracker ends after its last user
    assert not _group(running.pid)


def _group(leader: int) -> list[int]:
    """Processes of one group that are still there."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields[2]) == leader and fields[0] != "Z":
            found.append(int(stat.parent.name))
    return found
