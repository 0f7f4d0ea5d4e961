"""The service as a process and as an app: attached to real sockets, asked over real HTTP."""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families
from publisher import Publisher
from served import AppClient, serving
from story import Story

from kvready.advisor.inventory import InventoryCount
from kvready.advisor.report import Report, build_report
from kvready.advisor.service import generate, runner
from kvready.advisor.service.app import MAX_PAIRS, create_app
from kvready.advisor.service.intake import Intake, Shed
from kvready.advisor.service.sidecar import Replayed, Sidecar
from kvready.advisor.service.tally import PairTally
from kvready.advisor.service.taps import Tap
from kvready.advisor.settings import Settings
from kvready.collectors.collector import Coverage, Level, Sink, Stability
from kvready.collectors.errors import ServiceError
from kvready.collectors.recording import read_recording
from kvready.collectors.records import FirstToken, Ingested, TapState, TapStatus, Tick

FLAGS = "/ofrep/v1/evaluate/flags"
GOLDEN = Path("tests/golden/openapi.json")


class Flood:
    """A collector that always has something, as fast as it is polled."""

    name = "flood"

    def __init__(self, per_poll: int = 256) -> None:
        self.delivered = 0
        self.stopped = 0
        self._per_poll = per_poll
        self._sink: Sink | None = None

    def start(self, sink: Sink) -> None:
        self._sink = sink

    def poll(self, budget_seconds: float) -> int:
        assert self._sink is not None
        for _ in range(self._per_poll):
            record = FirstToken(request_id="r", first_token_seconds=self.delivered)
            self._sink(record, time.monotonic(), self.name)
            self.delivered += 1
        return self._per_poll

    def stop(self) -> None:
        self.stopped += 1

    def coverage(self) -> Coverage:
        return Coverage(
            tap=self.name,
            level=Level.OBSERVER,
            state=TapState.LIVE,
            stability=Stability.BETA,
            records=self.delivered,
            messages=self.delivered,
            gaps=0,
            decode_errors=0,
            dropped=0,
            last_received_seconds=time.monotonic(),
        )


class FullDisk:
    """A writer that refuses after ten records."""

    written_bytes = 0
    taken = 0

    def write(self, item: Ingested) -> bool:
        if self.taken >= 10:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.taken += 1
        return True

    def flush(self) -> None: ...

    def close(self) -> None: ...


def sidecar_of(*collectors: object, writer: object = None) -> Sidecar:
    tally = PairTally()
    taps = [Tap(collector, "the test") for collector in collectors]  # type: ignore[arg-type]
    return Sidecar(Settings(), Story().pipeline, tally, taps, writer=writer)  # type: ignore[arg-type]


@pytest.fixture
def client(told_story: Story) -> Iterator[AppClient]:
    tally = PairTally()
    for pair in told_story.pairs:
        tally(pair)
    replayed = Replayed("story.kvr", "simulated", {"told by": "a test"})
    sidecar = Sidecar(Settings(), told_story.pipeline, tally, replayed=replayed)
    sidecar.start()
    yield AppClient(create_app(sidecar))
    sidecar.stop()


def test_the_api_is_the_one_that_was_agreed() -> None:
    assert generate.openapi() == GOLDEN.read_text(encoding="utf-8"), "run `make generate`"


def test_what_changes_something_is_named_and_nothing_else_does() -> None:
    paths = json.loads(GOLDEN.read_text(encoding="utf-8"))["paths"]
    # Too long for a URL, or not of a protocol's choosing, but questions all the same.
    for question in ("/v1/readiness", FLAGS, FLAGS + "/{key}"):
        assert set(paths.pop(question)) == {"post"}
    changing = {
        f"{method} {path}"
        for path, operations in paths.items()
        for method in operations
        if method != "get"
    }
    assert changing == {
        "put /v1/policies/{policy}",
        "post /v1/policies/{policy}/{action}",
        "post /v1/kill",
        "post /v1/revive",
    }


def test_pairs_come_newest_first_by_target_and_bounded(client, told_story: Story) -> None:
    everything = client.get("/v1/pairs", params={"limit": MAX_PAIRS}).json()
    assert len(everything) == len(told_story.pairs)
    newest = told_story.pairs[-1]
    assert everything[0]["subject"] == newest.forecast.subject
    assert everything[0]["actual_seconds"] == newest.actual_seconds
    loads = client.get("/v1/pairs", params={"target": "load", "limit": 5}).json()
    assert [pair["target"] for pair in loads] == ["load"] * 5
    assert [p["signed_error_seconds"] for p in loads] == [
        pair.signed_error_seconds
        for pair in reversed(told_story.pairs)
        if pair.forecast.target == "load"
    ][:5]


