"""How policies move between modes: one table of what is possible, and nothing outside it. Pure.

A row says from which modes something may happen, under which overlays, what it leads to, who may,
and what it needs. `forcible` needs give way to a person who forces with a reason; `always` needs
give way to nobody. Only what acts can be paused, and only what does not can lie rolled back.
`docs/policies.md` is generated from here.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from kvready.advisor.policies import MODES, Hazard, Mode, Overlay, Policy, PolicyState, Scope

MAX_STATES = 64  # policies in scopes
SETTLED_WINDOWS = 8  # enforced without harm, in a row
FINDING_DAYS = 7  # that a policy with nothing to do counts as settled
CLEAN_WINDOWS = 4  # after bad predictions, before a promotion
REPORT_SECONDS = 900.0  # age at which a gate report is no longer current
COOLDOWN_SECONDS = 600.0  # after the first fall; doubles with each
MAX_COOLDOWN_SECONDS = 86_400.0
MAX_ERRORS = 4  # gate reports in a row whose evidence is broken
MAX_CANARY_SECONDS = 3 * 86_400.0  # without a verdict


class Kind(StrEnum):
    """Who moved a policy."""

    PERSON = "person"
    AUTO = "auto"


class Trigger(StrEnum):
    """What may happen to a policy: a command, a verdict, a hazard, the kill switch."""

    LOWER = "lower"
    RAISE = "raise"
    CANARY = "canary"
    ENFORCE = "enforce"
    PAUSE = "pause"
    RESUME = "resume"
    CLEAR = "clear"
    TRY = "try"
    ADOPT = "adopt"
    FOUND = "found"
    LIFTED = "lifted"
    FORGIVEN = "forgiven"
    SETTLED = "settled"
    BAD_PREDICTIONS = Hazard.BAD_PREDICTIONS.value
    NO_BENEFIT = Hazard.NO_BENEFIT.value
    HARM = Hazard.HARM.value
    MISMATCH = Hazard.MISMATCH.value
    KNOWN_HAZARD = Hazard.KNOWN_HAZARD.value
    TELEMETRY_LOST = Hazard.TELEMETRY_LOST.value
    ENGINE_RESTARTED = Hazard.ENGINE_RESTARTED.value
    ENGINE_UPGRADED = Hazard.ENGINE_UPGRADED.value
    STALL = Hazard.STALL.value
    INCONCLUSIVE = Hazard.INCONCLUSIVE.value
    KEEPING_FAILED = Hazard.KEEPING_FAILED.value
    SIDECAR_RESTARTED = Hazard.SIDECAR_RESTARTED.value
    KILLED = "killed"
    REVIVED = "revived"


class Need(StrEnum):
    """What a move may lack."""

    ROW = "row"
    REASON = "reason"
    REVISION = "revision"
    GATE = "gate"
    NEXT_GATE = "next_gate"
    DATA = "data"
    ORDER = "order"
    COOLED = "cooled"
    CLEAN = "clean"
    ALIVE = "alive"
    KEPT = "kept"
    ROOM = "room"


NEEDS = {
    Need.ROW: "a row of this table for the mode and overlay that it is in",
    Need.REASON: "a reason",
    Need.REVISION: "the revision that the state has now, where one was named; read it again",
    Need.GATE: f"a gate report of it that passes, made in this mode since the last change and in "
    f"the last {REPORT_SECONDS / 60:.0f} minutes",
    Need.NEXT_GATE: "such a report of the version that shadows beside it",
    Need.DATA: "such a report whose data gate passes and which does not fail",
    Need.ORDER: "every earlier policy settled (dedup, then balance, then gpu_copy): enforced for "
    f"{SETTLED_WINDOWS} clean windows, or found native, no_hook or no_benefit in the last "
    f"{FINDING_DAYS} days",
    Need.COOLED: f"its cool-down over: {COOLDOWN_SECONDS / 60:.0f} minutes after its first fall, "
    f"twice as long after each further one, {MAX_COOLDOWN_SECONDS / 3600:.0f} hours at most; "
    "forgotten once it is settled",
    Need.CLEAN: f"{CLEAN_WINDOWS} clean windows since its predictions were bad",
    Need.ALIVE: "the kill switch off",
    Need.KEPT: "audit and store taking what is written",
    Need.ROOM: f"fewer than {MAX_STATES} policies and scopes",
}


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One possible move. `target` None: the mode stays, or is the one asked for."""

    trigger: Trigger
    who: Kind
    sources: tuple[Mode, ...]
    overlays: tuple[Overlay, ...] = (Overlay.NONE,)
    target: Mode | None = None  # the highest it leaves; None: as it was, or what was asked for
    overlay: Overlay | None = None  # that it leaves; None: as it was
    forcible: tuple[Need, ...] = ()
    always: tuple[Need, ...] = ()
    by_itself: bool = False  # also without a person, where `auto_promote` is set
    falls: bool = False  # counts as a fall: a longer cool-down
    says: str = ""


