"""What goes wrong on request: `NAME@SECONDS`, or `NAME@SECONDS:LASTS`, in simulated seconds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from enum import StrEnum

import msgspec

from kvready.collectors.errors import SettingsError

MAX_FAULTS = 64
DRIFT_DOUBLES_SECONDS = 600.0  # loads twice as slow after so long


class FaultName(StrEnum):
    """What can go wrong, and what it does while it lasts."""

    SLOW_LINK = "slow_link"  # copies take three times as long
    DRIFT = "drift"  # copies get slower and slower
    SLOW_COMPUTE = "slow_compute"  # batches take half as long again
    ERRATIC = "erratic"  # batches take many times as long, by turns: no model can follow
    CONVOY = "convoy"  # many requests of one new document at once, again and again
    SLOW_LEADER = "slow_leader"  # who is first to bring a prefix may not run for a while
    STALL = "stall"  # the engine plans nothing
    SILENT = "silent"  # the observer says nothing
    GAP = "gap"  # KV events are lost on the way; a replay has them
    RESTART = "restart"  # another incarnation: empty caches, numbers from 0
    COUNTERS = "counters"  # bytes loaded are counted twice on /metrics


LASTS = {
    FaultName.SLOW_LINK: 60.0,
    FaultName.DRIFT: math.inf,
    FaultName.SLOW_COMPUTE: 60.0,
    FaultName.ERRATIC: 60.0,
    FaultName.CONVOY: 1.0,
    FaultName.SLOW_LEADER: 300.0,
    FaultName.STALL: 10.0,
    FaultName.SILENT: 45.0,
    FaultName.GAP: 2.0,
    FaultName.RESTART: 0.0,
    FaultName.COUNTERS: math.inf,
}
SLOW_LINK_FACTOR = 3.0
SLOW_LEADER_SECONDS = 3.0  # until its adapter or its grammar is there, or nobody goes before it
SLOW_COMPUTE_FACTOR = 1.5
ERRATIC_FACTOR = 20.0
ERRATIC_SECONDS = 0.5  # slow so long, then as long not


class Fault(msgspec.Struct, frozen=True):
    """One thing that goes wrong, from a moment on, for a while. Simulated seconds."""

    name: FaultName
    begin_seconds: float
    lasts_seconds: float

    @property
    def end_seconds(self) -> float:
        """When it is over."""
        return self.begin_seconds + self.lasts_seconds


def parse_fault(text: str) -> Fault:
    """Raises `SettingsError` that names the form and the faults there are."""
    name, _, when = text.partition("@")
    begin, _, lasts = when.partition(":")
    try:
        known = FaultName(name)
        fault = Fault(known, float(begin), float(lasts) if lasts else LASTS[known])
    except ValueError:
        fault = None
    if fault is None or not fault.begin_seconds >= 0.0 or not fault.lasts_seconds >= 0.0:
        raise SettingsError(
            f"{text!r} is no fault; write NAME@SECONDS or NAME@SECONDS:LASTS, with NAME one of "
            f"{', '.join(FaultName)}"
        )
    return fault


class Faults:
    """All that goes wrong in a run, asked by simulated time."""

    def __init__(self, faults: Iterable[Fault] = ()) -> None:
        self.faults = tuple(sorted(faults, key=lambda fault: fault.begin_seconds))
        if len(self.faults) > MAX_FAULTS:
            raise SettingsError(f"{len(self.faults)} faults; name at most {MAX_FAULTS}")

    def begin(self, fault: Fault) -> None:
        """One more goes wrong, of those that are asked for by time. Raises `SettingsError`."""
        if len(self.faults) >= MAX_FAULTS:
            raise SettingsError(f"{MAX_FAULTS} faults are under way or over; no more are taken")
        self.faults = (*self.faults, fault)

    def named(self, name: FaultName) -> Sequence[Fault]:
        """All of one name, in order."""
        return [fault for fault in self.faults if fault.name is name]

    def active(self, name: FaultName, now: float) -> Fault | None:
        """The one of that name that is on, if any."""
        for fault in self.faults:
            if fault.name is name and fault.begin_seconds <= now < fault.end_seconds:
                return fault
        return None

    def load_factor(self, now: float) -> float:
        """How many times as long a copy takes."""
        factor = SLOW_LINK_FACTOR if self.active(FaultName.SLOW_LINK, now) else 1.0
        drift = self.active(FaultName.DRIFT, now)
        if drift is not None:
            factor *= 2.0 ** ((now - drift.begin_seconds) / DRIFT_DOUBLES_SECONDS)
        return factor

    def compute_factor(self, now: float) -> float:
        """How many times as long a batch takes."""
        factor = SLOW_COMPUTE_FACTOR if self.active(FaultName.SLOW_COMPUTE, now) else 1.0
        erratic = self.active(FaultName.ERRATIC, now)
        if erratic is not None and (now - erratic.begin_seconds) // ERRATIC_SECONDS % 2 == 0:
            factor *= ERRATIC_FACTOR
        return factor

    def stall_seconds(self, now: float) -> float:
        """How long nothing is planned from now."""
        stall = self.active(FaultName.STALL, now)
        return 0.0 if stall is None else stall.end_seconds - now
