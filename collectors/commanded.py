"""What people and guards say to policies, as a recording keeps it.

Collectors know nothing of policies: their names, modes and overlays are plain words here, and what
they mean is the advisor's business.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from kvready.collectors.record import Record

EVERYWHERE = "*"


class PolicyAction(StrEnum):
    """What a person may want of a policy; the kill switch is a fact of its own."""

    SET = "set"  # another mode
    PAUSE = "pause"
    RESUME = "resume"
    CLEAR = "clear"  # a roll-back
    TRY = "try"  # another version in shadow, beside the one in force
    ADOPT = "adopt"  # that version


class RestoredPolicy(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Where one policy stood in one scope when the sidecar started. Seconds are durations."""

    policy: str
    mode: str
    overlay: str = "none"
    engine: str = EVERYWHERE
    pool: str = EVERYWHERE
    request_class: str = EVERYWHERE
    held_by: str = ""
    reason: str = ""
    revision: int = 0
    version: str = "1"
    next_version: str = ""
    report_id: str = ""
    forced: bool = False
    rollbacks: int = 0
    cooldown_seconds: float = 0.0  # that are left
    finding: str = ""
    finding_age_seconds: float = 0.0


class PolicyCommanded(Record, frozen=True, kw_only=True, tag="policy_commanded"):
    """A person wants something of a policy; replays decide it again from the same state.

    `revision`: of the state that the person saw; None: whatever it is by now.
    """

    action: PolicyAction
    policy: str
    actor: str
    reason: str
    mode: str = ""  # to set
    version: str = ""  # to try
    engine: str = EVERYWHERE
    pool: str = EVERYWHERE
    request_class: str = EVERYWHERE
    forced: bool = False
    revision: int | None = None


class KillSwitched(Record, frozen=True, kw_only=True, tag="kill_switched"):
    """The kill switch changed: what holds it now (file, environment, api, signal), or nothing."""

    held_by: tuple[str, ...]
    actor: str = ""
    reason: str = ""


class KeepingChanged(Record, frozen=True, kw_only=True, tag="keeping_changed"):
    """Whether decisions about policies can be kept: `failing` names the audit, the store, both."""

    failing: tuple[str, ...]


class PoliciesRestored(Record, frozen=True, kw_only=True, tag="policies_restored"):
    """Where policies stood when the sidecar started, which may promote themselves, and the draws.

    What `canary_seed` and the shares fix is drawn by nobody else, so that a replay treats the same.
    """

    policies: tuple[RestoredPolicy, ...]
    auto_promote: tuple[str, ...] = ()
    canary_seed: str = ""
    canary_percent: int = 50
    control_percent: int = 5
