"""Who hears what a simulated engine does, as it does it: step by step, in order of time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from kvready.advisor.whatif.workload import SimRequest
from kvready.collectors.names import DeferReason, Tier
from kvready.collectors.records import BatchMember


class Watcher(Protocol):
    """Called by the engine at simulated moments that never go back. Seconds, tokens, block ids.

    Within a round of the scheduler: `planned` if a batch was chosen, then the copies ordered with
    it, who entered it, who was passed over; last `planned_all`. A batch ends with what it brought
    (`first_token`, `finished`), then `ended`. Steps count from 1.
    """

    def arrived(self, now: float, request: SimRequest) -> None:
        """The scheduler took a request in."""

    def planned(
        self,
        now: float,
        step: int,
        members: Sequence[BatchMember],
        waiting: Sequence[str],
        free_blocks: int,
    ) -> None:
        """The scheduler chose a batch; these wait behind it, in order."""

    def ordered(
        self,
        now: float,
        load_id: int,
        request_id: str,
        source: Tier,
        destination: Tier,
        blocks: int,
    ) -> None:
        """A copy between tiers was ordered for a request."""

    def scheduled(self, now: float, request_id: str, hbm_tokens: int, loaded_tokens: int) -> None:
        """A request entered a batch for the first time; the rest of its prompt is computed."""

    def deferred(self, now: float, request_id: str, reason: DeferReason) -> None:
        """A waiting request was passed over."""

    def planned_all(self, now: float) -> None:
        """The scheduler's round is over."""

    def started(self, now: float, load_id: int) -> None:
        """The mover took up a copy."""

    def ready(self, now: float, load_id: int) -> None:
        """A copy is usable at its destination."""

    def stored(self, now: float, tier: Tier, blocks: Sequence[int], parent: int | None) -> None:
        """Blocks of one chain became findable."""

    def removed(self, now: float, tier: Tier, blocks: Sequence[int]) -> None:
        """Blocks stopped being findable."""

    def first_token(self, now: float, request_id: str) -> None:
        """A request's prompt is computed."""

    def finished(self, now: float, request_id: str, output_tokens: int) -> None:
        """A request ended."""

    def ended(self, now: float, step: int) -> None:
        """A batch's results are in."""
