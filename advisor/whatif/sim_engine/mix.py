"""The default traffic of a simulated engine: questions to documents, and conversations.

Made up, not published: short enough that a minute shows a hundred requests, with more documents
than HBM holds, so that prefixes are found in HBM, found in host memory, and missed.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

from kvready.advisor.whatif.workload import SimRequest, Workload

NAME = "mix"
BLOCK_TOKENS = 32
DOCUMENTS = 48
DOCUMENT_TOKENS = (1_024, 8_192)  # log-uniform
POPULARITY = 0.8  # document n is asked n ** -POPULARITY as often as the first
QUESTION_TOKENS = (16, 256)
ANSWER_TOKENS = 12  # on average, geometric
CONVERSATION_SHARE = 0.3  # of requests
ROUNDS = 5
ROUND_TOKENS = (128, 768)
REPLY_TOKENS = 32
THINK_SECONDS = 4.0  # on average, exponential
LONGEST_OUTPUT = 8  # times the average


class _Blocks:
    """Fresh ids of blocks; each stands for a prefix that nobody has asked for yet."""

    def __init__(self) -> None:
        self._next = 1

    def chain(self, tokens: int) -> tuple[int, ...]:
        """So many whole blocks."""
        first, self._next = self._next, self._next + tokens // BLOCK_TOKENS
        return tuple(range(first, self._next))


def mix(requests_per_second: float, requests: int, seed: int) -> Workload:
    """Poisson arrivals; a conversation's next round comes after its reply and some thought."""
    draws, blocks = random.Random(f"{NAME} {seed}"), _Blocks()
    made: list[SimRequest] = []
    documents = [blocks.chain(_log_uniform(draws, *DOCUMENT_TOKENS)) for _ in range(DOCUMENTS)]
    weights = [(number + 1) ** -POPULARITY for number in range(DOCUMENTS)]
    # What arrives by itself: questions, and the first rounds of conversations.
    own_share = 1.0 - CONVERSATION_SHARE + CONVERSATION_SHARE / ROUNDS
    now = 0.0
    while len(made) < requests:
        now += draws.expovariate(requests_per_second * own_share)
        name = f"sim-{len(made)}"
        if draws.random() * own_share < CONVERSATION_SHARE / ROUNDS:
            made += _conversation(draws, blocks, name, now)
        else:
            made.append(_question(draws, draws.choices(documents, weights)[0], name, now))
    return Workload(
        name=NAME,
        source=f"generated, seed {seed}: no published shape",
        block_tokens=BLOCK_TOKENS,
        requests=tuple(sorted(made[:requests], key=lambda request: request.arrived_seconds)),
        notes=("lengths, popularity and times to think are made up",),
    )


def _question(draws: random.Random, document: tuple[int, ...], name: str, now: float) -> SimRequest:
    return SimRequest(
        request_id=name,
        arrived_seconds=now,
        prompt_tokens=len(document) * BLOCK_TOKENS + draws.randint(*QUESTION_TOKENS),
        output_tokens=_output(draws, ANSWER_TOKENS),
        blocks=document,
        request_class="document",
    )


def _conversation(
    draws: random.Random, blocks: _Blocks, name: str, now: float
) -> Iterator[SimRequest]:
    tokens, before = 0, ""
    held: tuple[int, ...] = ()
    for number in range(ROUNDS):
        tokens += draws.randint(*ROUND_TOKENS)
        output = _output(draws, REPLY_TOKENS)
        new = blocks.chain(tokens - len(held) * BLOCK_TOKENS)
        asked = (*held, *new)
        tokens += output
        said = blocks.chain(tokens - len(asked) * BLOCK_TOKENS)
        round_name = f"{name}-{number}"
        yield SimRequest(
            request_id=round_name,
            arrived_seconds=now,
            prompt_tokens=tokens - output,
            output_tokens=output,
            blocks=asked,
            output_blocks=said,
            after=before,
            think_seconds=draws.expovariate(1.0 / THINK_SECONDS) if before else 0.0,
            request_class="conversation",
        )
        held, before = (*asked, *said), round_name


def _output(draws: random.Random, mean: int) -> int:
    drawn = 1 + int(draws.expovariate(1.0 / (mean - 0.5)))
    return min(drawn, mean * LONGEST_OUTPUT)


def _log_uniform(draws: random.Random, low: int, high: int) -> int:
    return round(math.exp(draws.uniform(math.log(low), math.log(high))))
