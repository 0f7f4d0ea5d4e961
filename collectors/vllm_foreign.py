"""What arrived that is no KV event of vLLM's, and by what it shows."""

from __future__ import annotations

import math
from typing import Any

from kvready.collectors.vllm_wire import POSITIONS

MILLISECONDS_FROM = 1e11  # a batch time above this is no time in seconds
SGLANG_MEDIUM = "CPU_PINNED"
IS_SGLANG = "not vLLM's (SGLang has a tap of its own)"


def foreign_batch(batch: Any) -> str | None:
    """Why a decoded payload is no vLLM batch at all, or None where it may be one."""
    if not isinstance(batch, list) or len(batch) < 2 or not isinstance(batch[1], list):
        return "payload is not [time, events, rank]: not a vLLM KV-event message"
    if not isinstance(batch[0], int | float) or isinstance(batch[0], bool):
        return "message time is not a number: not a vLLM KV-event message"
    if not math.isfinite(batch[0]):
        return "message time is not finite: not a vLLM KV-event message"
    if abs(batch[0]) > MILLISECONDS_FROM:
        return "message time is in milliseconds: not vLLM's (Mooncake has a tap of its own)"
    return None


def by_name(raw: object) -> dict[str, Any] | None:
    """An event as a map tagged by `type`, whichever way it was sent; None where it has no type."""
    if isinstance(raw, dict):
        return raw if isinstance(raw.get("type"), str) else None
    if not isinstance(raw, list) or not raw or not isinstance(raw[0], str):
        return None
    names = POSITIONS.get(raw[0], ())
    return {"type": raw[0], **dict(zip(names, raw[1:], strict=False))}


def foreign_event(named: dict[str, Any]) -> str | None:
    """Why an event under one of vLLM's names is not vLLM's, or None where it may be."""
    hashes = named.get("block_hashes", ())
    if isinstance(hashes, list) and any(type(one) is int and one < 0 for one in hashes):
        return f"signed block hash: {IS_SGLANG}"
    if named.get("medium") == SGLANG_MEDIUM:
        return f"medium {SGLANG_MEDIUM}: {IS_SGLANG}"
    if isinstance(named.get("lora_name"), dict):
        return f"a map where the adapter's name should be: {IS_SGLANG}"
    return None


def outline(value: Any) -> str:
    """Names and types of what arrived, without any value."""
    if isinstance(value, dict):
        return "map of " + ", ".join(str(key)[:24] for key in list(value)[:16])
    if isinstance(value, list):
        return "array of " + ", ".join(type(item).__name__ for item in value[:16])
    return type(value).__name__