def test_the_report_is_the_one_that_the_command_line_prints(client, told_story: Story) -> None:
    answered = msgspec.json.decode(client.get("/v1/report").content, type=Report)
    assert answered == build_report(told_story.pipeline, "simulated", {"told by": "a test"})


def test_many_readers_cost_one_report(client, monkeypatch) -> None:
    built = []
    monkeypatch.setattr(
        "kvready.advisor.service.app.build_report",
        lambda *arguments: built.append(arguments) or build_report(*arguments),
    )
    answers = {client.get("/v1/report").content for _ in range(5)}
    assert len(built) == len(answers) == 1


@pytest.mark.parametrize(
    ("path", "status", "named"),
    [
        ("/v1/pairs?limit=0", 422, "query.limit"),
        (f"/v1/pairs?limit={MAX_PAIRS + 1}", 422, "query.limit"),
        ("/v1/pairs?target=weather", 422, "query.target"),
        ("/nowhere", 404, "Not Found"),
    ],
)
def test_errors_are_problem_documents(client, path: str, status: int, named: str) -> None:
    answer = client.get(path)
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["status"] == status
    assert named in answer.json()["detail"]


def test_a_stopped_sidecar_answers_that_it_is_not_there(told_story: Story) -> None:
    sidecar = Sidecar(Settings(), told_story.pipeline, PairTally())
    client = AppClient(create_app(sidecar))
    answer = client.get("/v1/status")
    assert answer.status_code == 503
    assert answer.headers["content-type"] == "application/problem+json"
    assert "restart" in answer.json()["detail"]
    assert client.get("/livez").status_code == 200


def test_readiness_names_the_tap_that_nothing_answers(short_dir: Path, free_port: int) -> None:
    with serving("serve", "--kv-events", f"ipc://{short_dir}/none", port=free_port) as served:
        answer = served.get("/readyz")
        assert answer.status_code == 503
        assert "tap kv-events is not connected: check that the engine" in answer.json()["detail"]


def test_an_idle_engine_that_answers_is_ready(short_dir: Path, free_port: int) -> None:
    with (
        Publisher(short_dir) as engine,
        serving("serve", "--kv-events", engine.events, port=free_port) as served,
    ):
        served.wait_for(lambda: served.get("/readyz").status_code == 200)
        assert served.get("/readyz").json()["taps"] == ["kv-events"]


def test_a_silent_tap_is_named_with_what_to_check(short_dir: Path, free_port: int) -> None:
    with (
        Publisher(short_dir) as engine,
        serving(
            "serve", "--kv-events", engine.events, "--silence-seconds", "0.5", port=free_port
        ) as served,
    ):
        served.wait_for(lambda: "is silent" in served.get("/readyz").text)
        assert served.get("/v1/status").json()["taps"][0]["state"] == "silent"
        code, errors = served.end()
    assert code == 0
    assert "nothing has arrived for 0.5 s; check that the engine runs" in errors
    assert engine.events in errors


def test_blocks_that_an_engine_publishes_are_counted_and_recorded(
    short_dir: Path, free_port: int
) -> None:
    file = short_dir / "run.kvr"
    with Publisher(short_dir) as engine:
        flags = ("--kv-events", engine.events, "--replay", engine.replay, "--recording", file)
        with serving("serve", *flags, port=free_port) as served:
            engine.store(1, 2, 3)
            served.wait_for(lambda: _inventory(served)["hbm"] == 3)
            engine.store(11, medium="CPU")
            served.wait_for(lambda: _inventory(served)["host"] == 1)
            served.wait_for(lambda: served.get("/readyz").status_code == 200)
            metrics = {
                family.name: family
                for family in text_string_to_metric_families(served.get("/metrics").text)
            }
            blocks = {
                s.labels["tier"]: s.value for s in metrics["kvready_inventory_blocks"].samples
            }
            assert blocks == {"hbm": 3, "host": 1, "disk": 0, "remote": 0}
            assert "kvready_requests" not in metrics
            code, errors = served.end()
    assert code == 0, errors
    recording = read_recording(file)
    kinds = [type(item.record) for item in recording]
    assert recording.damage is None
    assert Tick in kinds
    assert sum(kind.__name__ == "BlocksStored" for kind in kinds) == 2


