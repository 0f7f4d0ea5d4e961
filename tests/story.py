"""Scripted stories: records in ingest order, with receive times that follow the event times."""

from __future__ import annotations

from collections.abc import Sequence

from kvready.advisor.ledger import Pair
from kvready.advisor.pipeline import Pipeline
from kvready.collectors.records import (
    AnyRecord,
    BatchFinished,
    BatchMember,
    BatchPlanned,
    BlocksRemoved,
    BlocksStored,
    EngineDescribed,
    FirstToken,
    Ingested,
    LoadDecided,
    LoadFinished,
    LoadStarted,
    Outcome,
    OverlapMode,
    RequestArrived,
    RequestFinished,
    RequestScheduled,
    Surface,
    TapEvent,
    TapState,
    TapStatus,
    Tier,
)

BLOCK_TOKENS = 32
WALL_OFFSET = 1_000_000.0

ENGINE = EngineDescribed(
    engine="vllm",
    engine_version="0.32.0",
    model="story",
    block_tokens=BLOCK_TOKENS,
    hbm_blocks=256,
    kv_bytes_per_token=131_072,
    layers=32,
    overlap=OverlapMode.BEFORE_ADMISSION,
    batch_token_limit=512,
    batch_request_limit=16,
    host_fragment_bytes=131_072,
    host_fragments_per_block=32,
    has_mover_times=True,
)


class Story:
    """Tells a pipeline what an engine did, a fact at a time."""

    def __init__(self, kv_tap: bool = True) -> None:
        self.pairs: list[Pair] = []
        self.pipeline = Pipeline(on_pair=self.pairs.append)
        self.told: list[Ingested] = []
        self._step = 0
        self._sequence = -1
        self.tell(0.0, ENGINE)
        if kv_tap:
            self.tell(0.0, TapStatus("e", 0, TapEvent.CONNECTED, TapState.LIVE), tap="e")

    def tell(self, seconds: float, record: AnyRecord, tap: str = "observer-scheduler-0") -> None:
        item = Ingested(len(self.told), seconds, tap, record)
        self.told.append(item)
        self.pipeline.ingest(item)

    def stored(
        self,
        seconds: float,
        hashes: Sequence[int],
        parent: int | None = None,
        tier: Tier = Tier.HBM,
    ) -> None:
        self._sequence += 1
        self.tell(
            seconds,
            BlocksStored(
                "e",
                0,
                self._sequence,
                WALL_OFFSET + seconds,
                tier,
                tuple(hashes),
                parent,
                BLOCK_TOKENS,
            ),
            tap="e",
        )

    def removed(self, seconds: float, hashes: Sequence[int], tier: Tier = Tier.HBM) -> None:
        self._sequence += 1
        self.tell(
            seconds,
            BlocksRemoved("e", 0, self._sequence, WALL_OFFSET + seconds, tier, tuple(hashes)),
            tap="e",
        )

    def arrives(self, seconds: float, name: str, hashes: Sequence[int], prompt: int = 0) -> None:
        tokens = prompt or len(hashes) * BLOCK_TOKENS + 8
        self.tell(
            seconds,
            RequestArrived(
                name, Surface.SCHEDULER, seconds, tokens, tuple(hashes), BLOCK_TOKENS, 16
            ),
        )

    def scheduled(self, seconds: float, name: str, hbm: int = 0, loaded: int = 0) -> None:
        self.tell(seconds, RequestScheduled(name, seconds, hbm, loaded))

    def loads(
        self, load_id: int, name: str, decided: float, blocks: int, ingested: float | None = None
    ) -> None:
        tokens = blocks * BLOCK_TOKENS
        order = LoadDecided(
            load_id,
            name,
            Tier.HOST,
            Tier.HBM,
            tokens,
            tokens * ENGINE.kv_bytes_per_token,
            blocks * ENGINE.host_fragments_per_block,
            decided,
        )
        self.tell(ingested or decided, order)
        if ingested is None:
            self.tell(
                decided, LoadStarted(load_id, Tier.HOST, Tier.HBM, decided), "observer-mover-0"
            )

    def loaded(self, load_id: int, started: float, ready: float) -> None:
        self.tell(
            ready, LoadFinished(load_id, Tier.HOST, Tier.HBM, started, ready), "observer-mover-0"
        )

    def batch(self, begin: float, end: float, *members: BatchMember) -> None:
        self.tell(begin, BatchPlanned(self._step, begin, WALL_OFFSET + begin, tuple(members)))
        self.tell(end, BatchFinished(self._step, end, end - begin, self._sequence))
        self._step += 1

    def first_token(self, seconds: float, name: str) -> None:
        self.tell(seconds, FirstToken(name, seconds))

    def finished(self, seconds: float, name: str, outcome: Outcome = Outcome.FINISHED) -> None:
        self.tell(seconds, RequestFinished(name, seconds, outcome))


def prefill(name: str, new: int, context: int = 0) -> BatchMember:
    return BatchMember(name, new, context, True)


def decode(name: str, context: int) -> BatchMember:
    return BatchMember(name, 1, context, False)
