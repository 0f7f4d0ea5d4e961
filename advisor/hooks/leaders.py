"""The requests that compute what others may wait for, followed from pass to pass."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from kvready.advisor.hooks.held_requests import LeaderSpeed
from kvready.advisor.hooks.load_limit import LoadLimit
from kvready.advisor.hooks.vllm_view import RUNNING, computes, loads

NEVER = 1 << 62


class Followed(NamedTuple):
    """What became of them since the pass before."""

    ended: list[str]  # aborted, preempted or finished: they bring nothing any more
    done: list[str]  # all that they bring is there
    is_near: bool  # somebody has computed what was to be looked at


class _Leader:
    __slots__ = ("computed", "look_at", "request")

    def __init__(self, request: Any) -> None:
        self.request: Any = request
        self.computed: int = request.num_computed_tokens
        self.look_at = NEVER  # tokens


class Leaders:
    """Those that run, or whose load is under way; and how fast they are."""

    def __init__(self) -> None:
        self.speed = LeaderSpeed()
        self.load_limit = LoadLimit()
        self._leaders: dict[str, _Leader] = {}
        self._now_seconds: float | None = None  # of the pass before

    def __contains__(self, name: str) -> bool:
        return name in self._leaders

    def add(self, request: Any) -> int:
        """It computes from now on; how many tokens it has already."""
        leader = self._leaders[request.request_id] = _Leader(request)
        return leader.computed

    def remove(self, name: str) -> None:
        """It waits again."""
        del self._leaders[name]

    def is_far(self, name: str, tokens: int) -> bool:
        """Whether one runs and has not computed so much yet; it is told of once it has."""
        leader = self._leaders.get(name)
        if leader is None or leader.computed >= tokens:
            return False
        leader.look_at = min(leader.look_at, tokens)
        return True

    def follow(self, now_seconds: float, unfinished: Mapping[str, Any]) -> Followed:
        """Look at each of them; those that are through are forgotten."""
        before, self._now_seconds = self._now_seconds, now_seconds
        seconds = 0.0 if before is None else now_seconds - before
        followed = Followed([], [], False)
        is_near = False
        loading: dict[str, int] = {}
        prefilled = 0
        for name, leader in self._leaders.items():
            request = leader.request
            if name not in unfinished or not computes(request):
                followed.ended.append(name)
                continue
            if tokens := loads(request):
                loading[name] = tokens
                continue
            computed = request.num_computed_tokens
            gained, leader.computed = computed - leader.computed, computed
            self.speed.saw(gained, seconds)
            prefilled += max(0, gained)
            if computed >= leader.look_at:
                leader.look_at = NEVER
                is_near = True
            if computed >= request.num_prompt_tokens and request.status._name_ == RUNNING:
                followed.done.append(name)
        self.load_limit.saw(seconds, loading, prefilled)
        for name in (*followed.ended, *followed.done):
            del self._leaders[name]
        return followed._replace(is_near=is_near)
