"""What a scrape costs at the bound on series, how long it holds records up, and what it loses.

In process: a page with every child of the catalogue, beside prometheus_client's own instruments
with the same series; and the time for which reading the values keeps records waiting, beside the
records that are taken in at once between two questions.

Over HTTP: `kvready serve` in a process of its own, fed KV events by another and scraped without a
pause. What the engine sent and the sidecar did not take in is lost.

Run as `python tests/bench/scrape.py`; prints one JSON row per line.
"""

from __future__ import annotations

import json
import random
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import IO, Any

import httpx
import zmq
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.openmetrics.exposition import generate_latest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from full_page import REQUEST_ID, full_snapshot
from observer_publisher import ObserverPublisher
from served import Served, free_port, serving
from story import ENGINE

from kvready.advisor.pipeline import Pipeline
from kvready.advisor.service.exposition import Exposition
from kvready.advisor.service.metric import PREFIX, Kind, Metric
from kvready.advisor.service.series import exported
from kvready.advisor.service.sidecar import INGEST_BATCH_RECORDS, Replayed, Sidecar
from kvready.advisor.service.snapshot import Snapshot
from kvready.advisor.service.tally import PairTally
from kvready.advisor.settings import Settings
from kvready.collectors.recording import read_recording
from tests.bench.tap import as_messages, captured_events

Row = dict[str, Any]

RECORDING = Path("examples/recordings/vllm-0.32-cpu-kv-heavy-disk.kvr")
OPENMETRICS = "application/openmetrics-text; version=1.0.0"
ROUNDS = 25
EVENTS_PER_SECOND = 50_000
EVENTS_PER_MESSAGE = 8
SCRAPED_SECONDS = 10.0
LAPS = 12
HIGH_WATER_MESSAGES = 100_000  # vLLM's own default: what an engine sends beyond is lost
LAST_SECONDS = 30.0  # for what is still under way at the end


def page_row() -> Row:
    """A whole page at the bound, beside the client library's own instruments."""
    snapshot = full_snapshot()
    exposition = Exposition(lambda: snapshot)
    registry = instruments(snapshot)
    seconds = shuffled(
        {
            "ours": lambda: exposition.render(OPENMETRICS),
            "theirs": lambda: generate_latest(registry),
        }
    )
    return {
        "name": "scrape_seconds",
        "value": round(seconds["ours"], 5),
        "unit": "s",
        "beside": round(seconds["theirs"], 5),
        "ratio": round(seconds["ours"] / seconds["theirs"], 3),
        "conditions": {
            "series": exported(snapshot).series,
            "bytes": len(exposition.render(OPENMETRICS)[0]),
            "format": "OpenMetrics, an example in every bucket",
            "rounds": ROUNDS,
            "clock": "median CPU seconds",
            "beside": "prometheus_client's own instruments, the same series",
            "kind": "measured",
        },
    }


def hold_row() -> Row:
    """How long reading the values keeps records waiting, beside a handful of them."""
    tally = PairTally()
    pipeline = Pipeline(tally)
    items = list(read_recording(RECORDING))
    last = ROUNDS * INGEST_BATCH_RECORDS
    for item in items[:-last]:
        pipeline.ingest(item)
    left = iter(items[-last:])
    told = Replayed(RECORDING.name, "measured", {})
    sidecar = Sidecar(Settings(), pipeline, tally, replayed=told)

    def handful() -> None:
        for item in islice(left, INGEST_BATCH_RECORDS):
            pipeline.ingest(item)

    seconds = shuffled({"read": sidecar._taken, "handful": handful})
    return {
        "name": "scrape_holds_records_seconds",
        "value": round(seconds["read"], 6),
        "unit": "s",
        "beside": round(seconds["handful"], 6),
        "ratio": round(seconds["read"] / seconds["handful"], 3),
        "conditions": {
            "recording": RECORDING.name,
            "records": len(items),
            "pairs": len(pipeline.ledger.pairs),
            "rounds": ROUNDS,
            "clock": "median CPU seconds",
            "beside": f"{INGEST_BATCH_RECORDS} records, as many as between two questions",
            "kind": "measured",
        },
    }


