"""How a shape is asked: how often, in which order, from which initial state."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from kvready.advisor.whatif.shapes import Shape
from kvready.collectors.errors import WorkloadError

# Not published: how many tokens of a question are new. Loading 0 to 1,750 tokens for each new one
# (the paper's figure 1) means some questions of a dozen tokens; both ends are assumed.
NEW_TOKENS = (20, 200)


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
    whole_blocks: bool = False  # documents are cut to whole blocks: coarse ones add no new tokens
    think_seconds: float | None = None  # None: the shape's


def check(shape: Shape, asked: Questions) -> None:
    """Raises `WorkloadError` for what cannot be asked of a shape."""
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
    if high >= shape.mean_prompt_tokens:
        raise WorkloadError(
            f"new tokens up to {high} leave nothing of {shape.name}'s mean prompt of "
            f"{shape.mean_prompt_tokens:g} to be used again; name a lower range"
        )
    if not shape.contexts and asked.initial is Initial.HOST_FILLED:
        raise WorkloadError(f"{shape.name} has no documents that could fill the host tier")
