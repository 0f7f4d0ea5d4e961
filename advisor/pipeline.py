"""Records in, forecasts and pairs out: the one place where the parts are wired, in data order.

Pure and single-threaded. Everything follows from ingest order, so a replay at any speed repeats
every forecast and every pair.
"""

from __future__ import annotations

from collections.abc import Callable

from kvready.advisor.asking import Readiness
from kvready.advisor.canary_watch import CanaryWatch
from kvready.advisor.compute import GENERIC_PRIOR, ComputePrior
from kvready.advisor.contract import Evidence
from kvready.advisor.control import ControlPlane
from kvready.advisor.copy_model import CopyCalibration
from kvready.advisor.engine_rank import EngineRank, Shared
from kvready.advisor.evidence import is_simulated
from kvready.advisor.forecast_writer import Moment, OnForecast
from kvready.advisor.gatekeeper import Gatekeeper
from kvready.advisor.interference import BatchKind, Slowdown
from kvready.advisor.inventory import Knowledge
from kvready.advisor.ledger import Pair
from kvready.advisor.load_priors import NO_PROFILE, LoadPriors
from kvready.advisor.modes import Transition
from kvready.advisor.outside import (
    OBSERVER,
    SCHEDULER_STREAM,
    Outside,
    is_event_tap,
    leans_on,
)
from kvready.advisor.plausible import is_plausible
from kvready.advisor.verdicts import GateReport
from kvready.advisor.window_tracker import Key
from kvready.advisor.windows import WindowSummary
from kvready.collectors.records import (
    BlocksRemoved,
    BlocksStored,
    CopyMethod,
    CountersScraped,
    EngineDescribed,
    Ingested,
    KeepingChanged,
    KillSwitched,
    Observed,
    PoliciesRestored,
    PolicyCommanded,
    PromptTokensReported,
    ReadinessAsked,
    RequestArrived,
    RequestReported,
    TapEvent,
    TapState,
    TapStatus,
    Tick,
    Tier,
    TierCleared,
)
from kvready.collectors.service_targets import NO_TARGETS, ServiceTargets

MAX_NAMED_TAPS = 256
MAX_RANKS = 64  # as many as endpoints are read


