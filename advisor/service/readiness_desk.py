"""A question in, an answer out, both as JSON: what HTTP and the socket have in common."""

from __future__ import annotations

import asyncio
import time

import msgspec

from kvready.advisor.asking import with_ids
from kvready.advisor.contract import Answers, Question
from kvready.advisor.questions import ContentKeys, asked_of
from kvready.advisor.service.sidecar import Sidecar
from kvready.collectors.errors import QuestionError, QuestionFault
from kvready.collectors.records import ReadinessAsked

MAX_BODY_BYTES = 8 << 20
ANSWER_SECONDS = 2.0


class ReadinessDesk:
    """Answers from the ingest thread's state, and has the question recorded there."""

    def __init__(self, sidecar: Sidecar) -> None:
        self._sidecar = sidecar
        self._decoder = msgspec.json.Decoder(Question)
        self._encoder = msgspec.json.Encoder()

    async def answer(self, body: bytes, trace: tuple[str, str] = ("", "")) -> bytes:
        """Raises `QuestionError`, `ServiceError`, or `TimeoutError` when too busy.

        `trace`: the caller's traceparent and tracestate.
        """
        telemetry = self._sidecar.telemetry
        is_told = telemetry is not None and telemetry.wants_answer(trace[0])
        began_nanoseconds = time.time_ns() if is_told else 0
        question = self._decoded(body)
        asked = await self._asked(question)
        future = self._sidecar.submit(lambda: self._answers(asked, question))
        answers = await asyncio.wait_for(asyncio.wrap_future(future), ANSWER_SECONDS)
        if telemetry is not None and is_told:
            times = began_nanoseconds, time.time_ns()
            telemetry.answered(question, answers, self._sidecar.pipeline.engine, times, trace)
        return self._encoder.encode(answers)

    def _decoded(self, body: bytes) -> Question:
        try:
            return self._decoder.decode(body)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise QuestionError(
                QuestionFault.MALFORMED,
                f"this is no question as docs/readiness.schema.json describes it: {error}",
            ) from None

    async def _asked(self, question: Question) -> ReadinessAsked:
        """Tokens are hashed in a thread of their own: up to a quarter of a second's work."""
        readiness = self._sidecar.pipeline.readiness
        keys_on = self._sidecar.settings.taps.content_keys or not readiness.content.is_empty
        keys = ContentKeys(keys_on, readiness.block_tokens)  # numbers that hardly ever change
        if any(one.token_ids for one in question.candidates):
            return await asyncio.to_thread(asked_of, question, keys)
        return asked_of(question, keys)

    def _answers(self, asked: ReadinessAsked, question: Question) -> Answers:
        """In the ingest thread."""
        sidecar = self._sidecar
        readiness = sidecar.pipeline.readiness
        if sidecar.replayed:  # its clock stands still, and nothing is recorded
            return with_ids(readiness.answer(asked, sidecar.pipeline.moment), question)
        sidecar.recorder.asked(asked, time.monotonic())
        assert readiness.latest is not None
        return with_ids(readiness.latest, question)