def test_another_engines_events_are_counted_and_never_believed(
    short_dir: Path, free_port: int
) -> None:
    with (
        Publisher(short_dir) as engine,
        serving("serve", "--kv-events", engine.events, port=free_port) as served,
    ):

        def errors() -> int:
            engine.send_payload(msgspec.msgpack.encode([time.time() * 1000, [{"event_id": 1}], 0]))
            return int(served.get("/v1/status").json()["taps"][0]["decode_errors"])

        served.wait_for(lambda: errors() > 0)
        status = served.get("/v1/status").json()
        assert status["inventory"]["live_blocks"]["hbm"] == 0
        assert status["taps"][0]["state"] != "live"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_with_zero_and_a_whole_recording(
    short_dir: Path, free_port: int, number: signal.Signals
) -> None:
    file = short_dir / "run.kvr"
    flags = ("--kv-events", f"ipc://{short_dir}/none", "--recording", file)
    with serving("serve", *flags, port=free_port) as served:
        code, errors = served.end(number)
    assert code == 0, errors
    recording = read_recording(file)
    assert len(list(recording)) >= 1
    assert recording.damage is None


def test_a_port_in_use_is_refused_with_the_fix(kvready, short_dir: Path, free_port: int) -> None:
    with socket.create_server(("127.0.0.1", free_port)):
        ended = kvready("serve", "--kv-events", f"ipc://{short_dir}/e", "--port", free_port)
    assert ended.returncode == 2
    assert f"cannot listen on 127.0.0.1:{free_port}" in ended.stderr
    assert "--port" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_full_disk_ends_the_recording_and_nothing_else() -> None:
    sidecar = sidecar_of(Flood(per_poll=1), writer=FullDisk())
    sidecar.start()
    client = AppClient(create_app(sidecar))
    _wait_for(lambda: client.get("/v1/status").json()["recording"]["problem"])
    status = client.get("/v1/status").json()
    before = status["ingest"]["records"]
    _wait_for(lambda: client.get("/v1/status").json()["ingest"]["records"] > before)
    sidecar.stop()
    assert status["recording"]["active"] is False
    assert "No space left on device" in status["recording"]["problem"]
    assert status["recording"]["records"] == 10


def test_a_flooding_tap_never_starves_the_answers() -> None:
    flood = Flood()
    sidecar = sidecar_of(flood)
    sidecar.start()
    client = AppClient(create_app(sidecar))
    answered = [client.get("/v1/status").status_code for _ in range(20)]
    delivered = flood.delivered
    sidecar.stop()
    assert answered == [200] * 20
    assert delivered > 0


def test_stopping_under_a_flood_ingests_what_was_taken_and_stops_twice_safely() -> None:
    flood = Flood()
    sidecar = sidecar_of(flood)
    sidecar.start()
    _wait_for(lambda: flood.delivered > 10_000)
    sidecar.stop()
    sidecar.stop()
    told = sidecar.recorder.kinds["first_token"] + sum(sidecar.intake.dropped.values())
    assert told == flood.delivered
    assert len(sidecar.intake) == 0
    assert flood.stopped >= 1


def test_a_defect_in_a_tap_stops_the_sidecar_and_is_not_swallowed(caplog) -> None:
    class Broken(Flood):
        def poll(self, budget_seconds: float) -> int:
            raise RuntimeError("no such thing")

    told = threading.Event()
    sidecar = sidecar_of(Broken())
    sidecar.on_fault = told.set
    sidecar.start()
    assert told.wait(10)
    sidecar.stop()
    assert isinstance(sidecar.fault, RuntimeError)
    assert "a thread of the sidecar failed" in caplog.text