# Moves that leave it acting, or not, as before: what was counted and judged since stays good.
ASIDE = (Trigger.FOUND, Trigger.TRY, Trigger.SETTLED, Trigger.FORGIVEN)
HELD = tuple(Trigger(hazard) for hazard in Hazard)
ACTING = (Mode.CANARY, Mode.ENFORCE)
QUIET = tuple(mode for mode in MODES if mode not in ACTING)
OVER = (Overlay.NONE, Overlay.PAUSED, Overlay.ROLLED_BACK)
FREE = (Overlay.NONE, Overlay.PAUSED)
PROMOTED = (Need.REASON, Need.ALIVE, Need.KEPT)
PROVED = (Need.GATE, Need.ORDER, Need.COOLED, Need.CLEAN)


def _person(trigger: Trigger, sources: tuple[Mode, ...], **rest: object) -> Row:
    return msgspec.structs.replace(
        Row(trigger=trigger, who=Kind.PERSON, sources=sources, always=(Need.REASON,)), **rest
    )


def _steps_back(trigger: Trigger, says: str, target: Mode = Mode.ADVISE) -> Row:
    """It no longer acts, and is in the way of nobody who shows again that it may."""
    return Row(
        trigger=trigger, who=Kind.AUTO, sources=ACTING, overlays=FREE, target=target,
        falls=trigger is not Trigger.ENGINE_UPGRADED, says=says,
    )  # fmt: skip


def _latches(trigger: Trigger, sources: tuple[Mode, ...], says: str) -> Row:
    return Row(
        trigger=trigger, who=Kind.AUTO, sources=sources, overlays=FREE, target=Mode.ADVISE,
        overlay=Overlay.ROLLED_BACK, falls=True, says=says,
    )  # fmt: skip


def _holds(trigger: Trigger, says: str, sources: tuple[Mode, ...] = ACTING) -> Row:
    return Row(
        trigger=trigger, who=Kind.AUTO, sources=sources, overlay=Overlay.PAUSED, says=says
    )  # fmt: skip


