"""Which hook carries out which policy in which engine: a table that hooks obey and docs show."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from kvready.advisor.policies import Policy

SCHEDULER_HOOK = "scheduler hook"
VLLM = "vLLM"
ANY_OTHER = "any other"


class Support(StrEnum):
    """How far a hook goes."""

    WORKS = "works"
    CAVEAT = "caveat"
    REFUSES = "refuses"


class Row(NamedTuple):
    """One version, hook and policy."""

    engine: str
    version: str  # major and minor
    hook: str
    policy: Policy
    support: Support
    says: str


ORDER_ALONE = (
    "loads run before admission there, so that no batch stands still for one: the ratio of "
    "Algorithm 1 removes nothing and decode fill has no place; what is chosen is when loads start, "
    "and on a busy link that a request computes again what it could load (`max_load_tokens`), "
    "under first-come-first-served order, and with an offloading connector whose host tier is an "
    "LRU of single blocks"
)
UNKNOWN = "its private interface was not tested: a stock scheduler, watched from outside (level 2)"

COMPATIBILITY = (
    Row(
        VLLM,
        "0.32",
        SCHEDULER_HOOK,
        Policy.DEDUP,
        Support.WORKS,
        "holds those whose prefix another computes; stays out where chunks are not capped, since "
        "nothing is computed twice there",
    ),
    Row(VLLM, "0.32", SCHEDULER_HOOK, Policy.BALANCE, Support.CAVEAT, ORDER_ALONE),
    Row(
        VLLM,
        "0.32",
        SCHEDULER_HOOK,
        Policy.GPU_COPY,
        Support.REFUSES,
        "a scheduler moves no bytes: this is the offloading spec's",
    ),
    Row(
        VLLM,
        "0.28",
        SCHEDULER_HOOK,
        Policy.DEDUP,
        Support.CAVEAT,
        "holds likewise, but the observer refuses this version: who was held is told to nobody, "
        "and no gate can judge it",
    ),
    Row(
        VLLM,
        "0.28",
        SCHEDULER_HOOK,
        Policy.BALANCE,
        Support.REFUSES,
        "no host tier of this version was tested",
    ),
    Row(
        VLLM,
        "0.28",
        SCHEDULER_HOOK,
        Policy.GPU_COPY,
        Support.REFUSES,
        "a scheduler moves no bytes: this is the offloading spec's",
    ),
    *(Row(VLLM, ANY_OTHER, SCHEDULER_HOOK, policy, Support.REFUSES, UNKNOWN) for policy in Policy),
)


def support(engine: str, version: str, hook: str, policy: Policy) -> Row:
    """The row of this very version (`0.32.1` is 0.32), or that of any other."""
    short = ".".join(version.split(".")[:2])
    rows = {
        row.version: row
        for row in COMPATIBILITY
        if (row.engine, row.hook, row.policy) == (engine, hook, policy)
    }
    return rows.get(short) or rows[ANY_OTHER]


def compatibility_page() -> str:
    """The page for the docs."""
    lines = ["# Hooks and policies, by engine and version", ""]
    lines += ["A hook obeys this table; in a version that is not in it no policy acts.", ""]
    lines += ["| engine | version | hook | policy | support | what to know |", "|---" * 6 + "|"]
    lines += [f"| {' | '.join(row[:3])} | `{row.policy}` | {row.support} | {row.says} |"
              for row in COMPATIBILITY]  # fmt: skip
    return "\n".join(lines) + "\n"
