"""When loads start, for engines that load before admission (vLLM's connectors).

Such an engine parks a request until its load is done and runs others meanwhile: no batch of it ever
stands still for a load, and Algorithm 1's ratio removes nothing. What is left to choose is the
order of the scan: a host hit that is reached first has its load under way while others compute. A
loading request pins its blocks all the while, so only so many go first as leave the head its own.
"""

from __future__ import annotations

from collections.abc import Sequence

from kvready.advisor.strata import BatchLimits, Settings, Waiting


def load_start_order(
    queue: Sequence[Waiting], limits: BatchLimits, settings: Settings
) -> list[Waiting]:
    """The queue in the order in which the engine should scan it.

    Host hits first, in their order, while the blocks of all that go first and of the first request
    that would compute fit in what is free. Whoever was passed over for too long leads.
    """
    overdue = [waiting for waiting in queue if waiting.held_seconds >= settings.hold_seconds]
    overdue.sort(key=lambda waiting: -waiting.held_seconds)
    held = {waiting.request_id for waiting in overdue}
    others = [waiting for waiting in queue if waiting.request_id not in held]
    if not settings.balance:
        return overdue + others
    computing = next((waiting for waiting in others if not waiting.load_tokens), None)
    first: list[Waiting] = []
    blocks_left = None if limits.free_blocks is None else limits.free_blocks
    if blocks_left is not None:
        blocks_left -= sum(waiting.blocks_needed for waiting in overdue)
        blocks_left -= computing.blocks_needed if computing is not None else 0
    for waiting in others:
        if not waiting.load_tokens:
            continue
        if blocks_left is not None:
            if waiting.blocks_needed > blocks_left:
                break
            blocks_left -= waiting.blocks_needed
        first.append(waiting)
    moved = {waiting.request_id for waiting in first}
    return overdue + first + [waiting for waiting in others if waiting.request_id not in moved]
