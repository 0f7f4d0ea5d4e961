"""A real Prometheus and Alertmanager watch a real sidecar on a simulated engine, from good to bad.

One course of things for all tests. The rules are those that are shipped, with every duration
divided by `HASTE`: the hour of the page is half a minute.
"""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest
from promtool import needed
from served import Served, free_port, serving
from test_sim_surfaces import simulating
from watching import PAGER, TICKETS, Told, Watch, watching

from dashboards.board import ANNOTATIONS
from dashboards.generate import BOARDS
from dashboards.panel import Needs, Panel, expanded
from kvready.collectors.recording import RecordingWriter, read_recording
from kvready.collectors.records import EngineDescribed

pytestmark = pytest.mark.timeout(600)

HASTE = 120.0
PATIENCE_SECONDS = 150.0  # on a machine that has much else to do
MOVERS = Path("examples/recordings/vllm-0.32-cpu-kv-heavy-movers.kvr")
EXCERPT_RECORDS = 3_000
ADMIN = "admin-token-0123456"
# Of the busy engine, in seconds since it began; its sidecar is killed even before.
KILLED_SECONDS, ERRATIC_SECONDS, HEALED_SECONDS = 4.0, 24.0, 52.0
BUSY = 6.0, 10_000, ("restart@10", "erratic@24:28")
# Most of its forecasts are bad, there are never 50 of them, and its observer falls silent.
QUIET = 1.5, 45, ("erratic@1:600", "silent@10:12")
QUIET_SILENCE_SECONDS = 2
FAST, SLOW = "KvreadyForecastsBadFast", "KvreadyForecastsBadSlow"
TARGETS = "--target-ttft-seconds", 0.5
SILENT, KILLED = "KvreadyTapSilent", "KvreadyKillSwitchActive"


class Place:
    """An engine and the sidecar beside it."""

    def __init__(self, folder: Path, rate: float, requests: int, faults: tuple[str, ...]) -> None:
        self.sockets = folder / "s"
        self.sockets.mkdir(parents=True)
        self.sockets.chmod(0o700)
        self.engine_port, self.spans_port, self.port = free_port(), free_port(), free_port()
        self.address = f"127.0.0.1:{self.port}"
        self.further = f"http://127.0.0.1:{free_port()}"  # where its spans are passed on to
        self._folder, self._rate, self._requests, self._faults = folder, rate, requests, faults
        self._token = folder / "admin"
        self._token.write_text(ADMIN)
        self._token.chmod(0o600)

    @property
    def outside(self) -> tuple[object, ...]:
        """Options of a sidecar that reads the engine's own page and takes its spans, too."""
        page = "--metrics-url", f"http://127.0.0.1:{self.engine_port}", "--metrics-seconds", 10
        spans = "--otlp-http-port", self.spans_port, "--otlp-forward", self.further
        return *page, *spans, *TARGETS

    def sidecar(self, stack: ExitStack, *options: object) -> Served:
        """Start it."""
        return stack.enter_context(serving(
            "serve", "--kv-events", f"ipc://{self.sockets}/kv.sock",
            "--replay", f"ipc://{self.sockets}/replay.sock", "--observer-dir", self.sockets,
            *options,
            "--state-dir", self._folder, "--policy-folder", self._folder / "policies",
            "--admin-token-file", self._token, port=self.port,
        ))  # fmt: skip

    def engine(self, stack: ExitStack) -> float:
        """Start it; the moment of its second 0, or a little later."""
        spans = "--spans", f"http://127.0.0.1:{self.spans_port}/v1/traces"
        faults = [option for fault in self._faults for option in ("--fault", fault)]
        stack.enter_context(simulating(
            self.sockets, "--port", self.engine_port, "--rate", self._rate,
            "--requests", self._requests, "--seed", 1, *spans, *faults,
        ))  # fmt: skip
        return time.monotonic()


