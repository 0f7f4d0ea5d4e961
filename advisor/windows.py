"""What one window of serving was like, under one arm of a policy."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Arm(StrEnum):
    """Whether the policy acted."""

    CONTROL = "control"
    TREATED = "treated"


class WindowSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of the requests that arrived in one window, its first quarter left out.

    None: nothing to judge by. `pair` numbers two neighbours whose arms were drawn together.
    """

    begin_seconds: float
    end_seconds: float
    arm: Arm
    pair: int
    requests: int
    over_target_ratio: float | None = None
    mean_ttft_seconds: float | None = None
    follower_p99_seconds: float | None = None  # dedup
    output_token_p50_seconds: float | None = None  # time per output token: gpu_copy
    starved_p99_seconds: float | None = None  # queue wait of the slowest: balance
    tenant_worst_ratio: float | None = None  # mean TTFT of the worst tenant over its own control
    is_clean: bool = True  # no stall, gap or restart in it
