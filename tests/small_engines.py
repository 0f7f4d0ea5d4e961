"""Small simulated engines and random workloads for them."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import strategies as st

from kvready.advisor.roofline import GPUS
from kvready.advisor.whatif.scenario import (
    Backup,
    EngineLimits,
    LinkSpec,
    Policies,
    Scenario,
    Tiers,
)
from kvready.advisor.whatif.workload import SimRequest, Workload
from kvready.kernels.presets import LLAMA_8B

TOKEN_BYTES = 131_072
BLOCK_TOKENS = 16
# Slow enough that loads of a few blocks show beside prefills of a few tokens.
LINK = LinkSpec("slow", 1e9, 1e-3, 2e-6)


def engine(
    hbm_tokens: int = 2_048,
    host_tokens: int = 1 << 16,
    disk_tokens: int = 0,
    policies: Policies = Policies(),  # noqa: B008
    backup: Backup = Backup.EVERY,
    **limits: Any,
) -> Scenario:
    """Llama-3.1-8B on an H200 with little memory and slow links."""
    return Scenario(
        name="small",
        shape=LLAMA_8B,
        device=GPUS["h200"],
        load=LINK,
        backup=LINK,
        tiers=Tiers(
            hbm_tokens * TOKEN_BYTES, host_tokens * TOKEN_BYTES, disk_tokens * TOKEN_BYTES, backup
        ),
        page_tokens=BLOCK_TOKENS,
        engine=msgspec.structs.replace(EngineLimits(batch_tokens=256), **limits),
        policies=policies,
    )


def workload(*requests: SimRequest, warm_blocks: tuple[int, ...] = ()) -> Workload:
    """Of these requests."""
    return Workload("small", "made here", BLOCK_TOKENS, requests, warm_blocks)


def ask(
    name: str, at_seconds: float, blocks: tuple[int, ...], tail_tokens: int = 5, output: int = 4
) -> SimRequest:
    """A request for a chain of whole blocks and a few tokens more."""
    prompt = len(blocks) * BLOCK_TOKENS + tail_tokens
    return SimRequest(name, at_seconds, prompt, output, blocks)


@st.composite
def workloads(draw: st.DrawFn, most_requests: int = 14, rounds: bool = False) -> Workload:
    """Questions about a few documents that share beginnings, at random times."""
    count = draw(st.integers(1, most_requests))
    requests: list[SimRequest] = []
    at_seconds = 0.0
    for number in range(count):
        at_seconds += draw(st.floats(0.0, 0.06))
        document = draw(st.integers(0, 3))
        length = draw(st.integers(0, 12))
        shared = draw(st.integers(0, length))
        # An id names all before it: a document's first blocks, then what is this request's own.
        blocks = tuple(100 * document + place for place in range(shared))
        blocks += tuple(10_000 + 100 * number + place for place in range(length - shared))
        request = ask(
            f"r{number}",
            at_seconds,
            blocks,
            tail_tokens=draw(st.integers(1, BLOCK_TOKENS - 1)),
            output=draw(st.integers(1, 40)),
        )
        if rounds and requests and draw(st.booleans()):
            before = draw(st.sampled_from(requests))
            request = msgspec.structs.replace(
                request, after=before.request_id, think_seconds=draw(st.floats(0.0, 0.1))
            )
        requests.append(request)
    return workload(*requests)
