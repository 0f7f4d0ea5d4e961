"""What an API server's statistics say of requests, as records.

vLLM does not call these statistics a stable interface: whatever a version lacks, or spells
otherwise, is not told (None) rather than an error.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from kvready.collectors.records import (
    AnyRecord,
    Outcome,
    PromptTokensReported,
    RequestReported,
    Surface,
)

MAX_ID_CHARACTERS = 256
OUTCOMES = {
    "stop": Outcome.FINISHED,
    "length": Outcome.FINISHED,
    "repetition": Outcome.FINISHED,
    "abort": Outcome.ABORTED,
    "error": Outcome.FAILED,
}


def records_of(iteration: Any, engine_index: int, now_wall_seconds: float) -> Iterator[AnyRecord]:
    """The requests that ended in an iteration, and where its prompt tokens came from."""
    ended_wall_seconds = _seconds(iteration, "iteration_timestamp")
    if ended_wall_seconds is None:
        ended_wall_seconds = now_wall_seconds
    prompt_tokens = _prompt_tokens(iteration, engine_index, ended_wall_seconds)
    if prompt_tokens is not None:
        yield prompt_tokens
    for request in getattr(iteration, "finished_requests", None) or ():
        report = _report(request, ended_wall_seconds)
        if report is not None:
            yield report


def _report(request: Any, ended_wall_seconds: float) -> RequestReported | None:
    request_id = getattr(request, "request_id", None)
    if not isinstance(request_id, str) or not request_id:
        return None  # before vLLM told ids here there was nothing to join a request by
    whole_seconds = _seconds(request, "e2e_latency")
    return RequestReported(
        request_id=request_id[:MAX_ID_CHARACTERS],
        surface=Surface.FRONTEND,
        arrived_wall_seconds=None if whole_seconds is None else ended_wall_seconds - whole_seconds,
        ended_wall_seconds=ended_wall_seconds,
        same_host=True,  # published on a socket in the file system
        queue_seconds=_seconds(request, "queued_time"),
        prefill_seconds=_seconds(request, "prefill_time"),
        decode_seconds=_seconds(request, "decode_time"),
        whole_seconds=whole_seconds,
        prompt_tokens=_count(request, "num_prompt_tokens"),
        output_tokens=_count(request, "num_generation_tokens"),
        cached_tokens=_count(request, "num_cached_tokens"),
        preemptions=_count(request, "num_preemptions"),
        outcome=OUTCOMES.get(str(getattr(request, "finish_reason", "")).lower()),
    )


def _prompt_tokens(
    iteration: Any, engine_index: int, step_wall_seconds: float
) -> PromptTokensReported | None:
    tokens = getattr(iteration, "prompt_token_stats", None)
    if tokens is None or not _count(tokens, "total"):
        return None  # a step without prompts
    return PromptTokensReported(
        step_wall_seconds=step_wall_seconds,
        engine_index=engine_index,
        computed_tokens=_count(tokens, "computed"),
        hbm_tokens=_count(tokens, "local_cache_hit"),
        loaded_tokens=_count(tokens, "external_kv_transfer"),
        prompt_tokens=_count(tokens, "total"),
    )


def _seconds(told: Any, name: str) -> float | None:
    value = getattr(told, name, None)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) and value >= 0 else None


def _count(told: Any, name: str) -> int | None:
    value = getattr(told, name, None)
    return value if type(value) is int and value >= 0 else None
