"""What a vLLM scheduler's hook costs a pass: 128 requests wait, each with a prompt of 1,350 blocks.

Off: flags are read and nothing else. On: dedup and balance, while leaders compute chunk after
chunk; several queues are timed, since it matters how many share a prefix, and the slowest is the
figure. Beside the budget; `make bench-engine` times the same hook in
a real scheduler, beside its own `schedule()`.

Run as `python tests/bench/hook.py`; prints one JSON row per line.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Iterator
from types import MappingProxyType
from typing import Any

from kvready.advisor.hooks.lease import NOTHING, Held, Switch
from kvready.advisor.hooks.vllm_hook import VllmHook
from kvready.advisor.policies import Policy
from tests.fake_vllm import BLOCK, GROUP, FakeRequest, FakeVllm, Status

WAITING = 128
BLOCKS = 1_350
QUESTION_BLOCKS = 20  # of those, at the end, that nobody shares
CHUNK_BLOCKS = 3
RUNNING = 16  # that decode
ROUNDS = 5
ROUND_PASSES = 40
WARM_UP = 140  # passes until all newcomers are taken in
SHARING = (1, 2, 8, WAITING)
OFF_PASSES = 2_000
OFF_BUDGET_SECONDS = 20e-6
ON_BUDGET_SECONDS = 300e-6
FOR_EVER = Held(
    MappingProxyType({policy: Switch(is_on=True) for policy in Policy}), float("-inf"), float("inf")
)

Row = dict[str, Any]


def crowd(sharing: int) -> tuple[FakeVllm, list[FakeRequest]]:
    """A full engine; of each group that shares a document one is in, the others wait."""
    vllm = FakeVllm(host=True, seats=0)
    leaders = []
    for number in range(WAITING + WAITING // sharing):
        group, member = divmod(number, sharing + 1)
        first = group * BLOCKS
        own = 10_000_000 + number * QUESTION_BLOCKS
        document = range(first, first + BLOCKS - QUESTION_BLOCKS)
        request = FakeRequest(f"r{number}", (*document, *range(own, own + QUESTION_BLOCKS)))
        if member:
            vllm.add(request)
            continue
        vllm.requests[request.request_id] = request
        request.status = Status.RUNNING
        vllm.running.append(request)
        leaders.append(request)
    for number in range(RUNNING):
        request = FakeRequest(f"d{number}", (20_000_000 + number,), output_tokens=1 << 30)
        request.status, request.num_computed_tokens = Status.RUNNING, 2 * BLOCK
        vllm.requests[request.request_id] = request
        vllm.running.append(request)
    return vllm, leaders


def advance(vllm: FakeVllm, leaders: list[FakeRequest]) -> None:
    """One leader after the other computes a chunk; a run ends before their documents do."""
    leader = leaders[0]
    leaders.append(leaders.pop(0))
    begin = leader.num_computed_tokens // BLOCK
    if begin + CHUNK_BLOCKS > BLOCKS - QUESTION_BLOCKS:
        raise RuntimeError("a leader is done: nothing would be timed any more")
    leader.num_computed_tokens += CHUNK_BLOCKS * BLOCK
    for digest in leader.block_hashes[begin : begin + CHUNK_BLOCKS]:
        vllm.cache[digest + GROUP] = True


def on_seconds(sharing: int) -> float:
    """A pass in which everybody is known: the best round's mean, since not all cost the same."""
    vllm, leaders = crowd(sharing)
    now = [0.0]
    hook = VllmHook(vllm, "0.32.0", lambda: FOR_EVER, 60.0, lambda: now[0])
    spent = []
    for _ in range(ROUNDS * ROUND_PASSES + WARM_UP):
        began = time.perf_counter()
        hook.before_pass()
        hook.after_pass()
        spent.append(time.perf_counter() - began)
        now[0] += 0.001
        advance(vllm, leaders)
    if hook.failures:
        raise RuntimeError("the hook failed while it was timed: the figure would mean nothing")
    return best_mean(spent[WARM_UP:])


def off_seconds() -> float:
    """A pass with every flag off: the best round's mean."""
    vllm, _ = crowd(WAITING)
    hook = VllmHook(vllm, "0.32.0", lambda: NOTHING, 60.0)
    spent = []
    for _ in range(OFF_PASSES):
        began = time.perf_counter()
        hook.before_pass()
        hook.after_pass()
        spent.append(time.perf_counter() - began)
    return best_mean(spent)


def best_mean(spent: list[float]) -> float:
    """Of the rounds; others use the machine, too."""
    return min(
        statistics.fmean(spent[begin : begin + ROUND_PASSES])
        for begin in range(0, len(spent), ROUND_PASSES)
    )


def hook_rows() -> Iterator[Row]:
    """Off, and on at 128 waiting."""
    yield _row("hook_off_seconds", off_seconds(), OFF_BUDGET_SECONDS, {})
    by_sharing = {sharing: on_seconds(sharing) for sharing in SHARING}
    slowest = max(by_sharing, key=lambda sharing: by_sharing[sharing])
    conditions = {
        "prompt_blocks": BLOCKS,
        "share_a_document": slowest,
        **{f"seconds_where_{n}_share": round(by_sharing[n], 7) for n in SHARING},
    }
    yield _row("hook_on_128_seconds", by_sharing[slowest], ON_BUDGET_SECONDS, conditions)


def _row(name: str, seconds: float, budget: float, conditions: Row) -> Row:
    return {
        "name": name,
        "value": round(seconds, 8),
        "unit": "s",
        "beside": budget,
        "ratio": round(seconds / budget, 3),
        "conditions": {
            "waiting": WAITING,
            "running": RUNNING,
            **conditions,
            "beside": "the budget of a pass",
            "kind": "measured",
        },
    }


if __name__ == "__main__":
    for one in hook_rows():
        print(json.dumps(one))
