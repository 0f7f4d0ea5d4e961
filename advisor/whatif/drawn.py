"""Lengths and counts of a shape, drawn."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator
from random import Random

from kvready.advisor.whatif.lengths import geometric, length_models, with_total
from kvready.advisor.whatif.questions import Questions
from kvready.advisor.whatif.shapes import WORDS_TO_TOKENS, Shape

ASSUMED_SPREAD = 0.3  # standard deviation over mean, of contexts without public lengths
SCALINGS = 8


def question_counts(shape: Shape, asked: Questions, draw: Random) -> list[int]:
    """How often each document is asked; the published number of queries, or that asked for."""
    queries = asked.queries or shape.queries
    contexts = asked.contexts or scaled(shape.contexts, queries / shape.queries)
    model = length_models().get(shape.questions_model)
    weights = [1.0 if model is None else model.relative(draw) for _ in range(contexts)]
    return with_total(weights, queries)


def context_tokens(shape: Shape, times: list[int], total_tokens: float, draw: Random) -> list[int]:
    """Lengths of documents that, each as often as it is asked, add up to about `total_tokens`."""
    models = [length_models()[name] for name in shape.context_models]
    longest = shape.longest_context_tokens or math.inf
    drawn: list[float] = []
    while len(drawn) < len(times):
        if not models:
            drawn.append(max(draw.gauss(1, ASSUMED_SPREAD), ASSUMED_SPREAD))
            continue
        model = draw.choice(models)
        relative = model.relative(draw)
        if relative * model.mean * WORDS_TO_TOKENS <= longest:
            drawn.append(relative)
    for _ in range(SCALINGS):  # what the limit cuts off the longest, the others make up for
        scale = total_tokens / sum(map(operator.mul, drawn, times))
        drawn = [min(length * scale, longest) for length in drawn]
    return [max(round(length), 1) for length in drawn]


def output_tokens(shape: Shape, draw: Random) -> Iterator[int]:
    """One answer's length after the other, without end."""
    model = length_models().get(shape.output_model)
    while True:
        if model is None:
            yield geometric(draw, shape.mean_output_tokens)
        else:
            yield max(round(model.relative(draw) * shape.mean_output_tokens), 1)


def scaled(count: int, share: float) -> int:
    """The same share of a count, of at most all and at least one."""
    return max(round(count * min(share, 1.0)), 1)
