"""A recording replayed as if live, each forecast kept with what was known when it was made."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from kvready.advisor.conditions import describe_engine
from kvready.advisor.evaluation.features import (
    UNKNOWN_TIER,
    known_of_batch,
    known_of_copy,
    known_of_engine,
    known_of_request,
    tier_of_request,
)
from kvready.advisor.evaluation.samples import Bounds, Known, Sample
from kvready.advisor.intervals import Interval
from kvready.advisor.ledger import Forecast, Pair, PairState, Target
from kvready.advisor.load_priors import LoadPriors
from kvready.advisor.pipeline import Pipeline
from kvready.advisor.playback import PROGRESS_RECORDS, told_header
from kvready.collectors.recording import RecordingHeader, read_recording
from kvready.collectors.records import (
    AnyRecord,
    BatchPlanned,
    Ingested,
    LoadDecided,
    LoadFinished,
    Observed,
    RequestArrived,
    Surface,
)

MAX_SAMPLES = 1_000_000  # of all targets; further ones are counted
MAX_ARRIVALS = 1_000_000
UNTOLD = "untold"  # the mover that an engine does not name
UPPER_SHARE = 0.10  # outcomes above p90


class Gathered(msgspec.Struct, frozen=True):
    """All that one recording gives to score."""

    name: str
    header: RecordingHeader
    samples: list[Sample]
    counts: dict[tuple[Target, PairState], int]
    arrivals: dict[str, int]  # requests in the order of their arrival
    conditions: dict[str, str]  # of the engine and its traffic
    records: int
    unkept: int  # forecasts beyond the bound
    damage: str | None


class Gatherer:
    """Feeds a pipeline, and notes what each of its forecasts was and became."""

    def __init__(self, priors: LoadPriors) -> None:
        self.pipeline = Pipeline(self._paired, priors, self._forecast)
        self.samples: list[Sample] = []
        self.arrivals: dict[str, int] = {}
        self.unkept = 0
        self._record: AnyRecord | None = None
        self._open: dict[int, Sample] = {}
        self._movers: dict[str, str] = {}
        self._free_blocks: dict[int, int | None] = {}  # by rank
        self._parts: dict[tuple[Target, str], int] = {}

    def take(self, item: Ingested) -> None:
        """The next record."""
        record = self._record = item.record
        if isinstance(record, LoadFinished):
            self._movers[load_subject(record.rank, record.load_id)] = record.method or UNTOLD
        elif isinstance(record, BatchPlanned):
            self._free_blocks[record.rank] = record.free_blocks
        elif (
            isinstance(record, RequestArrived)
            and record.surface is not Surface.GATEWAY
            and len(self.arrivals) < MAX_ARRIVALS
        ):
            self.arrivals.setdefault(record.request_id, len(self.arrivals))
        self.pipeline.ingest(item)
        self._movers.clear()

    def _forecast(self, forecast: Forecast, interval: Interval) -> None:
        if len(self.samples) + len(self._open) >= MAX_SAMPLES:
            self.unkept += 1
            return
        known, tier, request, part, size = self._described(forecast, self._record)
        self._open[forecast.forecast_id] = Sample(
            target=forecast.target,
            shape_cell=forecast.shape_cell,
            tier=tier,
            mover="",
            starts_seconds=forecast.starts_seconds,
            made_seconds=forecast.made_seconds,
            actual_seconds=0.0,
            bounds=Bounds(
                forecast.p50_seconds,
                interval.exceeded_seconds(UPPER_SHARE),
                forecast.low_seconds,
                forecast.high_seconds,
            ),
            known=known,
            request=request,
            part=part,
            size=size,
        )

    def _described(
        self, forecast: Forecast, record: AnyRecord | None
    ) -> tuple[Known, str, str, int, int]:
        """What was known, the tier, and by what name, part and size a repeat would know it."""
        rank = self.pipeline.ranks[record.rank if isinstance(record, Observed) else 0]
        free = self._free_blocks.get(rank.rank)
        if isinstance(record, BatchPlanned):
            return known_of_batch(rank, record), "", "", 0, 0
        if isinstance(record, LoadDecided):
            known = known_of_copy(rank, free, rank.requests.copies[record.load_id])
            part = self._parts.get((forecast.target, record.request_id), 0)
            self._parts[forecast.target, record.request_id] = part + 1
            return known, record.source, record.request_id, part, record.payload_bytes
        request_id = getattr(record, "request_id", "")
        state = rank.requests.live.get(request_id)
        if state is None:
            return known_of_engine(rank, free), UNKNOWN_TIER, request_id, 0, 0
        known = known_of_request(rank, free, self.pipeline.inventory, state)
        return known, tier_of_request(state, known), request_id, 0, state.arrived.prompt_tokens

    def _paired(self, pair: Pair) -> None:
        sample = self._open.pop(pair.forecast.forecast_id, None)
        if sample is None or pair.state is not PairState.PAIRED:
            return
        assert pair.actual_seconds is not None
        sample.actual_seconds = pair.actual_seconds
        sample.mover = self._movers.get(pair.forecast.subject, "")
        self.samples.append(sample)


def gather(
    path: Path,
    priors: LoadPriors | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> Gathered:
    """Replay a recording; without `priors` loads start from what those of the run started from.

    Raises `RecordingError` for a file that is no recording.
    """
    recording = read_recording(path)
    if priors is None:
        priors = LoadPriors.of_told(recording.header.load_start)
    gatherer = Gatherer(priors)
    records = 0
    for item in recording:
        gatherer.take(item)
        records += 1
        if on_progress is not None and records % PROGRESS_RECORDS == 0:
            on_progress(records)
    pipeline = gatherer.pipeline
    return Gathered(
        name=path.name,
        header=told_header(recording.header, pipeline.evidence),
        samples=gatherer.samples,
        counts=dict(pipeline.ledger.counts),
        arrivals=gatherer.arrivals,
        conditions=described(pipeline),
        records=records,
        unkept=gatherer.unkept,
        damage=recording.damage,
    )


def described(pipeline: Pipeline) -> dict[str, str]:
    """The conditions that every figure holds under."""
    engine = describe_engine(pipeline.engine)
    return engine | {"link profile": pipeline.priors.described} | pipeline.traffic.described()


def load_subject(rank: int, load_id: int) -> str:
    """A load as its forecast names it."""
    return f"{rank}:{load_id}" if rank else str(load_id)
