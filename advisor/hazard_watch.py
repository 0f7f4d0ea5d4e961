"""What makes policies step back at once, before any gate is asked: told by records alone. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kvready.advisor.engine_hazards import Surface, hazards_of
from kvready.advisor.policies import Hazard, Policy
from kvready.collectors.counter_hazards import parse_version
from kvready.collectors.records import EngineDescribed, LoadChecked, TapEvent, TapStatus

if TYPE_CHECKING:
    from kvready.advisor.engine_rank import EngineRank
    from kvready.advisor.pipeline import Pipeline

LOST_SECONDS = 10.0  # that telemetry may be incomplete before nothing acts on it
STALL_SECONDS = 30.0  # without a batch while requests live
STALL_STEPS = 8.0  # or so many usual steps, where those are longer
# Which policies make a known hazard of an engine worse: holds count towards what admission defers.
MADE_WORSE = {"admission-stall": (Policy.DEDUP, Policy.BALANCE)}


class Danger(NamedTuple):
    """A hazard, for one policy or for all."""

    hazard: Hazard
    policy: Policy | None = None
    note: str = ""


class HazardWatch:
    """Fed with every record, in order, after the pipeline took it."""

    def __init__(self) -> None:
        self.is_stalled = False
        self.version = ""  # of the engine, as it last described itself
        self._lost_since: float | None = None
        self._batch_seconds: dict[int, float] = {}  # by rank: when one was last heard of

    def checked(self, record: LoadChecked) -> list[Danger]:
        """A gathered copy was compared."""
        if not record.mismatched:
            return []
        note = f"load {record.load_id} of rank {record.rank} had other bytes than its pages"
        return [Danger(Hazard.MISMATCH, Policy.GPU_COPY, note)]

    def described(self, engine: EngineDescribed) -> list[Danger]:
        """The engine said what it is."""
        version = f"{engine.engine} {engine.engine_version}"
        before, self.version = self.version, version
        if before == version:
            return []
        found = [Danger(Hazard.ENGINE_UPGRADED, None, f"{before} is now {version}")]
        return (found if before else []) + _known(engine)

    def news(self, status: TapStatus, is_scheduler: bool) -> list[Danger]:
        """A tap told of itself."""
        if status.event is not TapEvent.EPOCH or not is_scheduler:
            return []
        self._batch_seconds.pop(status.rank, None)
        return [Danger(Hazard.ENGINE_RESTARTED, None, f"rank {status.rank} began anew")]

    def batch(self, rank: int, now_seconds: float) -> None:
        """A rank planned or finished a batch."""
        self._batch_seconds[rank] = now_seconds

    def tick(self, pipeline: Pipeline, now_seconds: float) -> list[Danger]:
        """Let time pass: silence and stalls show."""
        is_whole = not pipeline.degraded
        if is_whole:
            self._lost_since = None
        elif self._lost_since is None:
            self._lost_since = now_seconds
        found = []
        lost_since = self._lost_since
        if lost_since is not None and now_seconds - lost_since >= LOST_SECONDS:
            found.append(Danger(Hazard.TELEMETRY_LOST, None, "taps are not whole"))
        stalled = [rank.rank for rank in pipeline.ranks.values() if self._stalls(rank, now_seconds)]
        self.is_stalled = is_whole and bool(stalled)
        if self.is_stalled:
            found.append(Danger(Hazard.STALL, None, f"rank {stalled[0]} runs no batch"))
        return found

    def _stalls(self, rank: EngineRank, now_seconds: float) -> bool:
        oldest = next(iter(rank.requests.live.values()), None)
        heard_seconds = self._batch_seconds.get(rank.rank)
        if oldest is None or heard_seconds is None:
            return False
        patience = max(STALL_SECONDS, STALL_STEPS * rank.steps.median_step_seconds)
        waits_since = max(heard_seconds, oldest.arrived.arrived_seconds)
        return now_seconds - waits_since > patience


def _known(engine: EngineDescribed) -> list[Danger]:
    """What is known to go wrong in this version, where a policy would make it worse."""
    if engine.engine != "vllm":
        return []
    surfaces = {Surface.OFFLOAD} if engine.host_bytes else set()
    return [
        Danger(Hazard.KNOWN_HAZARD, policy, f"{hazard.id}: {hazard.what}")
        for hazard in hazards_of(parse_version(engine.engine_version), frozenset(surfaces))
        if hazard.is_finding
        for policy in MADE_WORSE.get(hazard.id, ())
    ]
