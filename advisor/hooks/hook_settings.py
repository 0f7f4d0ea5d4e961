"""What a hook inside an engine is told at its start, in variables of the engine's process."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping

import msgspec

from kvready.advisor.policies import Scope
from kvready.collectors.errors import SettingsError

FLAGS_VARIABLE = "KVREADY_HOOK_FLAGS"
TOKEN_VARIABLE = "KVREADY_HOOK_TOKEN"
ENGINE_VARIABLE = "KVREADY_HOOK_ENGINE"
POOL_VARIABLE = "KVREADY_HOOK_POOL"
HOLD_VARIABLE = "KVREADY_HOOK_HOLD_SECONDS"
OFF = "off"
HOLD_SECONDS = 10.0  # of one request, all its holds together
MAX_HOLD_SECONDS = 60.0


class HookSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where the flags are, for whom they are asked, and how long anybody may be held."""

    flags_url: str
    token: str = ""
    scope: Scope = Scope()
    hold_seconds: float = HOLD_SECONDS


def hook_settings(environment: Mapping[str, str] | None = None) -> HookSettings | None:
    """None: the hook is off, and the engine is a stock one. Raises `SettingsError`."""
    told = os.environ if environment is None else environment
    url = told.get(FLAGS_VARIABLE, "")
    if url in ("", OFF):
        return None
    return HookSettings(
        flags_url=url,
        token=told.get(TOKEN_VARIABLE, ""),
        scope=Scope(engine=told.get(ENGINE_VARIABLE) or "*", pool=told.get(POOL_VARIABLE) or "*"),
        hold_seconds=_hold_seconds(told.get(HOLD_VARIABLE, "")),
    )


def _hold_seconds(text: str) -> float:
    if not text:
        return HOLD_SECONDS
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0.0 < seconds <= MAX_HOLD_SECONDS:
        raise SettingsError(
            f"{HOLD_VARIABLE}={text} is no time to hold a request; write seconds, more than 0 and "
            f"at most {MAX_HOLD_SECONDS:.0f}"
        )
    return seconds
