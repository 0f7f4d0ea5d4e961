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

MAX_BODY_BYTES = 8 << 20
ANSWER_SECONDS = 2.0


class ReadinessDesk:
    """Answers from the ingest thread's state, and has the question recorded there."""

    def __init__(self, sidecar: Sidecar) -> None:
        self._sidecar = sidecar
        self._decoder = msgspec.json.Decoder(Question)
        self._encoder = msgspec.json.Encoder()

    async def answer(self, body: bytes) -> bytes:
        """Raises `QuestionError`, `ServiceError`, or `TimeoutError` when too busy."""
        question = self._decoded(body)
        future = self._sidecar.submit(lambda: self._answers(question))
        answers = await asyncio.wait_for(asyncio.wrap_future(future), ANSWER_SECONDS)
        return self._encoder.encode(answers)

    def _decoded(self, body: bytes) -> Question:
        try:
            return self._decoder.decode(body)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise QuestionError(
                QuestionFault.MALFORMED,
                f"this is no question as docs/readiness.schema.json describes it: {error}",
            ) from None

    def _answers(self, question: Question) -> Answers:
        """In the ingest thread."""
        sidecar = self._sidecar
        readiness = sidecar.pipeline.readiness
        keys_on = sidecar.settings.taps.content_keys or not readiness.content.is_empty
        asked = asked_of(question, ContentKeys(keys_on, readiness.block_tokens))
        if sidecar.replayed:  # its clock stands still, and nothing is recorded
            return with_ids(readiness.answer(asked, sidecar.pipeline.moment), question)
        sidecar.recorder.asked(asked, time.monotonic())
        assert readiness.latest is not None
        return with_ids(readiness.latest, question)
