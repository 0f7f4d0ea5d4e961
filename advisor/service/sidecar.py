"""The running sidecar: a thread per tap, one thread that ingests, questions answered in between.

Everything that thinks runs in the ingest thread, so nothing needs a lock. Other threads `ask`:
their question runs between two batches of records.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from kvready.advisor.service import snapshot
from kvready.advisor.service.calls import Calls, Work
from kvready.advisor.service.catalogue_otel import otel_values
from kvready.advisor.service.family_values import family_histograms, family_values
from kvready.advisor.service.intake import Intake, Shed
from kvready.advisor.service.otel_counts import ExportCounts
from kvready.advisor.service.policy_view import policy_values
from kvready.advisor.service.series import described
from kvready.advisor.service.snapshot import Snapshot
from kvready.advisor.service.tally import PairTally
from kvready.advisor.service.tap_labels import TapLabels
from kvready.advisor.service.taps import Tap
from kvready.advisor.settings import Settings
from kvready.collectors.collector import Collector, Coverage, Level, Recovers
from kvready.collectors.errors import ServiceError
from kvready.collectors.otlp import OtlpTap
from kvready.collectors.otlp_forward import Forwarder
from kvready.collectors.recorder import Recorder, Writer
from kvready.collectors.records import Ingested, PolicyCommanded, RequestReported, TapState

if TYPE_CHECKING:
    from kvready.advisor.control import Control, Outcome
    from kvready.advisor.pipeline import Pipeline
    from kvready.advisor.service.otel import Telemetry
    from kvready.advisor.service.policy_desk import PolicyDesk

POLL_BUDGET_SECONDS = 0.05
BUSY_POLL_SECONDS = 0.001  # after a poll that delivered: a backlog is taken in by handfuls
# After a poll that delivered something, a tap's thread lets others run. Measured on two cores with
# a tap of 64 records a poll that never ends: p99 of /v1/status 9 ms without, 7 ms with it.
YIELD_SECONDS = 0.0005
# Records are let come together for so long: thousands of hand-overs between threads a second cost
# the API more than this delay.
GATHER_SECONDS = 0.001
INGEST_BATCH_RECORDS = 64  # under a millisecond; then whoever calls is looked after
LET_GO_SECONDS = 0.00005  # between two handfuls of a backlog: time for another thread to wake up
MAX_QUESTIONS = 256
ANSWER_SECONDS = 5.0
ANSWERING_SECONDS = 0.02  # at a stretch: then records are taken in again
STOP_SECONDS = 5.0
DRAIN_SECONDS = 30.0  # a full queue takes seconds to ingest

T = TypeVar("T")


class Replayed(msgspec.Struct, frozen=True):
    """Where the records came from when no engine is attached."""

    recording: str
    evidence: str
    conditions: dict[str, str]
    damage: str | None = None


logger = logging.getLogger(__name__)


class Sidecar:
    """Composes taps, recorder and pipeline. `start`, then `ask`, then `stop` (safe twice)."""

    def __init__(
        self,
        settings: Settings,
        pipeline: Pipeline,
        tally: PairTally,
        taps: Sequence[Tap] = (),
        writer: Writer | None = None,
        replayed: Replayed | None = None,
        desk: PolicyDesk | None = None,
        telemetry: Telemetry | None = None,
        exports: ExportCounts | None = None,
    ) -> None:
        """`desk`: keeps policies and watches the kill switch; None: nothing can be commanded.

        `telemetry` exports over OTLP, and counts in `exports`; None: nothing is exported.
        """
        self.desk = desk
        self.telemetry = telemetry
        self.exports = exports or ExportCounts()
        self.settings = settings
        self.pipeline = pipeline
        self.tally = tally
        self.replayed = replayed
        self.collectors = tuple(tap.collector for tap in taps)
        self.advice = {tap.collector.name: tap.advice for tap in taps}
        self.memories = tuple(tap.memory for tap in taps if tap.memory)
        self.fault: BaseException | None = None
        self.calls = Calls()
        self._give_way = self.calls.giver(Work.INGEST)
        self.on_fault: Callable[[], None] = lambda: None
        self.intake = Intake(collector.name for collector in self.collectors)
        self._labels = TapLabels(collector.name for collector in self.collectors)
        self.recorder = Recorder(
            # A replay's clock stands still: ticks of this one would age its open forecasts.
            _ignore if replayed else self._ingested if telemetry else pipeline.ingest,
            writer,
            self.advice,
            settings.taps.silence_seconds,
            started_seconds=time.monotonic(),
        )
        self._questions: queue.Queue[tuple[Future[Any], Callable[[], Any]]] = queue.Queue(
            MAX_QUESTIONS
        )
        self._stopping = threading.Event()
        self._taps_stopped = threading.Event()
        self._threads: list[threading.Thread] = []
        self._ingest = threading.Thread(
            target=self._guarded, args=(self._ingest_loop,), name="ingest"
        )

    def start(self) -> None:
        """Open the taps and begin. Raises `TapError` for an endpoint that can never work."""
        for collector in self.collectors:
            collector.start(self.intake.put)
        self._ingest.start()
        for collector in self.collectors:
            thread = threading.Thread(
                target=self._guarded, args=(self._tap_loop, collector), name=f"tap-{collector.name}"
            )
            self._threads.append(thread)
            thread.start()

    def stop(self) -> None:
        """Stop the taps, ingest what they delivered, close the recording."""
        self._stopping.set()
        for thread in self._threads:
            thread.join(STOP_SECONDS)
        self._taps_stopped.set()
        self.intake.wake()
        if self._ingest.ident is None:
            self.recorder.close()  # never started: nobody else will
            if self.desk is not None:
                self.desk.close()
        else:
            self._ingest.join(DRAIN_SECONDS)
        for collector in self.collectors:
            collector.stop()

    def submit(self, question: Callable[[], T]) -> Future[T]:
        """Have `question` run in the ingest thread. Raises `ServiceError` when it will not."""
        future: Future[T] = Future()
        if not self._ingest.is_alive():
            raise ServiceError("the sidecar is not running; restart it")
        try:
            self._questions.put_nowait((future, question))
        except queue.Full:
            raise ServiceError("too many questions at once; ask less often") from None
        self._give_way.again.set()
        self.intake.wake()
        return future

    def ask(self, question: Callable[[], T]) -> T:
        """Its answer. Raises `ServiceError` when none comes."""
        future = self.submit(question)
        try:
            return future.result(ANSWER_SECONDS)
        except TimeoutError:
            future.cancel()
            raise ServiceError(
                f"no answer within {ANSWER_SECONDS:g} s; the sidecar is overloaded or stopping"
            ) from None

    def command(self, said: PolicyCommanded) -> Outcome:
        """What became of a command to a policy. Raises `ServiceError` where none can be given."""
        desk = self.desk
        if desk is None:
            raise ServiceError("nothing can be commanded here: no engine is attached")
        return self.ask(lambda: desk.command(said, self.pipeline.control, self._say))

    def coverages(self) -> tuple[Coverage, ...]:
        """What each tap can see now, silent where the recorder judged so. Ingest thread only."""
        silent = self.recorder.silent_taps()
        return tuple(
            msgspec.structs.replace(coverage, state=TapState.SILENT)
            if coverage.tap in silent and coverage.state is not TapState.CLOSED
            else coverage
            for coverage in (collector.coverage() for collector in self.collectors)
        )

    @property
    def level(self) -> Level:
        """How deep the configured taps see."""
        return max(self.levels, default=Level.METRICS)

    @property
    def levels(self) -> frozenset[Level]:
        """All levels of which there is a tap; a recording is taken to hold all."""
        if self.replayed:
            return frozenset(Level)
        return frozenset(collector.coverage().level for collector in self.collectors)

    def take_snapshot(self) -> Snapshot:
        """All metrics' values at one moment. Any thread may call."""
        return described(*self.ask(self._taken))

    def _say(self, said: Control) -> None:
        self.recorder.said(said, time.monotonic())

    def _snapshot(self) -> Snapshot:
        """As `take_snapshot`, in the ingest thread itself."""
        return described(*self._taken())

    def _taken(self) -> tuple[Snapshot, dict[str, int], float]:
        """The values, how often names overflowed, and how long records waited meanwhile."""
        began_seconds = time.monotonic()
        coverages = self.coverages()
        classes = self.pipeline.service.classes
        taken = Snapshot(
            levels=self.levels,
            taps=self._labels.labels,
            classes=classes.labels,
            values={
                **snapshot.own_values(
                    coverages,
                    self._labels,
                    self.recorder,
                    self.intake,
                    self.calls,
                    sum(memory.failures for memory in self.memories),
                    time.monotonic(),
                ),
                **otel_values(self.exports),
                **policy_values(self.pipeline.control, self.desk),
                **snapshot.pipeline_values(self.pipeline),
                **family_values(self.pipeline),
                **snapshot.outside_values(self.pipeline, self._forwarders()),
                **snapshot.forecast_values(self.pipeline, self.tally),
            },
            histograms={
                **snapshot.error_histograms(self.tally, self.pipeline),
                **family_histograms(self.pipeline),
            },
        )
        overflows = {"tap": self._labels.overflowed, "class": classes.overflowed}
        return taken, overflows, time.monotonic() - began_seconds

    def _ingested(self, item: Ingested) -> None:
        self.pipeline.ingest(item)
        if self.telemetry is not None and isinstance(item.record, RequestReported):
            self.telemetry.reported(item.record)

    def _forwarders(self) -> list[Forwarder]:
        taps = (collector for collector in self.collectors if isinstance(collector, OtlpTap))
        return [tap.forwarder for tap in taps if tap.forwarder is not None]

    def _tap_loop(self, collector: Collector) -> None:
        give_way = self.calls.giver()
        budget_seconds = POLL_BUDGET_SECONDS
        while not self._stopping.is_set():
            began = time.monotonic()
            if not collector.poll(budget_seconds):
                budget_seconds = POLL_BUDGET_SECONDS
                continue
            there_is_more = time.monotonic() - began >= budget_seconds
            budget_seconds = BUSY_POLL_SECONDS
            time.sleep(LET_GO_SECONDS if there_is_more else YIELD_SECONDS)
            give_way()

    def _ingest_loop(self) -> None:
        try:
            while not self._taps_stopped.is_set():
                now = time.monotonic()
                self.intake.wait(max(self.recorder.next_tick_seconds - now, 0.0))
                if len(self.intake) and self._questions.empty():
                    time.sleep(GATHER_SECONDS)
                self._ingest_once()
            while self._ingest_once():
                pass
        finally:
            self.recorder.close()
            if self.desk is not None:
                self.desk.close()
            self._refuse_questions()

    def _ingest_once(self) -> int:
        """Ingest what is queued, in batches, with ticks and answers in between."""
        total = 0
        while True:
            now = time.monotonic()
            self.recorder.advance(now, time.time())
            if self.desk is not None:
                self.desk.guard(self.pipeline.control, self._say, now)
            self._give_way(self._answer_questions)
            taken = 0
            received_seconds = now
            for record, received_seconds, tap in self.intake.drain(INGEST_BATCH_RECORDS, now):
                if isinstance(record, Shed):
                    self._lost(tap, record.records, received_seconds)
                else:
                    self.recorder.take(record, received_seconds, tap)
                taken += 1
            if taken:
                self.intake.lag_seconds = max(time.monotonic() - received_seconds, 0.0)
            self._answer_questions()
            total += taken
            if taken < INGEST_BATCH_RECORDS:
                return total
            time.sleep(LET_GO_SECONDS)

    def _lost(self, tap: str, count: int, received_seconds: float) -> None:
        """Our own queue was full: the recording says so, and the tap makes good what it can."""
        self.recorder.dropped(tap, count, received_seconds)
        for collector in self.collectors:
            if collector.name == tap and isinstance(collector, Recovers):
                collector.lost(count)

    def _answer_questions(self) -> None:
        ends_seconds = time.monotonic() + ANSWERING_SECONDS
        while time.monotonic() < ends_seconds:
            try:
                future, question = self._questions.get_nowait()
            except queue.Empty:
                return
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(question())
            except Exception as error:  # noqa: BLE001 - the asker gets it, whatever it is
                future.set_exception(error)
        self.intake.wake()  # records first, then what is left of the questions

    def _refuse_questions(self) -> None:
        while True:
            try:
                future, _ = self._questions.get_nowait()
            except queue.Empty:
                return
            try:
                future.set_exception(ServiceError("the sidecar is stopping"))
            except InvalidStateError:
                continue  # the asker gave up first

    def _guarded(self, loop: Callable[..., None], *arguments: object) -> None:
        """Run a thread's loop; what it raises is a defect that ends the whole sidecar."""
        try:
            loop(*arguments)
        except Exception as error:
            logger.exception("a thread of the sidecar failed")
            self.fault = error
            self._stopping.set()
            self.on_fault()


def _ignore(item: Ingested) -> None:
    """Nothing follows from the recorder's own ticks while a recording is shown."""
