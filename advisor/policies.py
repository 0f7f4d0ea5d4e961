"""Policies, how far each may go, and what stands in its way: the words of every gate and flag."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Policy(StrEnum):
    """What the sidecar may one day decide, each switched on its own."""

    DEDUP = "dedup"
    BALANCE = "balance"
    GPU_COPY = "gpu_copy"


# Each later one reaches further: errors of control come to light before the GPU is touched.
ORDER = (Policy.DEDUP, Policy.BALANCE, Policy.GPU_COPY)


class Mode(StrEnum):
    """How far a policy goes; each includes the ones before it."""

    OFF = "off"  # not evaluated
    OBSERVE = "observe"  # inputs and predictions only
    SHADOW = "shadow"  # decided, paired with what the engine did
    ADVISE = "advise"  # shown to people, with reasons
    CANARY = "canary"  # acts on a share, beside a control
    ENFORCE = "enforce"  # acts on all but the control share

    @property
    def rank(self) -> int:
        """Its place in the order."""
        return MODES.index(self)

    @property
    def acts(self) -> bool:
        """Whether anything may leave for the engine."""
        return self in (Mode.CANARY, Mode.ENFORCE)


MODES = tuple(Mode)


class Overlay(StrEnum):
    """What lies over a mode; any but NONE answers OFF."""

    NONE = "none"
    PAUSED = "paused"  # by a person, or an inconclusive gate
    ROLLED_BACK = "rolled_back"  # harm was measured: latched until cleared
    KILLED = "killed"  # the kill switch


class Finding(StrEnum):
    """Why a policy has nothing to do here: it is settled without ever acting."""

    NATIVE = "native"  # the engine does it already
    NO_HOOK = "no_hook"  # nothing in this engine could act on it
    NO_BENEFIT = "no_benefit"  # what it relieves is not the constraint


class Hazard(StrEnum):
    """What makes a policy step back by itself."""

    BAD_PREDICTIONS = "bad_predictions"  # clears by itself
    NO_BENEFIT = "no_benefit"
    HARM = "harm"  # measured: latches
    MISMATCH = "mismatch"  # of gathered bytes: latches
    KNOWN_HAZARD = "known_hazard"  # of this version of the engine: latches
    TELEMETRY_LOST = "telemetry_lost"
    ENGINE_RESTARTED = "engine_restarted"
    ENGINE_UPGRADED = "engine_upgraded"
    STALL = "stall"
    INCONCLUSIVE = "inconclusive"  # a canary that does not conclude
    KEEPING_FAILED = "keeping_failed"  # audit or store
    SIDECAR_RESTARTED = "sidecar_restarted"


class Scope(msgspec.Struct, frozen=True, order=True):
    """Where a policy's switch holds: an engine, one of its pools, a request class; `*`: all."""

    engine: str = "*"
    pool: str = "*"
    request_class: str = "*"


class PolicyState(msgspec.Struct, frozen=True, kw_only=True):
    """One policy in one scope. Seconds are event time of the sidecar's host."""

    policy: Policy
    scope: Scope = Scope()
    mode: Mode = Mode.SHADOW
    overlay: Overlay = Overlay.NONE
    reason: str = ""  # of the last change
    since_seconds: float = 0.0
    revision: int = 0  # rises with every change
    version: str = "1"  # of the policy that acts; another may shadow beside it
    next_version: str = ""  # that shadows beside it; empty: none
    held_by: str = ""  # the `Hazard` that it last gave way to, until that is over; else empty
    report_id: str = ""  # of the gate report on which it acts
    forced: bool = False  # it acts by a person's reason, in place of what a promotion needs
    clean_windows: int = 0  # without harm, in a row
    rollbacks: int = 0  # and demotions for what it did, since it was last settled
    cooldown_until_seconds: float = 0.0  # no promotion before
    finding: str = ""  # the latest `Finding` of its gates; empty: none
    finding_seconds: float = 0.0
