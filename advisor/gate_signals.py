"""Everything that gates weigh, gathered as it happens: pairs, losses, minutes, compared copies.

Bounded and pure, in ingest order.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from typing import TYPE_CHECKING

from kvready.advisor.bad_cells import BadCells
from kvready.advisor.cell_evidence import BY_MOVER, CellScores
from kvready.advisor.constraint import Constraints, Minute, covered_seconds
from kvready.advisor.demotion import Burn, burns, objective
from kvready.advisor.gate_evidence import CopyChecks
from kvready.advisor.gate_sources import Deliveries
from kvready.advisor.ledger import Pair, PairState, Target, is_bad
from kvready.advisor.minute_sums import MINUTE_SECONDS, MinuteSums, ShadowDays
from kvready.advisor.shared_work import SharedWork
from kvready.advisor.totals import Totals
from kvready.collectors.records import CopyMethod, LoadFinished

if TYPE_CHECKING:
    from kvready.advisor.pipeline import Pipeline
    from kvready.collectors.records import AnyRecord

MAX_COMPARED = 1_024  # copies whose comparison is remembered


class Signals:
    """What one engine's policies are judged by."""

    def __init__(self) -> None:
        self.scores = CellScores()
        self.bad_cells = BadCells()
        self.constraints = Constraints()
        self.deliveries = Deliveries()
        self.sums = {target: MinuteSums() for target in Target}
        self.shadow_days = ShadowDays()
        self.shared = SharedWork()
        self.now_seconds = 0.0  # event time; never goes back
        self._compared: deque[tuple[float, bool]] = deque(maxlen=MAX_COMPARED)
        self._method: CopyMethod | None = None  # of the copy whose end is at hand
        self._minute_seconds: float | None = None  # when it began
        self._exposed_seconds = 0.0  # by then
        self._batch_seconds: defaultdict[int, float] = defaultdict(float)  # since, by rank

    def before(self, record: AnyRecord, now_seconds: float) -> None:
        """A record is about to be taken: pairs that it settles are of this moment."""
        self.now_seconds = max(self.now_seconds, now_seconds)
        self._method = record.method if isinstance(record, LoadFinished) else None

    def settle(self, pair: Pair, is_shadow: bool) -> None:
        """A forecast has its outcome, or will have none. `is_shadow`: nothing acts."""
        now, forecast = self.now_seconds, pair.forecast
        method = self._method if forecast.target in BY_MOVER else None
        cell = self.scores.take(pair, method, now)
        if cell is None:
            return
        self.bad_cells.take(pair, cell, now)
        # What was aborted past its bound is taken for bad: how late it would have been is unknown.
        bad = pair.state is PairState.CENSORED or bool(pair.bad)
        self.sums[forecast.target].add(now, bad)
        if is_shadow and forecast.target is Target.TTFT:
            self.shadow_days.add(now, bad)

    def compared(self, is_mismatched: bool) -> None:
        """A gathered copy was held against its pages."""
        self._compared.append((self.now_seconds, is_mismatched))

    def batch(self, rank: int, duration_seconds: float) -> None:
        """A batch ended."""
        self._batch_seconds[rank] += duration_seconds

    def tick(self, pipeline: Pipeline, is_stalled: bool) -> bool:
        """Let time pass; whether a minute ended."""
        now = self.now_seconds
        self.bad_cells.tick(now)
        if is_stalled:
            for sums in self.sums.values():
                sums.stalled(now)
        if self._minute_seconds is None:
            self._begin_minute(pipeline)
            return False
        if now - self._minute_seconds < MINUTE_SECONDS:
            return False
        self.constraints.add(self._minute(pipeline, self._minute_seconds))
        self.shared.minute(pipeline.totals)
        self.deliveries.minute()
        self._begin_minute(pipeline)
        return True

    def copies_since(self, seconds: float) -> CopyChecks:
        """Compared from a moment on."""
        found = [is_mismatched for at, is_mismatched in self._compared if at > seconds]
        return CopyChecks(len(found), sum(found))

    @property
    def objective(self) -> float:
        """The share of forecasts that must be good."""
        return objective(self.shadow_days.sums)

    def burns(self, pipeline: Pipeline) -> list[Burn]:
        """How fast each target's predictions use up what may be bad of them."""
        late: Counter[Target] = Counter()
        for forecast in pipeline.ledger.missed_and_open():
            age_seconds = max(0.0, self.now_seconds - forecast.starts_seconds)
            late[forecast.target] += is_bad(forecast.p50_seconds, age_seconds)
        return burns(self.sums, late, self.objective, self.now_seconds)

    def forget(self, totals: Totals) -> None:
        """Another engine runs now: nothing of what was learned speaks of it."""
        self.shared.forget(totals)
        self.scores.forget()
        self.bad_cells.forget()
        self.constraints.forget()
        self._compared.clear()
        self.sums = {target: MinuteSums() for target in Target}
        self.shadow_days = ShadowDays()

    def _begin_minute(self, pipeline: Pipeline) -> None:
        self._minute_seconds = self.now_seconds
        self._exposed_seconds = pipeline.totals.exposed_load_seconds
        self._batch_seconds.clear()

    def _minute(self, pipeline: Pipeline, began_seconds: float) -> Minute:
        """The minute that ends now. A batch counts where it ended; the busiest rank tells."""
        now = self.now_seconds
        length = now - began_seconds
        copied = 0.0
        for rank in pipeline.ranks.values():
            open_copies = rank.requests.copies.values()
            spans = rank.forecaster.mover.spans_into_hbm(open_copies, began_seconds, now) or ()
            inside = ((max(begin, began_seconds), min(end, now)) for begin, end in spans)
            copied = max(copied, covered_seconds(span for span in inside if span[0] < span[1]))
        busiest = max(self._batch_seconds.values(), default=0.0)
        return Minute(
            copy_share=copied / length,
            exposed_seconds=pipeline.totals.exposed_load_seconds - self._exposed_seconds,
            batch_share=min(1.0, busiest / length),
        )
