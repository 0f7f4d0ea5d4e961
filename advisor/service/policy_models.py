"""What is asked of policies over HTTP, and what comes back."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from kvready.advisor.modes import Need, Trigger
from kvready.advisor.policies import Mode, Policy
from kvready.advisor.service.models import Problem
from kvready.advisor.service.policy_view import ControlStatus, PolicyModel

MAX_REASON_CHARACTERS = 500
MAX_NAME_CHARACTERS = 128
# No control characters: what is said here is shown on terminals.
PRINTABLE = r"^[^\x00-\x1f\x7f-\x9f]*$"
SAYS_SOMETHING = r"^[^\x00-\x1f\x7f-\x9f]*[^\x00-\x20\x7f-\xa0][^\x00-\x1f\x7f-\x9f]*$"

Name = Annotated[str, Field(min_length=1, max_length=MAX_NAME_CHARACTERS, pattern=PRINTABLE)]
Reason = Annotated[
    str, Field(min_length=1, max_length=MAX_REASON_CHARACTERS, pattern=SAYS_SOMETHING)
]


class Said(BaseModel):
    """Who wants something, and why."""

    model_config = ConfigDict(extra="forbid", strict=True)

    reason: Reason = Field(description="Why; it is kept in the audit.")
    actor: str = Field(
        "",
        max_length=MAX_NAME_CHARACTERS,
        pattern=PRINTABLE,
        description="Who, by a name of yours.",
    )


class Change(Said):
    """What is wanted of a policy in one scope."""

    engine: Name = "*"
    pool: Name = "*"
    request_class: Name = "*"
    forced: bool = Field(
        False, description="In place of what a promotion lacks: gate, order, cool-down."
    )
    dry_run: bool = Field(False, description="Say what would happen, and change nothing.")


class ModeChange(Change):
    """Another mode."""

    # From JSON a mode is text: strict would want the enum itself.
    mode: Mode = Field(strict=False)


class ActionChange(Change):
    """An action on it."""

    version: Annotated[str, Field(max_length=MAX_NAME_CHARACTERS, pattern=PRINTABLE)] = Field(
        "", description="To try."
    )


class Changed(BaseModel):
    """A move that was made, or would be."""

    dry_run: bool
    trigger: Trigger
    actor: str
    reason: str
    before: PolicyModel
    after: PolicyModel


class Lack(BaseModel):
    """Something that a move needs and does not have."""

    need: Need
    says: str


class RefusedProblem(Problem):
    """A move that was not made."""

    lacks: list[Lack]


class NextStep(BaseModel):
    """What would bring a policy on, and what that lacks now."""

    action: str = Field(description="A mode to set, or resume, clear or revive.")
    lacks: list[Lack]
    forcible: bool = Field(description="Whether a person may force it, with a reason.")


class PolicyDetail(PolicyModel):
    """One policy in one scope, its evidence, and the way on."""

    next_step: NextStep | None = Field(description="None: it is as far as it goes.")
    evidence: dict[str, Any] | None = Field(
        description="The latest gate report of the version in force; none: none yet."
    )


class Policies(BaseModel):
    """Where everything stands."""

    policies: list[PolicyDetail]
    control: ControlStatus


class KillState(BaseModel):
    """What holds the kill switch now; nothing: policies may act again once commanded."""

    held_by: list[str]
    says: str


class GateReports(BaseModel):
    """Gate reports, newest first."""

    reports: list[dict[str, Any]]


class AuditEntries(BaseModel):
    """The latest entries of the audit, newest first, and its head."""

    head: str
    entries: list[dict[str, Any]]


def policy_of(name: str) -> Policy | None:
    """A policy by its name."""
    return next((policy for policy in Policy if policy == name), None)