def loss_row(seconds: float = SCRAPED_SECONDS) -> Row:
    """What of a stream is lost while the sidecar is scraped without a pause."""
    sent, lost, scraper = scraped(seconds, pause_seconds=0.0)
    return {
        "name": "tap_events_lost_during_scrape",
        "value": lost,
        "unit": "events",
        "beside": sent,
        "ratio": lost / sent,
        "conditions": _conditions(seconds, sent, scraper) | {"beside": "events sent"},
    }


def lag_row(seconds: float = SCRAPED_SECONDS) -> Row:
    """How late a record is at most, scraped each second, beside scraped without a pause."""
    sent, _, scraper = scraped(seconds, pause_seconds=1.0)
    hurried = scraped(seconds, pause_seconds=0.0)[2]
    value, beside = (one.largest("ingest_lag_seconds") for one in (scraper, hurried))
    return {
        "name": "scrape_ingest_lag_seconds",
        "value": round(value, 5),
        "unit": "s",
        "beside": round(beside, 5),
        "ratio": round(value / beside, 4),
        "conditions": _conditions(seconds, sent, scraper) | {"beside": "without a pause"},
    }


def scraped(seconds: float, pause_seconds: float) -> tuple[int, int, Scraper]:
    """Events that an engine sent, those that were lost, and what the scraper saw meanwhile."""
    with tempfile.TemporaryDirectory(prefix="kv") as folder:
        command = ("serve", "--kv-events", f"ipc://{folder}/live.sock", "--observer-dir", folder,
                   "--otlp-http-port", free_port())  # fmt: skip
        with serving(*command, port=free_port()) as served, _publishing(folder, seconds) as told:
            scraper = Scraper(served.url, pause_seconds)
            scraper.start()
            try:
                sent = int(told.readline())
                messages = _last_count(served, sent)
            finally:
                scraper.stop()
            dropped = int(served.get("/v1/status").json()["ingest"]["dropped"])
    lost = (sent - messages) * EVENTS_PER_MESSAGE + dropped
    return sent * EVENTS_PER_MESSAGE, lost, scraper


def _conditions(seconds: float, sent: int, scraper: Scraper) -> dict[str, Any]:
    return {
        "events_per_second": round(sent / seconds),
        "events_per_message": EVENTS_PER_MESSAGE,
        "messages_kept_for_us": HIGH_WATER_MESSAGES,
        "seconds": seconds,
        "scrapes": len(scraper.took),
        "series": int(scraper.largest("exported_series")),
        "scrape_p50_seconds": round(statistics.median(scraper.took), 4),
        "scrape_max_seconds": round(max(scraper.took), 4),
        "held_records_max_seconds": round(scraper.largest("snapshot_seconds"), 4),
        "ingest_lag_max_seconds": round(scraper.largest("ingest_lag_seconds"), 4),
        "kind": "measured",
    }


class Scraper:
    """Asks for the next page so long after it has the last."""

    def __init__(self, url: str, pause_seconds: float) -> None:
        self.took: list[float] = []
        self._url = f"{url}/metrics"
        self._pause_seconds = pause_seconds
        self._largest: dict[str, float] = {}
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="scraper")

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End, after the page at hand."""
        self._ending.set()
        self._thread.join()

    def largest(self, name: str) -> float:
        """The largest value of a gauge without labels."""
        return self._largest.get(name, 0.0)

    def _run(self) -> None:
        with httpx.Client(headers={"accept": OPENMETRICS}, timeout=30.0) as client:
            while True:
                began = time.monotonic()
                text = client.get(self._url).text
                self.took.append(time.monotonic() - began)
                for name, value in re.findall(rf"^{PREFIX}(\w+) (\S+)$", text, re.MULTILINE):
                    self._largest[name] = max(self.largest(name), float(value))
                if self._ending.wait(self._pause_seconds):
                    return


def instruments(snapshot: Snapshot) -> CollectorRegistry:
    """The same series in prometheus_client's own instruments, which count on the event path."""
    registry = CollectorRegistry()
    for metric, children in exported(snapshot).metrics:
        made = _instrument(metric, registry)
        for child in children:
            one = made.labels(*map(str, child)) if child else made
            if metric.kind is Kind.HISTOGRAM:
                for bound in (*metric.buckets, 2 * metric.buckets[-1]):
                    one.observe(bound, {"request_id": REQUEST_ID})
            else:
                one.inc(1234.5678)
    return registry


