"""Seeded workloads in the shape of published data sets: documents asked many questions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import StrEnum
from itertools import zip_longest
from random import Random

import msgspec

from kvready.advisor.whatif.chains import Allowance
from kvready.advisor.whatif.lengths import geometric, length_models, with_total
from kvready.advisor.whatif.shapes import SHAPES, WORDS_TO_TOKENS, Shape, ShapeName
from kvready.advisor.whatif.workload import SimRequest, Workload
from kvready.collectors.errors import WorkloadError

# Not published: how many tokens of a question are new. Loading 0 to 1,750 tokens for each new one
# (the paper's figure 1) means some questions of a dozen tokens; both ends are assumed.
NEW_TOKENS = (20, 200)
ASSUMED_SPREAD = 0.3  # standard deviation over mean, of contexts without public lengths


class Order(StrEnum):
    """In which order the questions of all documents come: how far apart a document's uses lie."""

    MIN_DISTANCE = "min_distance"  # a document's questions back to back
    SHUFFLED = "shuffled"
    MAX_DISTANCE = "max_distance"  # one question of every document, then the next of every one


class Initial(StrEnum):
    """What the host tier holds before the first arrival."""

    COLD = "cold"
    HOST_FILLED = "host_filled"  # every document


class Questions(msgspec.Struct, frozen=True):
    """How a shape is asked. 0 for a count means the published one."""

    queries_per_second: float
    order: Order = Order.SHUFFLED
    initial: Initial = Initial.COLD
    new_tokens: tuple[int, int] = NEW_TOKENS  # of each question, uniform, both ends included
    contexts: int = 0
    queries: int = 0
    block_tokens: int = 32
    think_seconds: float | None = None  # None: the shape's


def documents(shape: ShapeName | str, questions: Questions, seed: int = 0) -> Workload:
    """Poisson arrivals of questions to documents, or of conversations of several rounds.

    The same arguments give the same workload. Raises `WorkloadError`.
    """
    known = _shape(shape)
    _check(known, questions)
    draw = Random(f"{known.name} {seed}")
    made = _conversations if known.rounds else _questions
    requests, warm, notes = made(known, questions, draw)
    name = known.name if known.rounds else f"{known.name}-{questions.order}"
    return Workload(
        name=f"{name}-{questions.initial}",
        source=f"generated in the published shape of {known.name}, seed {seed}",
        block_tokens=questions.block_tokens,
        requests=tuple(sorted(requests, key=lambda request: request.arrived_seconds)),
        warm_blocks=warm,
        notes=notes,
    )


Made = tuple[list[SimRequest], tuple[int, ...], tuple[str, ...]]