TABLE = (
    _person(
        Trigger.LOWER, MODES[1:], overlays=OVER, says="any mode below; it needs a reason alone"
    ),
    _person(
        Trigger.RAISE, QUIET[:-1], overlays=OVER, by_itself=True, always=PROMOTED,
        says="any mode up to advise: nothing leaves for the engine; by itself from shadow alone",
    ),
    _person(
        Trigger.CANARY, (Mode.ADVISE,), target=Mode.CANARY, by_itself=True,
        forcible=PROVED, always=PROMOTED, says="it begins to act, beside a control",
    ),
    _person(
        Trigger.ENFORCE, (Mode.CANARY,), target=Mode.ENFORCE, by_itself=True,
        forcible=PROVED, always=PROMOTED, says="it acts on all but the control share",
    ),
    _person(
        Trigger.PAUSE, ACTING, overlays=FREE, overlay=Overlay.PAUSED,
        says="OFF until a person resumes it",
    ),
    _person(
        Trigger.RESUME, ACTING, overlays=(Overlay.PAUSED,), overlay=Overlay.NONE,
        forcible=(Need.DATA,), always=PROMOTED, says="on in the mode that it was paused in",
    ),
    _person(
        Trigger.CLEAR, QUIET, overlays=(Overlay.ROLLED_BACK,), overlay=Overlay.NONE,
        always=(Need.REASON, Need.KEPT), says="the latch of a roll-back; its cool-down stays",
    ),
    _person(
        Trigger.TRY, MODES, overlays=OVER, always=(Need.REASON, Need.KEPT),
        says="another version shadows beside the one in force",
    ),
    _person(
        Trigger.ADOPT, QUIET, overlays=OVER, always=PROMOTED,
        says="the version that shadowed takes over; nothing acts",
    ),
    _person(
        Trigger.ADOPT, ACTING, target=Mode.CANARY,
        forcible=(Need.NEXT_GATE, Need.COOLED), always=PROMOTED,
        says="the version that shadowed takes over, as a canary",
    ),
    _steps_back(
        Trigger.BAD_PREDICTIONS,
        f"no promotion until {CLEAN_WINDOWS} clean windows have passed",
    ),
    _steps_back(
        Trigger.NO_BENEFIT, "its benefit gate failed, or its gates found that it has nothing to do"
    ),
    _steps_back(Trigger.ENGINE_UPGRADED, "what was learned of the engine before no longer counts"),
    _latches(Trigger.HARM, ACTING, "measured harm: latched until a person clears it"),
    _latches(Trigger.MISMATCH, MODES, "wrong bytes: latched likewise"),
    _latches(Trigger.KNOWN_HAZARD, MODES, "known to go wrong here: latched likewise"),
    _holds(Trigger.TELEMETRY_LOST, "taps lost or silent, or the gate's evidence broken"),
    _holds(Trigger.ENGINE_RESTARTED, "its caches are cold"),
    _holds(Trigger.STALL, "batches stopped while requests wait"),
    _holds(Trigger.KEEPING_FAILED, "audit or store refuse what is written"),
    _holds(Trigger.SIDECAR_RESTARTED, "it comes back as it was, and says OFF"),
    _holds(
        Trigger.INCONCLUSIVE,
        f"no verdict after {MAX_CANARY_SECONDS / 86_400:.0f} days of canary: a person decides",
        (Mode.CANARY,),
    ),
    Row(
        trigger=Trigger.LIFTED, who=Kind.AUTO, sources=ACTING, overlays=(Overlay.PAUSED,),
        overlay=Overlay.NONE, always=(Need.DATA, Need.ALIVE, Need.KEPT),
        says="ends a pause that no person made, inconclusive canaries apart",
    ),
    Row(
        trigger=Trigger.FORGIVEN, who=Kind.AUTO, sources=QUIET, overlays=OVER,
        always=(Need.CLEAN,), says="predictions were good again",
    ),
    Row(
        trigger=Trigger.SETTLED, who=Kind.AUTO, sources=(Mode.ENFORCE,),
        says=f"enforced for {SETTLED_WINDOWS} clean windows: the next policy may go on",
    ),
    Row(
        trigger=Trigger.FOUND, who=Kind.AUTO, sources=MODES, overlays=OVER,
        says="its gates found it native, without a hook or without benefit, or no longer so",
    ),
    Row(
        trigger=Trigger.KILLED, who=Kind.AUTO, sources=ACTING, overlays=FREE, target=Mode.ADVISE,
        overlay=Overlay.KILLED, says="what acts falls to advise: reviving starts nothing",
    ),
    Row(
        trigger=Trigger.KILLED, who=Kind.AUTO, sources=QUIET, overlays=OVER,
        overlay=Overlay.KILLED, says="over whatever else lies there",
    ),
    Row(
        trigger=Trigger.REVIVED, who=Kind.AUTO, sources=QUIET, overlays=(Overlay.KILLED,),
        says="once all that holds it lets go; a roll-back's latch is there again",
    ),
)  # fmt: skip


