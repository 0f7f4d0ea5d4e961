"""What a simulated engine is asked: shapes drawn by seed, mixed, with convoys; what is left."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

import msgspec

from kvready.advisor.whatif.sim_engine.faults import FaultName, Faults
from kvready.advisor.whatif.synthetic import Questions, documents
from kvready.advisor.whatif.workload import SimRequest, Workload
from kvready.collectors.errors import WorkloadError

MIX = "mix"
MIXED = (("loogle", 0.5), ("reviewmt", 0.5))  # documents and conversations, by requests a second
BLOCK_TOKENS = 32
APART = 1 << 48  # ids of one workload's blocks lie below it
CONVOY_REQUESTS = 24
CONVOY_TOKENS = 16_384
CONVOY_TAIL_TOKENS = (20, 200)
CONVOY_OUTPUT_TOKENS = 32


def drawn(name: str, requests_per_second: float, requests: int, seed: int) -> Workload:
    """A shape by name, or the mix, with Poisson arrivals. Raises `WorkloadError`."""
    shapes = MIXED if name == MIX else ((name, 1.0),)
    made = [
        documents(
            shape,
            Questions(
                queries_per_second=requests_per_second * share,
                queries=max(1, round(requests * share)),
                block_tokens=BLOCK_TOKENS,
            ),
            seed,
        )
        for shape, share in shapes
    ]
    return mixed(made)


def mixed(workloads: Sequence[Workload]) -> Workload:
    """Several workloads at once. Their blocks and requests have nothing in common."""
    if len(workloads) == 1:
        return workloads[0]
    if len({workload.block_tokens for workload in workloads}) > 1:
        raise WorkloadError("workloads with blocks of several sizes cannot be mixed")
    requests = [
        _apart(request, number)
        for number, workload in enumerate(workloads)
        for request in workload.requests
    ]
    return Workload(
        name="+".join(workload.name for workload in workloads),
        source="; ".join(workload.source for workload in workloads),
        block_tokens=workloads[0].block_tokens,
        requests=_in_order(requests),
        warm_blocks=tuple(
            block + number * APART
            for number, workload in enumerate(workloads)
            for block in workload.warm_blocks
        ),
        notes=tuple(dict.fromkeys(note for workload in workloads for note in workload.notes)),
    )


def with_convoys(workload: Workload, faults: Faults, seed: int) -> Workload:
    """The same with the convoys that are to come: many requests of one new document at once."""
    extra: list[SimRequest] = []
    for number, convoy in enumerate(faults.named(FaultName.CONVOY)):
        extra += _convoy(workload.block_tokens, number, convoy.begin_seconds, seed)
    if not extra:
        return workload
    return msgspec.structs.replace(workload, requests=_in_order([*workload.requests, *extra]))


def left_after(workload: Workload, arrived: set[str], now: float) -> Workload:
    """What has not arrived yet when another incarnation begins, with empty caches."""
    requests = []
    for request in workload.requests:
        if request.request_id in arrived:
            continue
        if request.after in arrived:  # whoever it follows is gone: its user asks on all the same
            request = msgspec.structs.replace(
                request, after="", arrived_seconds=now + request.think_seconds
            )
        requests.append(request)
    return msgspec.structs.replace(workload, requests=_in_order(requests), warm_blocks=())


def _convoy(block_tokens: int, number: int, begin: float, seed: int) -> list[SimRequest]:
    draws = random.Random(f"{seed}/convoy/{number}")
    first = (draws.getrandbits(32) << 16) + 7 * APART
    shared = tuple(first + index for index in range(CONVOY_TOKENS // block_tokens))
    return [
        SimRequest(
            request_id=f"convoy-{number}-{index}",
            arrived_seconds=begin + 1e-3 * index,
            prompt_tokens=len(shared) * block_tokens + draws.randint(*CONVOY_TAIL_TOKENS),
            output_tokens=CONVOY_OUTPUT_TOKENS,
            blocks=shared,
            request_class="convoy",
        )
        for index in range(CONVOY_REQUESTS)
    ]


def _apart(request: SimRequest, number: int) -> SimRequest:
    def moved(blocks: Iterable[int]) -> tuple[int, ...]:
        return tuple(block + number * APART for block in blocks)

    return msgspec.structs.replace(
        request,
        request_id=f"{number}-{request.request_id}",
        blocks=moved(request.blocks),
        output_blocks=moved(request.output_blocks),
        after=f"{number}-{request.after}" if request.after else "",
    )


def _in_order(requests: Iterable[SimRequest]) -> tuple[SimRequest, ...]:
    return tuple(sorted(requests, key=lambda request: request.arrived_seconds))