def test_a_question_that_fails_fails_the_asker_alone() -> None:
    sidecar = sidecar_of()
    sidecar.start()
    with pytest.raises(ZeroDivisionError):
        sidecar.ask(lambda: 1 // 0)
    assert sidecar.ask(lambda: 2) == 2
    sidecar.stop()
    with pytest.raises(ServiceError):
        sidecar.ask(lambda: 3)


def test_a_full_queue_drops_and_tells_how_many_by_tap_in_their_place() -> None:
    intake = Intake(["a", "b"], limit=3)

    def put(tap: str, *names: str) -> None:
        for name in names:
            intake.put(FirstToken(request_id=name, first_token_seconds=0), 0.0, tap)

    def drained(limit: int) -> list[str]:
        return [
            f"{tap} lost {record.records}" if isinstance(record, Shed) else record.request_id
            for record, _, tap in intake.drain(limit, 0.0)
        ]

    put("a", "1", "2", "3", "lost", "lost")
    put("b", "lost")
    assert drained(2) == ["1", "2"]
    put("a", "4")
    put("a", "lost")
    assert drained(2) == ["3", "a lost 2"]
    assert drained(10) == ["4", "a lost 1", "b lost 1"]
    assert drained(10) == []
    put("b", "5")
    assert drained(10) == ["5"]
    assert intake.dropped == {"a": 3, "b": 1}


def test_a_tap_whose_records_were_dropped_is_told_so() -> None:
    class Lossy(Flood):
        told = 0

        def lost(self, count: int) -> None:
            self.told += count

    flood, other = Lossy(), Lossy()
    other.name = "other"
    sidecar = sidecar_of(flood, other)
    sidecar.intake._limit = 100
    flood.start(sidecar.intake.put)
    flood.poll(0.0)
    sidecar._ingest_once()
    assert flood.told == sidecar.intake.dropped["flood"] == 156
    assert other.told == 0


def test_drops_reach_the_pipeline_as_records() -> None:
    seen: list[Ingested] = []
    sidecar = sidecar_of()
    sidecar.recorder._forward = seen.append
    sidecar.intake._limit = 0
    sidecar.intake.put(FirstToken(request_id="r", first_token_seconds=0), 0.0, "a")
    sidecar.start()
    sidecar.ask(lambda: None)
    sidecar.stop()
    told = [item.record for item in seen if isinstance(item.record, TapStatus)]
    assert [(status.tap, status.count) for status in told] == [("a", 1)]


def _inventory(served) -> dict[str, int]:
    return served.get("/v1/status").json()["inventory"]["live_blocks"]


def _wait_for(condition, seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition never held"
        time.sleep(0.01)


def test_another_engines_events_are_told_with_the_reason_wherever_one_looks(
    short_dir: Path, free_port: int
) -> None:
    foreign = [1.0, [["BlockStored", [-1], None, [1], 1, None]], 0]
    with Publisher(short_dir) as engine:
        # Long enough that on a busy machine too the first message comes before silence is told of.
        flags = ("--kv-events", engine.events, "--silence-seconds", "6")
        with serving("serve", *flags, port=free_port) as served:

            def refused() -> bool:
                engine.send_payload(msgspec.msgpack.encode(foreign))
                ready = served.get("/readyz")
                [tap] = served.get("/v1/status").json()["taps"]
                is_told = ready.status_code == 503 and "SGLang" in ready.json()["detail"]
                return is_told and tap["state"] == "silent"

            served.wait_for(refused)
            [tap] = served.get("/v1/status").json()["taps"]
            [(reason, count)] = tap["refused"].items()
            assert "signed block hash" in reason
            assert count == tap["decode_errors"] > 0
            assert "array of" in tap["quarantine"][-1]
            _, errors = served.end()
    assert "nothing could be read of what arrived (signed block hash" in errors


def test_what_is_counted_is_shown_in_the_status_and_as_metrics() -> None:
    story = Story()
    story.pipeline.inventory.counts.update(dict.fromkeys(InventoryCount, 3))
    story.pipeline.ranks[0].requests.shed = 4
    story.pipeline.ranks[0].requests.unknown = 5
    story.pipeline.shed_records = 6
    replayed = Replayed("story.kvr", "simulated", {})
    sidecar = Sidecar(Settings(), story.pipeline, PairTally(), replayed=replayed)
    sidecar.start()
    try:
        client = AppClient(create_app(sidecar))
        status = client.get("/v1/status").json()
        assert status["inventory"]["counts"] == dict.fromkeys(InventoryCount, 3)
        assert status["requests"] == {"shed": 4, "unknown": 5, "shed_records": 6}
        metrics = client.get("/metrics").text
        for count in InventoryCount:
            assert f'kvready_inventory_oddities_total{{kind="{count}"}} 3.0' in metrics
        assert "kvready_shed_requests_total 4.0" in metrics
        assert "kvready_unknown_request_records_total 5.0" in metrics
        assert "kvready_shed_rank_records_total 6.0" in metrics
    finally:
        sidecar.stop()


def test_an_address_of_version_six_is_shown_in_brackets(free_port: int) -> None:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        pytest.skip("no IPv6 on this machine")
    settings = Settings(api={"host": "::1", "port": free_port}, taps={"otlp_host": "::1"})  # type: ignore[arg-type]
    said: list[str] = []
    sidecar = sidecar_of(Flood())
    sidecar.on_fault = lambda: None
    sidecar.start()
    with runner.listening(settings) as listener:
        timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGTERM))
        timer.start()
        try:
            runner.answer(sidecar, listener, said.append)
        finally:
            timer.join()
            sidecar.stop()
    assert said == [f"serving on http://[::1]:{free_port}"]
