"""A request on its way through a simulated engine."""

from __future__ import annotations

from kvready.advisor.whatif.outcome import RequestOutcome
from kvready.advisor.whatif.workload import SimRequest


class LiveRequest:
    """What the simulator knows of one request; seconds of simulated time, tokens, block ids."""

    __slots__ = (
        "context_tokens",
        "fetched_blocks",
        "findable_blocks",
        "held_blocks",
        "held_since_seconds",
        "new_blocks",
        "order",
        "outcome",
        "private_tokens",
        "request",
        "tokens_left",
        "wants_load",
    )

    def __init__(self, request: SimRequest, order: int, block_tokens: int) -> None:
        self.request = request
        # A prompt's last token is always computed, and with it its block.
        self.findable_blocks = request.blocks[: (request.prompt_tokens - 1) // block_tokens]
        self.order = order  # of its arrival
        self.outcome = RequestOutcome(
            request_id=request.request_id,
            arrived_seconds=request.arrived_seconds,
            prompt_tokens=request.prompt_tokens,
            output_tokens=request.output_tokens,
            request_class=request.request_class,
            tenant=request.tenant,
        )
        self.tokens_left = request.prompt_tokens  # of its prefill, not yet given to a batch
        self.context_tokens = 0  # before these
        self.private_tokens = 0  # of HBM, that no block accounts for
        self.held_blocks: list[int] = []  # in HBM, in the order of its chain
        self.new_blocks: list[int] = []  # that its prefill brings, in order
        self.held_since_seconds: float | None = None  # deferred by a policy since
        self.fetched_blocks: tuple[int, ...] = ()  # from disk, while it waited
        self.wants_load = False  # some of it is below HBM

    @property
    def reserved_tokens(self) -> int:
        """Of HBM: its output is reserved with its prompt, so that nothing is ever preempted."""
        return self.request.prompt_tokens + self.request.output_tokens
