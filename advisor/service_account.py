"""How requests were served: goodput first, then waits and pace by what they depend on.

Plain sums, for the whole path from arrival on the most upstream surface that is seen.
"""

from __future__ import annotations

from collections import Counter
from enum import StrEnum

from kvready.advisor.backcasts import waits_of
from kvready.advisor.bounded_names import OVERFLOW, UNNAMED, BoundedNames
from kvready.advisor.distribution import WAIT_BUCKETS, Distribution
from kvready.advisor.known_traces import KnownTraces
from kvready.advisor.outside_model import BackcastTarget
from kvready.advisor.requests import RequestState
from kvready.advisor.served import Ended, Served, judge
from kvready.advisor.service_groups import (
    InitialState,
    PrefixLength,
    ReuseDistance,
    ServiceGroup,
    initial_state,
    prefix_length,
    reuse_distance,
)
from kvready.collectors.records import (
    FirstToken,
    Outcome,
    RequestFinished,
    RequestReported,
    Surface,
)
from kvready.collectors.service_targets import ServiceTargets

MAX_CLASSES = 5  # request classes that are told apart


class By(StrEnum):
    """What service is broken down by, one at a time."""

    STATE = "state"
    REUSE = "reuse"
    PREFIX = "prefix"
    CLASS = "class"


GROUPS: dict[By, tuple[str, ...]] = {
    By.STATE: tuple(InitialState),
    By.REUSE: tuple(ReuseDistance),
    By.PREFIX: tuple(PrefixLength),
    By.CLASS: (UNNAMED, OVERFLOW),  # and the classes that came
}


class GroupSums:
    """Requests of one group."""

    __slots__ = ("decode_seconds", "output_tokens", "ttft")

    def __init__(self) -> None:
        self.ttft = Distribution(WAIT_BUCKETS)
        self.output_tokens = 0  # after the first of each request
        self.decode_seconds = 0.0  # that those took, summed over requests


class ServiceAccount:
    """Fed by all ranks of an engine."""

    def __init__(self, targets: ServiceTargets) -> None:
        self.targets = targets
        self.classes = BoundedNames(MAX_CLASSES)
        self.groups: dict[By, dict[str, GroupSums]] = {
            by: {name: GroupSums() for name in names} for by, names in GROUPS.items()
        }
        self.served: Counter[tuple[str, Served]] = Counter()  # by class
        self.surfaces: Counter[Surface] = Counter()  # where arrivals were seen
        self.reported: Counter[Served] = Counter()  # told from outside, of the same requests
        self.reported_ttft = Distribution(WAIT_BUCKETS)
        self.traces = KnownTraces()
        self.reuse_tokens = 0
        self.reuses = 0

    def arrive(self, state: RequestState, reuse_tokens: int | None) -> None:
        """Take down what the request depends on, as it is now."""
        self.surfaces[state.surface] += 1
        if reuse_tokens is not None:
            self.reuse_tokens += reuse_tokens
            self.reuses += 1
        state.group = ServiceGroup(
            initial_state(state),
            reuse_distance(state, reuse_tokens),
            prefix_length(state),
            self.classes.label(state.arrived.request_class),
        )

    def first_token(self, state: RequestState, record: FirstToken) -> None:
        """Its wait is over."""
        request_id, at = record.request_id, record.first_token_seconds
        waited = max(0.0, at - state.arrived_seconds)
        for sums in self._sums(state):
            sums.ttft.add(waited, request_id, at)

    def finish(self, state: RequestState | None, record: RequestFinished) -> None:
        """It ended. None: it had arrived before we did."""
        if state is None or state.group is None:
            self.served[UNNAMED, Served.UNSEEN] += 1
            return
        arrived, first = state.arrived, state.first_token_seconds
        decode_seconds = None if first is None else max(0.0, record.finished_seconds - first)
        if decode_seconds is not None and record.output_tokens > 1:
            for sums in self._sums(state):
                sums.output_tokens += record.output_tokens - 1
                sums.decode_seconds += decode_seconds
        ended = Ended(
            outcome=record.outcome,
            ttft_seconds=None if first is None else first - state.arrived_seconds,
            decode_seconds=decode_seconds,
            whole_seconds=record.finished_seconds - state.arrived_seconds,
            output_tokens=record.output_tokens,
            ttft_target_seconds=arrived.ttft_target_seconds,
        )
        self.served[state.group.request_class, judge(ended, self.targets)] += 1

    def lost(self, state: RequestState) -> None:
        """Its engine restarted under it."""
        if state.group is not None:
            self.served[state.group.request_class, Served.FAILED] += 1

    def report(self, report: RequestReported) -> None:
        """A request as taps outside the engine saw it: apart from what the observer tells."""
        self.traces.report(report)
        ttft_seconds = waits_of(report)[BackcastTarget.TTFT]
        if ttft_seconds is not None:
            self.reported_ttft.add(ttft_seconds, report.request_id)
        ended = Ended(
            outcome=report.outcome or Outcome.FINISHED,
            ttft_seconds=ttft_seconds,
            decode_seconds=report.decode_seconds,
            whole_seconds=report.whole_seconds,
            output_tokens=report.output_tokens,
        )
        self.reported[judge(ended, self.targets)] += 1

    def _sums(self, state: RequestState) -> list[GroupSums]:
        group = state.group
        if group is None:
            return []
        names = (
            (By.STATE, group.initial_state),
            (By.REUSE, group.reuse_distance),
            (By.PREFIX, group.prefix_length),
            (By.CLASS, group.request_class),
        )
        return [self._group(by, name) for by, name in names]

    def _group(self, by: By, name: str) -> GroupSums:
        sums = self.groups[by].get(name)
        if sums is None:  # a class, at most MAX_CLASSES
            sums = self.groups[by][name] = GroupSums()
        return sums