class Course(NamedTuple):
    """What came of it."""

    watch: Watch
    busy: str  # address of the sidecar of all faults
    quiet: str  # of the one with little traffic
    recorded: str  # of the one that replays a recording
    blind: str  # of the one that has the busy engine's spans alone
    erratic_seconds: float  # when the busy engine became erratic, of the monotonic clock
    pages: list[Told]  # of its forecasts, until it was well again


@pytest.fixture(scope="module")
def course(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Course]:
    needed("prometheus", "prometheus-alertmanager")
    folder = tmp_path_factory.mktemp("watched")
    with ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(folder / "state"))
        busy = Place(folder / "busy", *BUSY)
        quiet = Place(folder / "quiet", *QUIET)
        recorded, blind = free_port(), free_port()
        sidecar = busy.sidecar(stack, *busy.outside)
        quiet.sidecar(stack, "--silence-seconds", QUIET_SILENCE_SECONDS)
        stack.enter_context(
            serving("demo", with_workers(folder / "few.kvr"), "--serve", port=recorded)
        )
        heard = "serve", "--otlp-http-port", busy.further.rpartition(":")[2]
        stack.enter_context(serving(*heard, "--policy-folder", folder / "blind", port=blind))
        at = [f"127.0.0.1:{port}" for port in (recorded, blind)]
        places = [busy.address, quiet.address, *at]
        watch = stack.enter_context(watching(folder, places, HASTE))
        quiet.engine(stack)
        began = busy.engine(stack)
        pages = lived(watch, (busy, quiet), sidecar, began, stack)
        yield Course(watch, *places, began + ERRATIC_SECONDS, pages)


def lived(
    watch: Watch, places: tuple[Place, Place], sidecar: Served, began: float, stack: ExitStack
) -> list[Told]:
    """The whole course of things. Returns pages of bad forecasts until all was well again."""
    busy, quiet = places

    def told(receiver: str, name: str, place: Place, firing: bool = True, tap: str = "") -> bool:
        return (name, place.address, tap, firing) in {
            (one.name, one.instance, one.tap, one.firing) for one in watch.receiver.of(receiver)
        }

    def paged() -> list[Told]:
        return [one for one in watch.receiver.of(PAGER) if one.name == FAST]

    def until(what: str, condition: Callable[[], bool]) -> None:
        watch.wait(condition, PATIENCE_SECONDS, what)

    def passes(seconds: float) -> None:
        until("time passes", lambda: time.monotonic() > began + seconds)

    passes(KILLED_SECONDS)
    started = f'kvready_process_start_time_seconds{{instance="{busy.address}"}}'
    until("its first life was scraped", lambda: bool(watch.now(started)))
    sidecar.process.kill()
    sidecar.end()
    sidecar = busy.sidecar(stack, *busy.outside)
    command(sidecar, "PUT", "/v1/policies/dedup", {"mode": "observe"})
    until("a silent tap is a ticket", lambda: told(TICKETS, SILENT, quiet, tap="observer"))
    until("it speaks again", lambda: told(TICKETS, SILENT, quiet, False, "observer"))
    until("bad forecasts page", lambda: told(PAGER, FAST, busy))
    passes(HEALED_SECONDS)
    until("healing resolves the page", lambda: not paged()[-1].firing)
    pages = paged()
    command(sidecar, "POST", "/v1/kill", {})
    until("a kill is a ticket", lambda: told(TICKETS, KILLED, busy))
    figures = f'kvready_gate_check_value{{instance="{busy.address}",check=~"accuracy:.*"}}'
    until("gates were asked, and could judge", lambda: bool(watch.since(figures)))
    return pages


def command(sidecar: Served, method: str, path: str, body: dict[str, str]) -> None:
    """Have a policy moved."""
    headers = {
        "authorization": f"Bearer {ADMIN}",
        "idempotency-key": uuid.uuid4().hex,
        "if-match": "*",
    }
    reason = {"reason": "to be seen on a dashboard"}
    answer = sidecar.client.request(method, path, json=reason | body, headers=headers)
    assert answer.is_success, answer.text