def _questions(shape: Shape, asked: Questions, draw: Random) -> Made:
    """Each question is its document and some new tokens; nothing of an answer is used again."""
    counts = _question_counts(shape, asked, draw)
    news = [[draw.randint(*asked.new_tokens) for _ in range(count)] for count in counts]
    prompts = shape.mean_prompt_tokens * sum(counts)
    contexts = _context_tokens(shape, counts, prompts - sum(map(sum, news)), draw)
    block_tokens = asked.block_tokens
    shared = _numbered(tokens // block_tokens for tokens in contexts)
    fresh = shared[-1].stop
    arrived = 0.0
    requests = []
    allowance = Allowance()
    outputs = _outputs(shape, draw)
    for document, question in _ordered(counts, asked.order, draw):
        arrived += draw.expovariate(asked.queries_per_second)
        prompt = contexts[document] + news[document][question]
        own = range(fresh, fresh + prompt // block_tokens - len(shared[document]))
        fresh = own.stop
        allowance.take(prompt // block_tokens)
        requests.append(
            SimRequest(
                request_id=f"document-{document}-question-{question}",
                arrived_seconds=arrived,
                prompt_tokens=prompt,
                output_tokens=next(outputs),
                blocks=(*shared[document], *own),
            )
        )
    filled = asked.initial is Initial.HOST_FILLED
    warm = tuple(block for blocks in shared for block in blocks) if filled else ()
    return requests, warm, _notes(shape, asked)


def _conversations(shape: Shape, asked: Questions, draw: Random) -> Made:
    """Each round's prompt is all said before and some new tokens."""
    mean_new = sum(asked.new_tokens) / 2
    rounds = list(_rounds(shape, asked, mean_new, draw))
    outputs = _outputs(shape, draw)
    turns = [[(draw.randint(*asked.new_tokens), next(outputs)) for _ in range(n)] for n in rounds]
    contexts = [0] * len(turns)
    if shape.contexts:
        said = sum(_history(turn) for turn in turns)
        room = shape.mean_prompt_tokens * sum(rounds) - said
        contexts = _context_tokens(shape, rounds, room, draw)
    think = shape.think_seconds if asked.think_seconds is None else asked.think_seconds
    starts = asked.queries_per_second * len(turns) / sum(rounds)
    arrived, fresh = 0.0, 0
    warm: list[int] = []
    requests: list[SimRequest] = []
    allowance = Allowance()
    for number, (context, turn) in enumerate(zip(contexts, turns, strict=True)):
        arrived += draw.expovariate(starts)
        if asked.initial is Initial.HOST_FILLED:
            warm += range(fresh, fresh + context // asked.block_tokens)
        conversation = _conversation(number, arrived, context, turn, think, fresh, asked)
        for request in conversation:
            allowance.take(len(request.blocks))
            requests.append(request)
            fresh = max(fresh, request.blocks[-1] + 1 if request.blocks else 0)
            fresh = max(fresh, request.output_blocks[-1] + 1 if request.output_blocks else 0)
    return requests, tuple(warm), _notes(shape, asked)


def _conversation(
    number: int,
    arrived: float,
    context_tokens: int,
    turn: list[tuple[int, int]],
    think_seconds: float,
    first_block: int,
    asked: Questions,
) -> Iterator[SimRequest]:
    said = context_tokens
    for index, (new, output) in enumerate(turn):
        prompt = said + new
        said = prompt + output
        whole, left = prompt // asked.block_tokens, said // asked.block_tokens
        yield SimRequest(
            request_id=f"conversation-{number}-round-{index}",
            arrived_seconds=arrived,
            prompt_tokens=prompt,
            output_tokens=output,
            blocks=tuple(range(first_block, first_block + whole)),
            output_blocks=tuple(range(first_block + whole, first_block + left)),
            after=f"conversation-{number}-round-{index - 1}" if index else "",
            think_seconds=think_seconds if index else 0.0,
        )


def _rounds(shape: Shape, asked: Questions, mean_new: float, draw: Random) -> Iterator[int]:
    """Rounds of each conversation, the published number of queries in all."""
    queries = asked.queries or shape.queries
    if shape.contexts:
        contexts = asked.contexts or _scaled(shape.contexts, queries / shape.queries)
        yield from with_total([1.0] * contexts, queries)
        return
    # Geometric rounds of mean m see m - 1 rounds before them on average: what the published mean
    # prompt leaves for history fixes m.
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


def _question_counts(shape: Shape, asked: Questions, draw: Random) -> list[int]:
    queries = asked.queries or shape.queries
    contexts = asked.contexts or _scaled(shape.contexts, queries / shape.queries)
    model = length_models().get(shape.questions_model)
    weights = [1.0 if model is None else model.relative(draw) for _ in range(contexts)]
    return with_total(weights, queries)


def _context_tokens(shape: Shape, asked: list[int], total_tokens: float, draw: Random) -> list[int]:
    """Lengths of documents that, each as often as it is asked, add up to `total_tokens`."""
    models = [length_models()[name] for name in shape.context_models]
    drawn: list[float] = []
    while len(drawn) < len(asked):
        if models:
            model = draw.choice(models)
            length = model.relative(draw)
            tokens = length * model.mean * WORDS_TO_TOKENS
            if shape.longest_context_tokens and tokens > shape.longest_context_tokens:
                continue
        else:
            length = max(draw.gauss(1, ASSUMED_SPREAD), ASSUMED_SPREAD)
        drawn.append(length)
    scale = total_tokens / sum(length * times for length, times in zip(drawn, asked, strict=True))
    return [max(round(length * scale), 1) for length in drawn]


def _outputs(shape: Shape, draw: Random) -> Iterator[int]:
    model = length_models().get(shape.output_model)
    while True:
        if model is None:
            yield geometric(draw, shape.mean_output_tokens)
        else:
            yield max(round(model.relative(draw) * shape.mean_output_tokens), 1)


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


def _scaled(count: int, share: float) -> int:
    return max(round(count * min(share, 1.0)), 1)


def _shape(name: ShapeName | str) -> Shape:
    try:
        return SHAPES[ShapeName(name)]
    except ValueError:
        raise WorkloadError(f"no shape is called {name!r}; choose {', '.join(ShapeName)}") from None


def _check(shape: Shape, asked: Questions) -> None:
    low, high = asked.new_tokens
    queries = asked.queries or shape.queries
    contexts = asked.contexts
    if not asked.queries_per_second > 0:
        raise WorkloadError("queries_per_second must be above 0")
    if not 1 <= low <= high:
        raise WorkloadError(f"new tokens {low}-{high}: name a range from 1 up, the lower end first")
    if asked.block_tokens < 1:
        raise WorkloadError("block_tokens must be 1 or more")
    if queries < 1 or contexts < 0 or contexts > queries:
        raise WorkloadError(f"{contexts} documents and {queries} queries: each needs one or more")
    if contexts and not shape.contexts:
        raise WorkloadError(f"{shape.name} has no documents; leave contexts out")
    if shape.rounds and asked.order is not Order.SHUFFLED:
        raise WorkloadError(f"{shape.name} comes in rounds, which keep their own order")
    if not shape.contexts and asked.initial is Initial.HOST_FILLED:
        raise WorkloadError(f"{shape.name} has no documents that could fill the host tier")


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
        notes.append("conversations start as a Poisson process; rounds follow each other")
    if not shape.contexts:
        notes.append("rounds are geometric, their mean from the published prompt mean (assumed)")
    return tuple(notes)
