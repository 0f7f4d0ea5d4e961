"""What an engine did from one pass of its scheduler on, to be rolled again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import msgspec

from kvready.advisor.episode_roll import Arrival, Decided, Side, Start
from kvready.advisor.jobs import UNBOUNDED, Job
from kvready.advisor.savings import Candidate
from kvready.collectors.records import BatchPlanned

Decision = tuple[frozenset[str], frozenset[str]]  # admitted; loads ordered


class Tape:
    """One pass, or an episode that began with it. Seconds count from the pass."""

    def __init__(self, start: Start, batch: BatchPlanned) -> None:
        self.start = start
        self.began_seconds = batch.planned_seconds
        self.is_open = False  # an episode
        self.differing: set[Candidate] = set()
        self.script: list[Decided] = []
        self.jobs = {job.request_id: job for job in start.jobs}
        self.counted = {name for name, job in self.jobs.items() if job.prefill_left > 0}
        self.unfinished = set(self.counted)
        self._arrivals: dict[str, float] = {}
        self._found_tokens: dict[str, int] = {}
        self._loaded_tokens: dict[str, int] = {}
        self._finished: set[str] = set()
        self.batch(batch)

    def batch(self, batch: BatchPlanned) -> None:
        """A pass of the scheduler."""
        self.script.append(Decided(batch.members, []))

    def order_load(self, request_id: str, tokens: int) -> None:
        """It ordered a load."""
        if request_id in self.jobs:
            self.script[-1].loads.append(request_id)
            self._loaded_tokens[request_id] = tokens

    def arrive(self, arrived_seconds: float, job: Job) -> None:
        """A request came."""
        self.jobs[job.request_id] = job
        self.counted.add(job.request_id)
        self.unfinished.add(job.request_id)
        self._arrivals[job.request_id] = max(0.0, arrived_seconds - self.began_seconds)

    def admit(self, request_id: str, found_tokens: int) -> None:
        """It entered a batch, with so many tokens of its prompt found or loaded."""
        if request_id in self.jobs:
            self._found_tokens.setdefault(request_id, found_tokens)

    def first_token(self, request_id: str) -> None:
        """Its prefill is over."""
        self.unfinished.discard(request_id)

    def finish(self, request_id: str) -> None:
        """It ended."""
        self._finished.add(request_id)

    @property
    def decision(self) -> Decision:
        """Whom the first pass admitted, and whose loads it ordered."""
        known = {m.request_id for batch in self.start.under_way.batches for m in batch}
        waited = {j.request_id for j in self.start.jobs if not j.running} - known
        first = self.script[0]
        admitted = frozenset(m.request_id for m in first.members if m.request_id in waited)
        return admitted, frozenset(first.loads)

    def settled(self, load_seconds: Callable[[int], float]) -> tuple[Start, list[Arrival]]:
        """The same requests with what is known of them since: one draw for both sides.

        How long they decode, what they found, and how large their loads were.
        """
        decodes = Counter(
            member.request_id
            for decided in self.script
            for member in decided.members
            if not member.is_prefill
        )
        jobs = {
            name: self._settle(job, decodes[name], load_seconds) for name, job in self.jobs.items()
        }
        start = [jobs[job.request_id] for job in self.start.jobs]
        arrivals = sorted(
            (Arrival(seconds, jobs[name]) for name, seconds in self._arrivals.items()),
            key=lambda arrival: arrival.seconds,
        )
        return msgspec.structs.replace(self.start, jobs=start), arrivals

    def waits(self, side: Side, horizon_seconds: float) -> float:
        """Summed seconds to the first token, from arrival or the pass, up to the horizon."""
        return sum(
            min(side.first_token_seconds.get(name, horizon_seconds), horizon_seconds)
            - min(self._arrivals.get(name, 0.0), horizon_seconds)
            for name in sorted(self.counted)
        )

    def _settle(self, job: Job, decodes: int, load_seconds: Callable[[int], float]) -> Job:
        name = job.request_id
        output_left = 1 + decodes if job.prefill_left > 0 else max(1, decodes)
        job = msgspec.structs.replace(
            job, output_left=output_left if name in self._finished else UNBOUNDED
        )
        if name in self._loaded_tokens:
            job.load_tokens = self._loaded_tokens[name]
            job.load_seconds = load_seconds(job.load_tokens)
        if name in self._found_tokens and not job.running and not job.leader:
            job.context_tokens = job.promised_tokens = self._found_tokens[name]
        return job
