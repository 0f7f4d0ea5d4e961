"""Counters of vLLM that are known to be wrong, by version, and what is done about each.

A counter that is wrong in the running version, or may be because the version is not known, is
refused with the reason: a number that cannot be trusted is worse than none. The page
docs/vllm-counters.md is generated from this table.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import NamedTuple

Version = tuple[int, int, int]

UNKNOWN_VERSION = "the engine's version is not known"


class Action(StrEnum):
    """What becomes of a counter within a hazard's versions."""

    REFUSE = "refused"
    CAUTION = "shown with a note"


class CounterHazard(NamedTuple):
    """One defect of one or more counters. `since` None: from the start; `until` None: still so."""

    metrics: tuple[str, ...]
    since: Version | None
    until: Version | None  # the first version that is right
    wrong: str
    action: Action
    instead: str
    sources: tuple[str, ...]

    def applies(self, version: Version | None) -> bool:
        """Whether that version has the defect; one that is not known may have it."""
        if version is None:
            return True
        return (self.since is None or version >= self.since) and (
            self.until is None or version < self.until
        )


COUNTER_HAZARDS = (
    CounterHazard(
        ("vllm:prefix_cache_queries", "vllm:prefix_cache_hits"),
        None,
        (0, 32, 0),
        "counted at each scheduling attempt: a request that a connector defers, or that finds "
        "no free blocks, counts many times. Mended after 0.28; 0.32 is the first version in which "
        "the counting was read to be right",
        Action.REFUSE,
        "`vllm:prompt_tokens_by_source`, which counts a prompt once",
        ("vllm-project/vllm#43736", "vllm-project/vllm#48860"),
    ),
    CounterHazard(
        ("vllm:prefix_cache_queries", "vllm:prefix_cache_hits"),
        None,
        (0, 12, 0),
        "inflated by what preempted requests find again (30 % hits on random prompts)",
        Action.REFUSE,
        "nothing at this version",
        ("vllm-project/vllm#25780", "vllm-project/vllm#25787"),
    ),
    CounterHazard(
        ("vllm:external_prefix_cache_queries", "vllm:external_prefix_cache_hits"),
        None,
        (0, 14, 0),
        "counting whole prompts as queries instead of what was left after the local hit, and "
        "miscounting hits of asynchronous connectors",
        Action.REFUSE,
        "nothing at this version",
        ("vllm-project/vllm#30522", "vllm-project/vllm#28585"),
    ),
    CounterHazard(
        ("vllm:external_prefix_cache_queries",),
        (0, 14, 0),
        None,
        "requests with prompt_logprobs skip the cache and count as misses",
        Action.CAUTION,
        "`vllm:prompt_tokens_by_source`",
        ("vllm-project/vllm#57596",),
    ),
)


def parse_version(text: str | None) -> Version | None:
    """The release that a version string names: `0.32.1rc1+cpu` is (0, 32, 1). None: no version."""
    match = re.match(r"v?(\d+)\.(\d+)(?:\.(\d+))?", text or "")
    if match is None:
        return None
    version = (int(match[1]), int(match[2]), int(match[3] or 0))
    # What a build from source without tags calls itself.
    return None if version in ((0, 0, 0), (0, 1, 0)) else version


def version_text(version: Version) -> str:
    """A version as people write it: without a last zero."""
    return ".".join(map(str, version if version[2] else version[:2]))


def refusal(metric: str, version: Version | None) -> str | None:
    """Why a counter must not be used in that version, or None where it may be."""
    for hazard in hazards_of(version, Action.REFUSE):
        if metric in hazard.metrics:
            prefix = f"{UNKNOWN_VERSION}; " if version is None else ""
            return f"{prefix}{span(hazard)} it was {hazard.wrong}"
    return None


def hazards_of(version: Version | None, action: Action) -> tuple[CounterHazard, ...]:
    """What the counters of a version need, of one kind."""
    return tuple(
        hazard for hazard in COUNTER_HAZARDS if hazard.action is action and hazard.applies(version)
    )


def span(hazard: CounterHazard) -> str:
    """The versions of a hazard in words."""
    if hazard.since is None and hazard.until is None:
        return "every version"
    if hazard.since is None and hazard.until is not None:
        return f"before {version_text(hazard.until)}"
    since = f"since {version_text(hazard.since)}" if hazard.since else ""
    until = f" and before {version_text(hazard.until)}" if hazard.until else ""
    return since + until
