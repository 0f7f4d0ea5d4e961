"""Where people, the kill switch and the disk meet the control plane: as records in ingest order."""

from __future__ import annotations

import logging
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

from kvready.advisor.canary import Shares
from kvready.advisor.control import Control, ControlPlane, Outcome
from kvready.advisor.kill_switch import Holder, KillSwitch
from kvready.advisor.policies import ORDER
from kvready.advisor.service.keeping import Keeper
from kvready.advisor.service.replay_memory import state_directory
from kvready.advisor.settings import Settings
from kvready.collectors.errors import ServiceError
from kvready.collectors.records import KillSwitched, PoliciesRestored, PolicyCommanded

KILL_FILE = "kill"
LOOK_SECONDS = 0.05  # between two looks at the kill switch; flags look for themselves
SAY_HEAD_SECONDS = 3_600.0  # between two log lines that name the audit's head

Say = Callable[[Control], None]  # into its place in ingest order, and through the pipeline

logger = logging.getLogger(__name__)


class PolicyDesk:
    """One per sidecar that serves. All but `open` and the kill switch in the ingest thread."""

    def __init__(self, settings: Settings, seed: str = "") -> None:
        """`seed`: of a canary's draws, where a run is to be repeated."""
        self._settings = settings
        self.folder = policy_folder(settings)
        policies = settings.policies
        shares = Shares(policies.canary_percent, policies.control_percent)
        self.keeper = Keeper(self.folder, config_digest(settings), shares, seed)
        configured = policies.kill_file
        files = [self.folder / KILL_FILE, *([configured] if configured else [])]
        self.kill_switch = KillSwitch(files)
        self._restored: PoliciesRestored | None = None
        self._look_seconds = 0.0
        self._said_head = (0.0, "")
        self._who = ("", "")  # killed or revived last, and why

    def open(self) -> None:
        """Take the folder. Raises `ServiceError` if another process has it."""
        policies = self._settings.policies
        promote = [one for one in ORDER if getattr(policies, f"{one}_auto_promote")]
        starts = {one: getattr(policies, one) for one in ORDER}
        self._restored = self.keeper.open(starts, promote)

    def guard(self, control: ControlPlane, say: Say, now_seconds: float) -> None:
        """Tell the control plane what changed around it. Often; costs microseconds."""
        if self._restored is not None:
            restored, self._restored = self._restored, None
            self.keeper.follow(control)
            say(restored)
        if now_seconds < self._look_seconds:
            return
        self._look_seconds = now_seconds + LOOK_SECONDS
        self.look(control, say)
        changed = self.keeper.tick(now_seconds)
        if changed is not None:
            say(changed)
        self._say_head(now_seconds)

    def look(self, control: ControlPlane, say: Say) -> None:
        """Tell the control plane what holds the kill switch now, where that changed."""
        self.kill_switch.keep_signal()
        held_by = tuple(map(str, self.kill_switch.held_by))
        if held_by != control.killed_by:
            (actor, reason), self._who = self._who, ("", "")
            say(KillSwitched(held_by=held_by, actor=actor, reason=reason))

    def command(self, said: PolicyCommanded, control: ControlPlane, say: Say) -> Outcome:
        """What became of a command, once its record has gone through the pipeline."""
        say(said)
        if control.latest is None:
            raise ServiceError("the command was not ingested; ask again")
        return control.latest

    def kill(self, actor: str, reason: str) -> tuple[Holder, ...]:
        """Hold the kill switch, at once. Any thread; the audit learns of it with the next look."""
        self._who = (actor, reason)
        self.kill_switch.kill(reason)
        return self.kill_switch.held_by

    def revive(
        self, control: ControlPlane, say: Say, actor: str, reason: str
    ) -> tuple[Holder, ...]:
        """Let go of it; what still holds it."""
        self.look(control, say)  # a kill that is over before it was seen must have its effect
        self._who = (actor, reason)
        held_by = self.kill_switch.revive()
        self.look(control, say)
        return held_by

    def close(self) -> None:
        """Safe twice."""
        self.keeper.close()

    def _say_head(self, now_seconds: float) -> None:
        """Now and then, and only where it moved: what `audit verify --expect-head` can be given."""
        said_seconds, said = self._said_head
        chain = self.keeper.audit.chain
        if chain.head != said and (not said or now_seconds - said_seconds >= SAY_HEAD_SECONDS):
            self._said_head = (now_seconds, chain.head)
            logger.warning("audit head is %s at entry %d", chain.head, chain.last_sequence)


def policy_folder(settings: Settings) -> Path:
    """Where one sidecar keeps its policies: by its port, since each has one of its own."""
    configured = settings.policies.policy_folder
    if configured is not None:
        return configured
    return state_directory(settings.taps.state_dir) / f"policies-{settings.api.port}"


def config_digest(settings: Settings) -> str:
    """Names the effective settings, so that an audit entry can be held against them."""
    return sha256(settings.model_dump_json().encode()).hexdigest()[:16]