class Transition(msgspec.Struct, frozen=True, kw_only=True):
    """A policy moved. Seconds are event time, `ingest` the record that moved it."""

    policy: Policy
    scope: Scope
    before: PolicyState
    after: PolicyState
    actor: str
    kind: Kind
    trigger: Trigger
    reason: str
    ingest: int
    seconds: float
    forced: bool = False
    report_id: str = ""


class Change(msgspec.Struct, frozen=True):
    """What goes with a move, beside its row."""

    reason: str
    to: Mode | None = None  # where the row leaves it open
    version: str = ""  # to try
    forced: bool = False
    finding: str = ""


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """A move was not made, and nothing changed: what it lacked."""

    policy: str
    scope: Scope
    trigger: str
    lacks: tuple[Need, ...]
    says: str  # for a person
    state: PolicyState | None = None


def row_for(trigger: Trigger, state: PolicyState) -> Row | None:
    """The move that this is, in the mode and under the overlay of now."""
    for row in TABLE:
        if row.trigger is trigger and state.mode in row.sources and state.overlay in row.overlays:
            return row
    return None


def moved(
    row: Row, state: PolicyState, change: Change, report_id: str, now_seconds: float
) -> PolicyState:
    """The state after a move."""
    mode = change.to or state.mode
    if row.target is not None:
        mode = row.target if row.who is Kind.PERSON else min(mode, row.target, key=MODES.index)
    overlay = state.overlay if row.overlay in (None, Overlay.KILLED) else row.overlay
    if overlay is Overlay.PAUSED and not mode.acts:
        overlay = Overlay.NONE
    falls = state.rollbacks + row.falls
    after = msgspec.structs.replace(
        state,
        mode=mode,
        overlay=overlay,
        reason=change.reason,
        revision=state.revision + 1,
        held_by=_held_by(row, state, overlay),
        rollbacks=0 if row.trigger is Trigger.SETTLED else falls,
    )
    if row.falls:
        until_seconds = now_seconds + cooldown_seconds(falls)
        after = msgspec.structs.replace(
            after, cooldown_until_seconds=max(until_seconds, state.cooldown_until_seconds)
        )
    if row.trigger not in ASIDE:
        after = msgspec.structs.replace(after, since_seconds=now_seconds, clean_windows=0)
    if mode is not state.mode or row.trigger is Trigger.ADOPT:
        after = msgspec.structs.replace(
            after,
            report_id=report_id if mode.acts else "",
            forced=change.forced and mode.acts,
        )
    return _of_its_kind(row, after, change, now_seconds)


def _of_its_kind(row: Row, after: PolicyState, change: Change, now_seconds: float) -> PolicyState:
    match row.trigger:
        case Trigger.TRY:
            return msgspec.structs.replace(after, next_version=change.version)
        case Trigger.ADOPT:
            return msgspec.structs.replace(after, version=after.next_version, next_version="")
        case Trigger.FOUND:
            return msgspec.structs.replace(
                after, finding=change.finding, finding_seconds=now_seconds
            )
        case _:
            return after


def _held_by(row: Row, state: PolicyState, overlay: Overlay) -> str:
    """What it gave way to, as long as that stands in its way."""
    if row.trigger in HELD:
        return str(row.trigger)
    lets_go = row.trigger in (
        Trigger.CANARY, Trigger.ENFORCE, Trigger.PAUSE, Trigger.RESUME, Trigger.CLEAR,
        Trigger.LIFTED, Trigger.FORGIVEN,
    )  # fmt: skip
    is_over = state.overlay is Overlay.PAUSED and overlay is Overlay.NONE
    return "" if lets_go or is_over else state.held_by


def cooldown_seconds(falls: int) -> float:
    """How long no promotion follows the latest of so many falls."""
    # Doubling 2 ** 1,000 times would overflow; the bound is reached long before.
    return min(COOLDOWN_SECONDS * 2.0 ** min(max(falls, 1) - 1, 32), MAX_COOLDOWN_SECONDS)