def _instrument(metric: Metric, registry: CollectorRegistry) -> Any:
    names = [label.name for label in metric.labels]
    if metric.kind is Kind.HISTOGRAM:
        return Histogram(metric.name, metric.help, names, registry=registry, buckets=metric.buckets)
    kind = Counter if metric.kind is Kind.COUNTER else Gauge
    return kind(metric.name, metric.help, names, registry=registry)


def shuffled(contenders: dict[str, Callable[[], object]], seed: int = 1) -> dict[str, float]:
    """Median CPU seconds of each, in rounds of shuffled order."""
    shuffler = random.Random(seed)
    taken: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(ROUNDS):
        order = list(contenders)
        shuffler.shuffle(order)
        for name in order:
            began = time.thread_time()
            contenders[name]()
            taken[name].append(time.thread_time() - began)
    return {name: statistics.median(seconds) for name, seconds in taken.items()}


@contextmanager
def _publishing(folder: str, seconds: float) -> Iterator[IO[str]]:
    """An engine in a process of its own; what it says is how many messages it sent."""
    command = [sys.executable, __file__, "publish", folder, str(seconds)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as publisher:
        assert publisher.stdout is not None
        try:
            yield publisher.stdout
        finally:
            publisher.terminate()


def _last_count(served: Served, sent: int) -> int:
    """Messages that the tap received, once all have come or a while has passed without more."""
    ends = time.monotonic() + LAST_SECONDS
    while True:
        taps = served.get("/v1/status").json()["taps"]
        messages = next(int(tap["messages"]) for tap in taps if tap["tap"] == "kv-events")
        if messages >= sent or time.monotonic() >= ends:
            return messages
        time.sleep(0.05)


def publish(folder: str, seconds: float) -> None:
    """Be an engine for so long: KV events at the stated rate; then say how many messages."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    live = context.socket(zmq.XPUB)
    live.setsockopt(zmq.SNDHWM, HIGH_WATER_MESSAGES)
    live.bind(f"ipc://{folder}/live.sock")
    observer = ObserverPublisher(Path(folder))
    payloads = as_messages(captured_events(LAPS), EVENTS_PER_MESSAGE)
    live.recv()  # the subscription: from here on nothing is missed
    began = time.monotonic()
    sent = described = 0
    while (now := time.monotonic() - began) < seconds:
        for _ in range(int(now * EVENTS_PER_SECOND / EVENTS_PER_MESSAGE) - sent):
            payload = payloads[sent % len(payloads)]
            live.send_multipart([b"", sent.to_bytes(8, "big"), payload])
            sent += 1
        if now >= described:
            observer.publish_records(described, [ENGINE])
            described += 1
        time.sleep(0.0005)
    print(sent, flush=True)
    sys.stdin.read()  # what is under way is delivered by this process: it lives until it is ended


def scrape_rows() -> Iterator[Row]:
    """All of them."""
    yield page_row()
    yield hold_row()
    yield loss_row()
    yield lag_row()


def main() -> None:
    """Print every row."""
    if sys.argv[1:2] == ["publish"]:
        publish(sys.argv[2], float(sys.argv[3]))
        return
    for row in scrape_rows():
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
