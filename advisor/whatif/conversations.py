"""Conversations: each round's prompt is all said before and some new tokens."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from msgspec.structs import replace

from kvready.advisor.whatif.chains import Allowance
from kvready.advisor.whatif.drawn import context_tokens, output_tokens, scaled
from kvready.advisor.whatif.lengths import geometric, with_total
from kvready.advisor.whatif.questions import Initial, Questions
from kvready.advisor.whatif.shapes import Shape
from kvready.advisor.whatif.workload import SimRequest


def conversations(
    shape: Shape, asked: Questions, lengths: Random, arrivals: Random
) -> tuple[list[SimRequest], tuple[int, ...]]:
    """The rounds of all, and the blocks of their documents where the host tier holds them."""
    rounds = list(_rounds(shape, asked, lengths))
    outputs = output_tokens(shape, lengths)
    turns = [
        [(lengths.randint(*asked.new_tokens), next(outputs)) for _ in range(count)]
        for count in rounds
    ]
    contexts = [0] * len(turns)
    if shape.contexts:
        room = shape.mean_prompt_tokens * sum(rounds) - sum(map(_history, turns))
        contexts = context_tokens(shape, rounds, room, lengths)
    starts_per_second = asked.queries_per_second * len(turns) / sum(rounds)
    think = shape.think_seconds if asked.think_seconds is None else asked.think_seconds
    started, fresh = 0.0, 0
    warm: list[int] = []
    requests: list[SimRequest] = []
    allowance = Allowance()
    for number, (context, turn) in enumerate(zip(contexts, turns, strict=True)):
        started += arrivals.expovariate(starts_per_second)
        blocks = range(fresh, fresh + (context + sum(map(sum, turn))) // asked.block_tokens)
        fresh = blocks.stop
        if asked.initial is Initial.HOST_FILLED:
            warm += blocks[: context // asked.block_tokens]
        name = f"conversation-{number}"
        made = _conversation(name, context, turn, blocks, asked.block_tokens)
        for index, request in enumerate(made):
            allowance.take(len(request.blocks))
            requests.append(
                replace(
                    request,
                    # A later round's is where it would be if answers took no time.
                    arrived_seconds=started + index * think,
                    think_seconds=think if index else 0.0,
                )
            )
    return requests, tuple(warm)


def _conversation(
    name: str, context: int, turn: list[tuple[int, int]], blocks: range, size: int
) -> Iterator[SimRequest]:
    """Its rounds, all at 0 s. `blocks` are all that it will come to, of `size` tokens each."""
    said = context
    for index, (new, output) in enumerate(turn):
        prompt = said + new
        said = prompt + output
        yield SimRequest(
            request_id=f"{name}-round-{index}",
            arrived_seconds=0.0,
            prompt_tokens=prompt,
            output_tokens=output,
            blocks=tuple(blocks[: prompt // size]),
            output_blocks=tuple(blocks[prompt // size : said // size]),
            after=f"{name}-round-{index - 1}" if index else "",
        )


def _rounds(shape: Shape, asked: Questions, draw: Random) -> Iterator[int]:
    """Rounds of each conversation, the published number of queries in all."""
    queries = asked.queries or shape.queries
    if shape.contexts:
        contexts = asked.contexts or scaled(shape.contexts, queries / shape.queries)
        yield from with_total([1.0] * contexts, queries)
        return
    # Geometric rounds of mean m see m - 1 rounds before them on average: what the published mean
    # prompt leaves for history fixes m.
    mean_new = sum(asked.new_tokens) / 2
    per_round = mean_new + shape.mean_output_tokens
    mean = 1 + max(shape.mean_prompt_tokens - mean_new, 0) / per_round
    while queries:
        rounds = min(geometric(draw, mean), queries)
        queries -= rounds
        yield rounds


def _history(turn: list[tuple[int, int]]) -> int:
    """Prompt tokens of all rounds of a conversation that are not its document."""
    said, total = 0, 0
    for new, output in turn:
        total += said + new
        said += new + output
    return total
