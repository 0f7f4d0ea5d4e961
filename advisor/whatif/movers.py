"""The copies of one simulated engine: loads, backups and fetches, each on its own link."""

from __future__ import annotations

from collections.abc import Sequence

from kvready.advisor.whatif.batch_costs import Slowing
from kvready.advisor.whatif.cache import Cache, Match
from kvready.advisor.whatif.fetches import Fetches
from kvready.advisor.whatif.link import Link
from kvready.advisor.whatif.live_request import LiveRequest
from kvready.advisor.whatif.scenario import LinkSpec, Scenario
from kvready.advisor.whatif.timeline import Timeline

NO_LINK = LinkSpec("none", 1.0)


class Movers:
    """What moves, and what that does to the cache once it is there."""

    def __init__(
        self, scenario: Scenario, cache: Cache, timeline: Timeline, start_seconds: float
    ) -> None:
        layout = scenario.shape.layout(scenario.page_tokens, scenario.tensor_parallel)
        self.load = Link(scenario.load, layout, start_seconds)
        self.backup = Link(scenario.backup, layout, start_seconds)
        self.fetch = Link(scenario.fetch or NO_LINK, layout, start_seconds)
        self._fetches = None
        if scenario.fetch is not None:
            self._fetches = Fetches(self.fetch, cache, timeline)
        self._cache = cache
        self._timeline = timeline

    def back_up(self, now_seconds: float, blocks: Sequence[int]) -> float:
        """Copy blocks into host memory; returns when they are there."""
        if not blocks:
            return now_seconds
        self.backup.account(now_seconds, is_ordered=False, is_wanted=False)
        done = self.backup.copy(now_seconds, len(blocks) * self._cache.block_tokens)
        self._timeline.at(done, self._written, blocks)
        return done

    def want(self, now_seconds: float, live: LiveRequest, match: Match) -> None:
        """A request queues: fetch what of it is on disk."""
        if self._fetches is not None and match.disk_blocks:
            self._fetches.want(now_seconds, live, match.disk_blocks)

    def picked(self, now_seconds: float, live: LiveRequest) -> bool:
        """A request is about to be admitted: its fetch ends. True: some of it came only now."""
        return self._fetches is not None and self._fetches.picked(now_seconds, live)

    def admitted(self, now_seconds: float, live: LiveRequest) -> None:
        """It is: what was fetched for it and not needed may go."""
        if self._fetches is not None:
            self._fetches.admitted(now_seconds, live)

    def prefill_slowings(self) -> tuple[Slowing, ...]:
        """What the copies that are ordered do to a prefill beside them."""
        return (
            Slowing(self.load.free_seconds, self.load.spec.prefill_slowdown),
            Slowing(self.backup.free_seconds, self.backup.spec.prefill_slowdown),
        )

    def decode_slowings(self) -> tuple[Slowing, ...]:
        """The same for decode steps."""
        return (
            Slowing(self.load.free_seconds, self.load.spec.decode_slowdown),
            Slowing(self.backup.free_seconds, self.backup.spec.decode_slowdown),
        )

    def end(self, now_seconds: float) -> None:
        """Close the books of backups and fetches: whoever waits for a load does not wait for them.

        Loads are accounted for by who knows what waits for them.
        """
        for link in (self.backup, self.fetch):
            link.account(now_seconds, is_ordered=False, is_wanted=False)

    def _written(self, _now_seconds: float, blocks: Sequence[int]) -> None:
        self._cache.written(blocks)
