"""Questions about readiness, answered from what the pipeline knows at one moment. Pure.

An answer depends on the records before it alone, so that a replay repeats it byte by byte.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from kvready.advisor.content_index import ContentIndex
from kvready.advisor.contract import Answer, Answers, Evidence, InTime, Question, Tokens
from kvready.advisor.decision import (
    ANYTHING,
    UNSAID,
    Decision,
    Reason,
    Tolerates,
    Verdict,
    decide,
)
from kvready.advisor.engine_estimates import EngineEstimates, ResourceEstimates
from kvready.advisor.engine_rank import EngineRank
from kvready.advisor.evidence import seen_of
from kvready.advisor.forecast_writer import Moment
from kvready.advisor.holding import Holding
from kvready.advisor.inventory import Inventory
from kvready.advisor.ledger import NOMINAL_COVERAGE
from kvready.advisor.lookahead import EXTRAPOLATED
from kvready.advisor.matching import LOWER_TIERS, Matcher
from kvready.advisor.questions import ContentKeys, asked_of
from kvready.advisor.ranges import NOTHING, Range
from kvready.advisor.requests import RequestState
from kvready.advisor.ways import WayName
from kvready.collectors.asked import AskedCandidate
from kvready.collectors.errors import ServiceError
from kvready.collectors.records import ReadinessAsked

MAX_REMEMBERED_SHAPES = 4_096  # answers of one moment, by where the parts are
# While requests are under way time changes what is foreseen; for so long it is not computed anew.
ESTIMATES_AGE_SECONDS = 0.02

FIRST_RANK = 0  # always there

Key = tuple[Holding, Tolerates, float | None]
Record = Callable[[ReadinessAsked], None]  # into its place in ingest order


class Readiness:
    """Answers for all ranks of one engine. Reads the pipeline's parts and changes none."""

    def __init__(self, inventory: Inventory, ranks: Mapping[int, EngineRank]) -> None:
        self.content = ContentIndex(inventory)
        self.latest: Answers | None = None
        self.asked = 0  # calls
        self._inventory = inventory
        self._ranks = ranks
        self._matcher = Matcher(inventory, self.content)
        self._desks: dict[int, _Desk] = {}
        self._desks_aside: dict[int, _Desk] = {}  # of questions that no recording holds

    def ask(self, question: Question, moment: Moment, record: Record | None = None) -> Answers:
        """The same in process. Raises `QuestionError`, or `ServiceError` if `record` fails.

        `record` is a recorder's `asked`: a replay then answers the question too. Without it the
        question is answered aside: nothing that a recording holds turns out otherwise for it.
        """
        keys = ContentKeys(not self.content.is_empty, self.block_tokens)
        asked = asked_of(question, keys)
        if record is None:
            return with_ids(self.answer(asked, moment), question)
        calls = self.asked
        record(asked)
        if self.latest is None or self.asked == calls:
            raise ServiceError("the question was not ingested here; pass what ingests it at once")
        return with_ids(self.latest, question)

    def block_tokens(self, rank: int) -> int:
        """Tokens of a block; 0 until the engine has told."""
        known = self._ranks.get(rank)
        if known is not None and known.engine is not None:
            return known.engine.block_tokens
        return self._inventory.block_tokens(rank)

    def take(self, asked: ReadinessAsked, moment: Moment) -> None:
        """Answer a question in its place in ingest order."""
        self.latest = self._answers(asked, moment, self._desks)

    def answer(self, asked: ReadinessAsked, moment: Moment) -> Answers:
        """One answer per candidate, in order, of a question that no recording holds."""
        return self._answers(asked, moment, self._desks_aside)

    def _answers(self, asked: ReadinessAsked, moment: Moment, desks: Desks) -> Answers:
        self.asked += 1
        known = self._ranks
        for rank in {one.rank if one.rank in known else FIRST_RANK for one in asked.candidates}:
            if rank not in desks or desks[rank].is_old(known[rank], moment):
                desks[rank] = _Desk(known[rank], moment)
        return Answers(
            tuple([self._answer(one, desks) for one in asked.candidates]), ingest=moment[0]
        )

    def _answer(self, asked: AskedCandidate, desks: Desks) -> Answer:
        rank = self._ranks.get(asked.rank)
        if rank is None:  # nothing was ever heard of it
            reason = Reason.UNKNOWN_REQUEST if asked.request_id else Reason.UNKNOWN_RESIDENCY
            return _unsaid(reason, desks[FIRST_RANK].estimates)
        desk = desks[rank.rank]
        holding = self._matcher.holding(asked, rank, desk.estimates)
        if isinstance(holding, Reason):
            return _unsaid(holding, desk.estimates)
        if asked.request_id:
            return desk.answer_of_request(asked, holding, rank.requests.live[asked.request_id])
        return desk.answer(asked, holding)