class Pipeline:
    """Feed it a recording or a live engine; read its parts at any moment between two records."""

    def __init__(
        self,
        on_pair: Callable[[Pair], None] | None = None,
        priors: LoadPriors = NO_PROFILE,
        on_forecast: OnForecast | None = None,
        compute_prior: ComputePrior = GENERIC_PRIOR,
        on_transition: Callable[[Transition], None] | None = None,
        on_report: Callable[[GateReport], None] | None = None,
        targets: ServiceTargets = NO_TARGETS,
    ) -> None:
        """`priors`: what a link profile says of copies, before the engine has made any;
        `compute_prior`: what is believed of batches until then.

        `targets`: what requests are held to that bring none of their own.
        `on_forecast` hears of each forecast as it is written, before the next record;
        `on_transition` of each move of a policy, `on_report` of each gate report.
        """
        self._on_transition = on_transition
        self.control = ControlPlane(self._moved, on_report)
        self.canaries = CanaryWatch(lambda: self.control.states, self._window)
        self.gates = Gatekeeper(self.canaries)
        self._on_pair = on_pair or _ignore
        self._shared = Shared(
            self._settled, priors, on_forecast, compute_prior, self.canaries.tracker, targets
        )
        self.priors = priors
        self.compute_prior = compute_prior
        self.inventory = self._shared.inventory
        self.ledger = self._shared.ledger
        self.totals = self._shared.totals
        self.traffic = self._shared.traffic
        self.shadow = self._shared.shadow
        self.service = self._shared.service
        self.copies = self._shared.copies
        self.lengths = self._shared.lengths
        self.gateway = self._shared.gateway
        self.outside = Outside(self.inventory, self.totals, self.service)
        self.ranks: dict[int, EngineRank] = {0: EngineRank(0, self._shared)}
        self.readiness = Readiness(self.inventory, self.ranks)
        self.moment: Moment = (0, 0.0)  # of the last record
        self.shed_records = 0  # of ranks beyond the bound
        self.refused_records = 0  # with figures that no engine can have meant
        self.last_ingest = 0
        self.tap_states: dict[str, TapState] = {}  # by stream, as its last status said
        self._tap_ranks: dict[str, int] = {}

    def ingest(self, item: Ingested) -> None:
        """Take the next record. Ingest numbers must rise."""
        self.last_ingest = item.ingest
        if not is_plausible(item.record):
            self.refused_records += 1
            return
        self.ledger.expire(item.received_seconds)
        self.moment = moment = (item.ingest, item.received_seconds)
        self.gates.before(item)
        self._take(item, moment)
        self.gates.after(item, self)

    def _take(self, item: Ingested, moment: Moment) -> None:
        match item.record:
            case Observed() as seen if self.gateway.take(seen):
                pass
            case Observed() as seen:
                rank = self._rank(seen.rank)
                if rank is not None:
                    rank.forecaster.writer.leans_on_degraded = self.rank_degraded(seen.rank)
                    rank.take(seen, moment)
                if isinstance(seen, RequestArrived):
                    self.outside.backcaster.observe(seen.request_id)
            case BlocksStored() | BlocksRemoved() | TierCleared() as blocks:
                self.inventory.apply(blocks)
                self.outside.blocks(blocks)
                observed = self.ranks.get(blocks.rank)
                if observed is not None:
                    observed.shadow.blocks(blocks)
                if isinstance(blocks, BlocksStored):
                    if observed is not None:
                        observed.hits.store(blocks)
                    if blocks.content_keys:
                        self.readiness.content.stored(blocks)
            case TapStatus() as status:
                self._tap_status(status, moment)
            case Tick() as tick:
                for rank in self.ranks.values():
                    rank.tick(moment, self._hears(rank.rank))
                self.outside.tick(tick, item.received_seconds)
                self.canaries.tracker.tick(item.received_seconds)
            case RequestReported() as report:
                self.outside.report(report, item.received_seconds)
            case PromptTokensReported() as step:
                self.outside.step(step)
            case CountersScraped() as scrape:
                self.outside.scrape(scrape)
            case ReadinessAsked() as asked:
                self.readiness.take(asked, moment)
            case PolicyCommanded() | KillSwitched() | KeepingChanged() | PoliciesRestored() as said:
                if isinstance(said, PoliciesRestored):
                    self.canaries.arms.restored(said)
                self.control.take(said, moment)

    @property
    def engine(self) -> EngineDescribed | None:
        """What the engine is, as the first rank that said so described itself."""
        return next((rank.engine for rank in self.ranks.values() if rank.engine), None)

    @property
    def evidence(self) -> Evidence:
        """What kind of facts these are: one surface that is simulated makes all of them so."""
        if is_simulated(None, self.outside.counters) or any(
            is_simulated(rank.engine) for rank in self.ranks.values()
        ):
            return Evidence.SIMULATED
        return Evidence.MEASURED

    @property
    def calibrations(self) -> list[CopyCalibration]:
        """Each mover beside its prior; of several ranks, the one that is furthest from it."""
        worst: dict[tuple[Tier, Tier, CopyMethod | None], CopyCalibration] = {}
        for rank in self.ranks.values():
            for one in rank.forecaster.mover.calibrations():
                path = one.source, one.destination, one.method
                if path not in worst or one.distance > worst[path].distance:
                    worst[path] = one
        return list(worst.values())

    @property
    def slowdowns(self) -> list[Slowdown]:
        """What loads cost batches beside them, by kind; of several ranks, where they cost most."""
        worst: dict[BatchKind, Slowdown] = {}
        for rank in self.ranks.values():
            for one in rank.forecaster.interference.slowdowns:
                if one.kind not in worst or one.factor > worst[one.kind].factor:
                    worst[one.kind] = one
        return list(worst.values())

    @property
    def degraded(self) -> bool:
        """Whether something is missing from what the taps delivered."""
        return self.inventory.degraded or any(
            state is not TapState.LIVE for tap, state in self.tap_states.items() if leans_on(tap)
        )

    def rank_degraded(self, rank: int) -> bool:
        """Whether something is missing from what the taps of one rank delivered."""
        if self.inventory.state(rank=rank) is not Knowledge.LIVE:
            return True
        return any(
            state is not TapState.LIVE
            and leans_on(tap)
            and self._tap_ranks[tap] == rank
            and not self.inventory.knows(tap)  # by its blocks' rank: asked above
            for tap, state in self.tap_states.items()
        )

    def _hears(self, rank: int) -> bool:
        """Whether a rank's observer, where there is one, is whole."""
        return all(
            state is TapState.LIVE
            for tap, state in self.tap_states.items()
            if SCHEDULER_STREAM in tap and self._tap_ranks[tap] == rank
        )

    def _settled(self, pair: Pair) -> None:
        self.gates.settle(pair)
        self._on_pair(pair)

    def _rank(self, rank: int) -> EngineRank | None:
        found = self.ranks.get(rank)
        if found is None:
            if len(self.ranks) >= MAX_RANKS:
                self.shed_records += 1
                return None
            found = self.ranks[rank] = EngineRank(rank, self._shared)
        return found

    def _moved(self, transition: Transition) -> None:
        self.canaries.moved(transition)
        if self._on_transition is not None:
            self._on_transition(transition)

    def _window(self, key: Key, window: WindowSummary) -> None:
        self.gates.window(key, window, self.control, self.moment)

    def _tap_status(self, status: TapStatus, moment: Moment) -> None:
        self.outside.tap_status(status)
        if is_event_tap(status.tap):
            self.inventory.apply(status)
            for each in self.ranks.values():
                each.shadow.renew_all()
        if status.tap in self.tap_states or len(self.tap_states) < MAX_NAMED_TAPS:
            self.tap_states[status.tap] = status.state
            self._tap_ranks[status.tap] = status.rank
        if status.event is TapEvent.DROPPED and status.tap == OBSERVER:
            self.canaries.tracker.disturbed("records lost")
            for each in self.ranks.values():  # our own queue was full: of whose records, who knows
                each.requests.suspect_all()
                each.shadow.lost()
        # Only the scheduler's own stream speaks of requests. The others notice a restart on their
        # own time, when the new engine's first requests may be here already.
        if SCHEDULER_STREAM not in status.tap:
            return
        rank = self._rank(status.rank)
        if rank is None:
            return
        if status.event is TapEvent.EPOCH:
            self.canaries.tracker.disturbed("engine restarted")
            rank.restart(moment)
        elif status.event in (TapEvent.GAP, TapEvent.DROPPED):
            self.canaries.tracker.disturbed("records lost")
            rank.requests.suspect_all()
            rank.shadow.lost()


def _ignore(pair: Pair) -> None:
    """Nobody listens for pairs."""