def with_workers(path: Path) -> Path:
    """The beginning of a recording of a CPU engine, with the workers that a GPU's would tell."""
    source = read_recording(MOVERS)
    with RecordingWriter(path, source.header) as writer:
        for item in islice(source, EXCERPT_RECORDS):
            record = item.record
            if isinstance(record, EngineDescribed):
                record = msgspec.structs.replace(record, gather_workers=8)
            writer.write(msgspec.structs.replace(item, record=record))
    return path


# Pages --------------------------------------------------------------------------------------------


def test_a_model_that_fails_wakes_somebody_and_healing_lets_them_sleep(course: Course) -> None:
    assert (course.pages[0].firing, course.pages[-1].firing) == (True, False)
    assert {one.instance for one in course.pages} == {course.busy}
    said = course.pages[0].annotations
    assert course.busy in said["summary"]
    assert "%" in said["summary"]
    assert said["runbook_url"].endswith(f"{FAST}.md")


def test_silence_a_restart_and_a_killed_sidecar_wake_nobody(course: Course) -> None:
    told = course.watch.receiver.told
    early = [one.name for one in told if one.at_seconds < course.erratic_seconds]
    assert not {FAST, SLOW}.intersection(early)
    silent = [one for one in told if (one.name, one.tap) == (SILENT, "observer")]
    assert {one.firing for one in silent if one.instance == course.quiet} == {True, False}
    assert {one.receiver for one in silent} == {TICKETS}
    began = f'changes(kvready_process_start_time_seconds{{instance="{course.busy}"}}[10m])'
    assert set(course.watch.now(began).values()) == {1.0}


def test_little_traffic_wakes_nobody_however_bad_its_forecasts(course: Course) -> None:
    pages = course.watch.receiver.of(PAGER)
    assert [one for one in pages if one.instance != course.busy] == []
    quiet = f'{{instance="{course.quiet}",target="ttft"}}'
    judged = course.watch.now(f"sum(kvready_forecast_interval_total{quiet})")
    bad = course.watch.now(f"kvready_forecast_bad_total{quiet}")
    assert max(bad.values()) > 0.3 * max(judged.values()) > 3


def test_nothing_else_wakes_anybody(course: Course) -> None:
    assert {one.name for one in course.watch.receiver.of(PAGER)} <= {FAST, SLOW}


# Panels -------------------------------------------------------------------------------------------


def asked() -> Iterator[tuple[str, Panel, str]]:
    for board in BOARDS:
        for panel in board.panels():
            for query in panel.queries:
                yield f"{board.name}/{panel.title}", panel, query.expression


def test_every_panel_shows_something(course: Course) -> None:
    shown_by = {
        Needs.NOTHING: course.busy,
        Needs.GPU: course.recorded,
        Needs.NO_OBSERVER: course.blind,
    }
    empty = []
    for where, panel, expression in asked():
        scope = f'job="sidecars",instance="{shown_by[panel.needs]}"'
        found = course.watch.since(expanded(expression, scope, "5s", "60s"))
        if not any(math.isfinite(value) for values in found for value in values):
            empty.append(f"{where}: {expression}")
    assert not empty, "\n".join(empty)


def test_a_policy_that_moved_a_kill_and_a_new_start_are_marked(course: Course) -> None:
    for name, expression, _, _ in ANNOTATIONS:
        plain = expression.replace("$__rate_interval", "5s").replace("$job", ".+")
        found = course.watch.since(plain.replace("$instance", course.busy))
        assert any(value > 0 for values in found for value in values), name


def test_every_recorded_series_is_there(course: Course) -> None:
    for window in ("5m", "30m", "1h", "6h", "3d"):
        name = f"instance_target:kvready_bad_forecasts:ratio_rate{window}"
        found = course.watch.since(f'{name}{{instance="{course.busy}",target="ttft"}}')
        assert any(0.0 < value <= 1.0 for values in found for value in values), name
    health = course.watch.client.get("/api/v1/rules").json()["data"]["groups"]
    assert {rule["health"] for group in health for rule in group["rules"]} == {"ok"}
