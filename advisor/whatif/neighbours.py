"""Requests that share a long prefix with another one close in time: what a delay hit takes."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from enum import StrEnum

from kvready.advisor.whatif.workload import SimRequest, Workload

GLOBAL_SHARE = 0.5  # of all requests that a system prompt's blocks are in
FAMILY_SHARE = 0.9  # of those with one first block
FAMILY_LEAST = 20  # requests, or
FAMILY_LEAST_SHARE = 0.01  # of all


class SystemPrompt(StrEnum):
    """What is called a system prompt, and not counted as shared."""

    NONE = "none"
    GLOBAL = "global"  # leading blocks that half of all requests have
    FAMILY = "family"  # leading blocks that nine of ten with the same first block have


def system_prompt_blocks(workload: Workload, what: SystemPrompt) -> list[int]:
    """How many leading blocks of each request are its system prompt."""
    requests = workload.requests
    depths = [0] * len(requests)
    if what is SystemPrompt.NONE:
        return depths
    families: dict[int, list[int]] = defaultdict(list)
    least, share = 1, GLOBAL_SHARE
    if what is SystemPrompt.FAMILY:
        least = max(FAMILY_LEAST, round(FAMILY_LEAST_SHARE * len(requests)))
        share = FAMILY_SHARE
    for index, request in enumerate(requests):
        if request.blocks:
            families[request.blocks[0] if what is SystemPrompt.FAMILY else 0].append(index)
    for members in families.values():
        if len(members) < least:
            continue
        among = len(members) if what is SystemPrompt.FAMILY else len(requests)
        uses = Counter(block for index in members for block in requests[index].blocks)
        for index in members:
            depths[index] = _leading(requests[index].blocks, uses, share * among)
    return depths


def neighbour_share(
    workload: Workload,
    window_seconds: float,
    min_tokens: int,
    system_prompt: SystemPrompt = SystemPrompt.GLOBAL,
) -> float:
    """Share of requests that have in common with another, arriving within the window before or
    after, at least `min_tokens` tokens beyond their system prompt. Whole blocks only.
    """
    requests = workload.requests
    aside = system_prompt_blocks(workload, system_prompt)
    near: Counter[int] = Counter()
    first = upto = found = 0
    for index, request in enumerate(requests):
        while upto < len(requests) and _within(requests[upto], request, window_seconds):
            near.update(requests[upto].blocks)
            upto += 1
        while not _within(request, requests[first], window_seconds):
            near.subtract(requests[first].blocks)
            first += 1
        shared = _leading(request.blocks, near, 2)  # itself and one other
        found += (shared - min(shared, aside[index])) * workload.block_tokens >= min_tokens
    return found / max(len(requests), 1)


def _within(later: SimRequest, earlier: SimRequest, window_seconds: float) -> bool:
    # A stamp in milliseconds is no exact float: two of them one window apart are within it.
    return later.arrived_seconds - earlier.arrived_seconds <= window_seconds + 1e-9


def _leading(blocks: Sequence[int], uses: Counter[int], least: float) -> int:
    depth = 0
    for block in blocks:
        if uses[block] < least:
            break
        depth += 1
    return depth
