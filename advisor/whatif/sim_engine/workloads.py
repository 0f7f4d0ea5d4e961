"""What a simulated engine is asked: drawn by seed, with convoys, and what of it is left."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable

import msgspec

from kvready.advisor.whatif.questions import Order, Questions
from kvready.advisor.whatif.shapes import SHAPES, ShapeName
from kvready.advisor.whatif.sim_engine import mix
from kvready.advisor.whatif.sim_engine.faults import FaultName, Faults
from kvready.advisor.whatif.synthetic import documents
from kvready.advisor.whatif.workload import SimRequest, Workload
from kvready.collectors.errors import WorkloadError

CONVOY_BLOCKS = 1 << 56  # ids of a convoy's document start beyond those of any workload
CONVOY_REQUESTS = 24
CONVOY_TOKENS = 16_384
CONVOY_TAIL_TOKENS = (20, 200)
CONVOY_OUTPUT_TOKENS = 32


def drawn(name: str, requests_per_second: float, requests: int, seed: int) -> Workload:
    """The mix, or a published shape by name, with Poisson arrivals. Raises `WorkloadError`.

    `SHAPE:ORDER`: its documents' questions in that order, as many of each as were published;
    `SHAPE:ORDER:COUNT`: so many of each on average.
    """
    if name == mix.NAME:
        return mix.mix(requests_per_second, requests, seed)
    shape, *ordered = name.split(":")
    questions = Questions(
        queries_per_second=requests_per_second, queries=requests, block_tokens=mix.BLOCK_TOKENS
    )
    if ordered:
        each = _each(shape, *ordered[1:])
        questions = msgspec.structs.replace(
            questions,
            order=_order(ordered[0]),
            contexts=max(1, round(requests / each)) if each else 0,
        )
    return documents(shape, questions, seed)


def _order(name: str) -> Order:
    try:
        return Order(name)
    except ValueError:
        raise WorkloadError(f"no order is called {name!r}; choose {', '.join(Order)}") from None


def _each(shape: str, *given: str) -> float:
    """Questions of a document; 0: as published, where it has none."""
    if given:
        try:
            (each,) = map(float, given)
        except ValueError:
            each = 0.0
        if not 1.0 <= each < math.inf:
            raise WorkloadError(
                f"{':'.join(given)!r} questions of each document: name one number from 1 up"
            )
        return each
    known = SHAPES.get(ShapeName(shape)) if shape in list(ShapeName) else None
    return known.queries / known.contexts if known and known.contexts else 0.0


def with_convoys(workload: Workload, faults: Faults, seed: int) -> Workload:
    """The same with the convoys that are to come: many requests of one new document at once."""
    extra: list[SimRequest] = []
    for number, convoy in enumerate(faults.named(FaultName.CONVOY)):
        extra += _convoy(workload.block_tokens, number, convoy.begin_seconds, seed)
    if not extra:
        return workload
    return msgspec.structs.replace(workload, requests=_in_order([*workload.requests, *extra]))


def left_after(workload: Workload, arrived: set[str], now: float) -> Workload:
    """What has not arrived yet when another incarnation begins, with empty caches."""
    requests = []
    for request in workload.requests:
        if request.request_id in arrived:
            continue
        if request.after in arrived:  # whoever it follows is gone: its user asks on all the same
            request = msgspec.structs.replace(
                request, after="", arrived_seconds=now + request.think_seconds
            )
        requests.append(request)
    return msgspec.structs.replace(workload, requests=_in_order(requests), warm_blocks=())


def _convoy(block_tokens: int, number: int, begin: float, seed: int) -> list[SimRequest]:
    draws = random.Random(f"{seed}/convoy/{number}")
    first = CONVOY_BLOCKS + (draws.getrandbits(32) << 16)
    shared = tuple(first + index for index in range(CONVOY_TOKENS // block_tokens))
    return [
        SimRequest(
            request_id=f"convoy-{number}-{index}",
            arrived_seconds=begin + 1e-3 * index,
            prompt_tokens=len(shared) * block_tokens + draws.randint(*CONVOY_TAIL_TOKENS),
            output_tokens=CONVOY_OUTPUT_TOKENS,
            blocks=shared,
            request_class="convoy",
        )
        for index in range(CONVOY_REQUESTS)
    ]


def _in_order(requests: Iterable[SimRequest]) -> tuple[SimRequest, ...]:
    return tuple(sorted(requests, key=lambda request: request.arrived_seconds))