class _Desk:
    """One rank's estimates of one moment, with the answers already worked out from them."""

    def __init__(self, rank: EngineRank, moment: Moment) -> None:
        self.estimates = EngineEstimates(rank, moment)
        self._of_resources = ResourceEstimates(rank, moment)
        self._revision = rank.revision
        self._engine = rank.engine
        self._answers: dict[Key, Answer] = {}

    def is_old(self, rank: EngineRank, moment: Moment) -> bool:
        """Whether what was estimated may have changed."""
        if rank.revision != self._revision:
            return True
        waits = bool(rank.requests.live or rank.requests.copies)
        return waits and moment[1] - self.estimates.moment[1] > ESTIMATES_AGE_SECONDS

    def answer(self, asked: AskedCandidate, holding: Holding) -> Answer:
        """Worked out once for all candidates whose parts lie alike."""
        tolerates = _tolerates(asked)
        key = (holding, tolerates, asked.deadline_seconds)
        known = self._answers.get(key)
        if known is None:
            known = self._work_out(holding, tolerates, asked.deadline_seconds)
            if len(self._answers) >= MAX_REMEMBERED_SHAPES:
                self._answers.clear()
            self._answers[key] = known
        return known

    def answer_of_request(
        self, asked: AskedCandidate, holding: Holding, state: RequestState
    ) -> Answer:
        """A live request has a place in the queue of its own."""
        own = self.estimates.own_seconds(holding) if self.estimates.is_known else None
        queue = self.estimates.queue_of(state, own) if own is not None else None
        return self._work_out(
            holding, _tolerates(asked), asked.deadline_seconds, queue, asked.request_id
        )

    def _work_out(
        self,
        holding: Holding,
        tolerates: Tolerates,
        deadline_seconds: float | None,
        queue: Range | None = None,
        request_id: str = "",
    ) -> Answer:
        estimates = self.estimates if holding.recomputable else self._of_resources
        if not estimates.is_known and holding.recomputable and not holding.is_ready:
            verdict = UNSAID[Reason.UNKNOWN_ENGINE]
        else:
            verdict = decide(holding, estimates, tolerates, queue, request_id)
        ready = ready_seconds(verdict)
        supported = verdict.reason is not Reason.UNSUPPORTED
        return Answer(
            id="",
            decision=verdict.decision,
            reason=verdict.reason,
            ready_seconds=ready,
            in_time=_in_time(ready, deadline_seconds),
            tokens=_tokens(holding) if holding.recomputable and supported else None,
            degraded=holding.degraded,
            ways=verdict.ways,
            not_included=verdict.not_included,
            break_even=verdict.break_even,
            interference=verdict.interference,
            tolerated=verdict.tolerated,
            nominal_coverage=NOMINAL_COVERAGE,
            model_version=estimates.model_version
            + (EXTRAPOLATED if estimates.has_extrapolated else ""),
            calibration_id=estimates.calibration_id,
            evidence=seen_of(self._engine, estimates.evidence(holding)),
        )


Desks = dict[int, _Desk]  # by rank


def ready_seconds(verdict: Verdict) -> Range | None:
    """The range of the way that was decided on; the engine's own loads what it can."""
    if verdict.decision is Decision.USE:
        return NOTHING
    names = [str(verdict.decision)]
    if verdict.decision is Decision.ENGINES_WAY:
        names = [WayName.LOAD, WayName.RECOMPUTE]
    for name in names:
        for way in verdict.ways:
            if way.way == name:
                return way.ready_seconds
    return None


def with_ids(answers: Answers, question: Question) -> Answers:
    """The caller's own names on the answers; recordings do not hold them."""
    if not any(one.id for one in question.candidates):
        return answers
    named = tuple(
        msgspec.structs.replace(answer, id=one.id) if one.id else answer
        for answer, one in zip(answers.answers, question.candidates, strict=True)
    )
    return msgspec.structs.replace(answers, answers=named)


def _unsaid(reason: Reason, estimates: EngineEstimates) -> Answer:
    return Answer(
        id="",
        decision=Decision.NONE,
        reason=reason,
        ready_seconds=None,
        in_time=None,
        tokens=None,
        degraded=False,
        ways=(),
        not_included=(),
        break_even=None,
        interference=None,
        tolerated=None,
        nominal_coverage=NOMINAL_COVERAGE,
        model_version=estimates.model_version,
        calibration_id=estimates.calibration_id,
        evidence=Evidence.ASSUMED,
    )


def _tolerates(asked: AskedCandidate) -> Tolerates:
    if asked.sm_share is asked.prefill_slowdown is asked.decode_slowdown is None:
        return ANYTHING
    return Tolerates(asked.sm_share, asked.prefill_slowdown, asked.decode_slowdown)


def _in_time(ready: Range | None, deadline_seconds: float | None) -> InTime | None:
    if ready is None or deadline_seconds is None:
        return None
    if ready.high <= deadline_seconds:
        return InTime.YES
    return InTime.NO if ready.low > deadline_seconds else InTime.UNSURE


def _tokens(holding: Holding) -> Tokens:
    lower = {portion.tier: portion.tokens for portion in holding.portions}
    host, disk, remote = [lower.get(tier, 0) for tier in LOWER_TIERS]
    return Tokens(
        hbm=holding.hbm_tokens,
        host=host,
        disk=disk,
        remote=remote,
        in_flight=holding.in_flight_tokens,
        missing=holding.missing_tokens,
        unknown=holding.unknown_tokens,
    )
