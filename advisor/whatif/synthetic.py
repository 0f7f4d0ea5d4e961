"""Seeded workloads in the shape of published data sets: documents asked many questions."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain, zip_longest
from random import Random

from kvready.advisor.whatif.chains import Allowance
from kvready.advisor.whatif.conversations import conversations
from kvready.advisor.whatif.drawn import (
    ASSUMED_SPREAD,
    context_tokens,
    output_tokens,
    question_counts,
)
from kvready.advisor.whatif.lengths import length_models
from kvready.advisor.whatif.questions import NEW_TOKENS, Initial, Order, Questions, check
from kvready.advisor.whatif.shapes import SHAPES, Shape, ShapeName
from kvready.advisor.whatif.workload import SimRequest, Workload
from kvready.collectors.errors import WorkloadError

# Passed on from `questions` and `shapes`.
__all__ = ["NEW_TOKENS", "Initial", "Order", "Questions", "ShapeName", "documents"]


def documents(shape: ShapeName | str, questions: Questions, seed: int = 0) -> Workload:
    """Poisson arrivals of questions to documents, or of conversations of several rounds.

    The same arguments give the same workload; with another order, rate or initial state it asks the
    same questions of the same documents. Raises `WorkloadError`.
    """
    known = _shape(shape)
    check(known, questions)
    lengths, arrivals = Random(f"lengths {known.name} {seed}"), Random(f"arrivals {seed}")
    made = conversations if known.rounds else _questions
    requests, warm = made(known, questions, lengths, arrivals)
    name = known.name if known.rounds else f"{known.name}-{questions.order}"
    return Workload(
        name=f"{name}-{questions.initial}",
        source=f"generated in the published shape of {known.name}, seed {seed}",
        block_tokens=questions.block_tokens,
        requests=tuple(sorted(requests, key=lambda request: request.arrived_seconds)),
        warm_blocks=warm,
        notes=_notes(known, questions),
    )


def _questions(
    shape: Shape, asked: Questions, lengths: Random, arrivals: Random
) -> tuple[list[SimRequest], tuple[int, ...]]:
    """Each question is its document and some new tokens; nothing of an answer is used again."""
    counts = question_counts(shape, asked, lengths)
    outputs = output_tokens(shape, lengths)
    news = [
        [(lengths.randint(*asked.new_tokens), next(outputs)) for _ in range(count)]
        for count in counts
    ]
    new = sum(tokens for tokens, _ in chain.from_iterable(news))
    contexts = context_tokens(shape, counts, shape.mean_prompt_tokens * sum(counts) - new, lengths)
    size = asked.block_tokens
    if asked.whole_blocks:
        contexts = [max(tokens // size, 1) * size for tokens in contexts]
    shared = _numbered(tokens // size for tokens in contexts)
    fresh = shared[-1].stop
    arrived = 0.0
    requests = []
    allowance = Allowance()
    for document, question in _ordered(counts, asked.order, lengths):
        arrived += arrivals.expovariate(asked.queries_per_second)
        tokens, output = news[document][question]
        prompt = contexts[document] + tokens
        own = range(fresh, fresh + prompt // size - len(shared[document]))
        fresh = own.stop
        allowance.take(prompt // size)
        requests.append(
            SimRequest(
                request_id=f"document-{document}-question-{question}",
                arrived_seconds=arrived,
                prompt_tokens=prompt,
                output_tokens=output,
                blocks=(*shared[document], *own),
            )
        )
    filled = asked.initial is Initial.HOST_FILLED
    return requests, tuple(chain.from_iterable(shared)) if filled else ()


def _ordered(counts: list[int], order: Order, draw: Random) -> list[tuple[int, int]]:
    """(document, question) in the order in which they come."""
    by_document = [[(d, q) for q in range(count)] for d, count in enumerate(counts)]
    if order is Order.MAX_DISTANCE:
        turns = zip_longest(*by_document)
        return [asked for turn in turns for asked in turn if asked is not None]
    flat = [asked for questions in by_document for asked in questions]
    if order is Order.SHUFFLED:
        draw.shuffle(flat)
    return flat


def _numbered(lengths: Iterable[int]) -> list[range]:
    """Consecutive ranges of those lengths, from 0."""
    ranges: list[range] = []
    for length in lengths:
        start = ranges[-1].stop if ranges else 0
        ranges.append(range(start, start + length))
    return ranges


def _shape(name: ShapeName | str) -> Shape:
    try:
        return SHAPES[ShapeName(name)]
    except ValueError:
        raise WorkloadError(f"no shape is called {name!r}; choose {', '.join(ShapeName)}") from None


def _notes(shape: Shape, asked: Questions) -> tuple[str, ...]:
    models = length_models()
    low, high = asked.new_tokens
    notes = [f"new tokens of a question are assumed: uniform, {low}-{high}"]
    if shape.context_models:
        sources = "; ".join(models[name].source for name in shape.context_models)
        notes.append(f"context lengths spread as in {sources}, scaled to the published mean")
    elif shape.contexts:
        notes.append(
            f"context lengths are assumed: normal, spread {ASSUMED_SPREAD:.0%} of the mean"
        )
    if not shape.questions_model and not shape.rounds:
        notes.append("each document is asked about equally often (assumed)")
    if shape.output_model:
        notes.append(f"outputs spread as in {models[shape.output_model].source}")
    else:
        notes.append("outputs are assumed: geometric with the published mean")
    if shape.rounds:
        notes.append(
            "conversations start as a Poisson process, at the rate that makes that of their rounds"
        )
    if not shape.contexts:
        notes.append("rounds are geometric, their mean from the published prompt mean (assumed)")
    if not shape.think_seconds and shape.rounds and asked.think_seconds is None:
        notes.append("a round is asked as soon as the one before has ended (assumed)")
    return tuple(notes)
