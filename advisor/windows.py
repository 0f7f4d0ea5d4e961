"""What one window of serving was like, under one arm of a policy."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from enum import StrEnum
from statistics import fmean, median

import msgspec

DROPPED_SHARE = 0.25  # of a window, at its start: what the other arm left behind runs out
MIN_REQUESTS = 5  # fewer make no mean
MIN_FOLLOWERS = 3
MAX_REQUESTS = 16_384  # of one window; later arrivals are counted, not looked at
MAX_TENANTS = 8  # the most frequent of a window
TAIL = 0.99


class Arm(StrEnum):
    """Whether the policy acted."""

    CONTROL = "control"
    TREATED = "treated"


class WindowSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of the requests that arrived in one window, its first quarter left out.

    None: nothing to judge by. `pair` numbers two neighbours whose arms were drawn together. Whoever
    had no first token when the window was summed up counts with how long it had waited.
    """

    begin_seconds: float
    end_seconds: float
    arm: Arm
    pair: int
    requests: int
    over_target_ratio: float | None = None  # of the requests that have a target
    mean_ttft_seconds: float | None = None
    follower_p99_seconds: float | None = None  # dedup: TTFT of who came after its prefix's leader
    output_token_p50_seconds: float | None = None  # time per output token: gpu_copy
    starved_p99_seconds: float | None = None  # queue wait of the slowest: balance
    tenant_ttft_seconds: dict[str, float] = {}  # means; at most MAX_TENANTS
    is_clean: bool = True  # no stall, gap, restart or change of mode in it


class WindowRequest(msgspec.Struct, gc=False):
    """One request of a window, as it becomes known. None: not yet."""

    arrived_seconds: float
    target_seconds: float | None
    tenant: str
    request_class: str
    group: int | None  # hash of the first block, which its prefix's sharers share
    is_follower: bool
    ttft_seconds: float | None = None
    queue_seconds: float | None = None
    output_token_seconds: float | None = None
    is_over: bool = False

    def waited_seconds(self, now_seconds: float) -> float:
        """Its time to first token, or how long it has waited without one."""
        if self.ttft_seconds is not None:
            return self.ttft_seconds
        return max(0.0, now_seconds - self.arrived_seconds)


def summarized(
    requests: Sequence[WindowRequest],
    begin_seconds: float,
    end_seconds: float,
    now_seconds: float,
    arm: Arm,
    pair: int,
    is_clean: bool,
) -> WindowSummary:
    """The figures of a window's requests, as they stand now."""
    waits = [one.waited_seconds(now_seconds) for one in requests]
    late = [
        waited > one.target_seconds
        for one, waited in zip(requests, waits, strict=True)
        if one.target_seconds is not None
    ]
    followers = [w for one, w in zip(requests, waits, strict=True) if one.is_follower]
    queued = [
        one.waited_seconds(now_seconds) if one.queue_seconds is None else one.queue_seconds
        for one in requests
    ]
    paces = [one.output_token_seconds for one in requests if one.output_token_seconds is not None]
    return WindowSummary(
        begin_seconds=begin_seconds,
        end_seconds=end_seconds,
        arm=arm,
        pair=pair,
        requests=len(requests),
        over_target_ratio=fmean(late) if len(late) >= MIN_REQUESTS else None,
        mean_ttft_seconds=fmean(waits) if len(waits) >= MIN_REQUESTS else None,
        follower_p99_seconds=_tail(followers, MIN_FOLLOWERS),
        output_token_p50_seconds=median(paces) if len(paces) >= MIN_REQUESTS else None,
        starved_p99_seconds=_tail(queued, MIN_REQUESTS),
        tenant_ttft_seconds=_by_tenant(requests, waits),
        is_clean=is_clean,
    )


def _tail(values: list[float], least: int) -> float | None:
    if len(values) < least:
        return None
    return sorted(values)[math.ceil(TAIL * len(values)) - 1]


def _by_tenant(requests: Sequence[WindowRequest], waits: Sequence[float]) -> dict[str, float]:
    found: dict[str, list[float]] = defaultdict(list)
    for one, waited in zip(requests, waits, strict=True):
        found[one.tenant].append(waited)
    if len(found) < 2:
        return {}  # the one tenant is all requests
    kept = sorted(
        (name for name, own in found.items() if len(own) >= MIN_REQUESTS),
        key=lambda name: (-len(found[name]), name),
    )
    return {name: fmean(found[name]) for name in sorted(kept[:MAX_TENANTS])}
