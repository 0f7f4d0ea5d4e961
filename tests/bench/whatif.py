"""What a what-if takes beside Dynamo's offline replay: `python -m tests.bench.whatif`.

The Mooncake conversation trace on one H200 with Llama-3.1-8B and a terabyte of host memory. Name
the whole trace (12,031 requests, gzipped) in KVREADY_CONVERSATION_TRACE; without it the bundled
slice runs, and the row says of how many requests it is. Both sides read the file and simulate it;
Dynamo's gets it unpacked. Least of alternating rounds.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from kvready.advisor.roofline import GPUS
from kvready.advisor.whatif.outcome import SimOutcome
from kvready.advisor.whatif.scenario import Backup, LinkSpec, Scenario, Tiers
from kvready.advisor.whatif.simulate import simulate
from kvready.advisor.whatif.traces import read_workload
from kvready.kernels.presets import LLAMA_8B
from tests.dynamo_replay import replay, unpacked

SLICE = Path("examples/traces/mooncake-conversation-first-6-minutes.jsonl.gz")
WHOLE_REQUESTS = 12_031
BUDGET_SECONDS = 2.5
BLOCK_TOKENS = 512
ROUNDS = 3

SCENARIO = Scenario(
    name="one H200",
    shape=LLAMA_8B,
    device=GPUS["h200"],
    load=LinkSpec("gather", 40.3e9),
    backup=LinkSpec("dma_batch", 38e9),
    tiers=Tiers(hbm_bytes=107 * 10**9, host_bytes=10**12, backup=Backup.EVERY),
)

Row = dict[str, Any]
Result = TypeVar("Result")


def whatif_rows() -> Iterator[Row]:
    """Seconds against the budget, and requests a second beside Dynamo's."""
    trace = Path(os.environ.get("KVREADY_CONVERSATION_TRACE", SLICE))
    with tempfile.TemporaryDirectory(prefix="kv") as folder:
        plain = unpacked(trace, Path(folder))
        ours: list[tuple[float, SimOutcome]] = []
        theirs: list[tuple[float, Row]] = []
        for _ in range(ROUNDS):
            ours.append(_timed(lambda: simulate(read_workload(trace), SCENARIO)))
            theirs.append(_timed(lambda: replay(plain, SCENARIO, BLOCK_TOKENS)))
    seconds, outcome = min(ours, key=lambda one: one[0])
    replay_seconds, summary = min(theirs, key=lambda one: one[0])
    requests = outcome.requests
    prompt_tokens = sum(one.prompt_tokens for one in requests)
    found_tokens = prompt_tokens - sum(one.computed_tokens for one in requests)
    conditions = {
        "kind": "measured",
        "requests": len(requests),
        "trace": "whole" if len(requests) == WHOLE_REQUESTS else "first minutes",
        "host_tier": "1 TB",
        "rounds": ROUNDS,
        "found_share": round(found_tokens / prompt_tokens, 4),
        "found_share_dynamo": round(summary["first_admission_prefix_cache_reused_ratio"], 4),
    }
    yield _row(
        "whatif_conversation_seconds",
        seconds,
        "s",
        BUDGET_SECONDS * len(requests) / WHOLE_REQUESTS,
        conditions | {"beside": "the budget of 2.5 s for the whole trace, by requests"},
    )
    yield _row(
        "whatif_vs_dynamo_ratio",
        len(requests) / seconds,
        "requests/s",
        len(requests) / replay_seconds,
        conditions
        | {
            "beside": "Dynamo's offline replay, one worker, host tier of the same size and links",
            "dynamo_wall_seconds": round(summary["wall_time_ms"] / 1e3, 3),
        },
    )


def _timed(run: Callable[[], Result]) -> tuple[float, Result]:
    began = time.perf_counter()
    result = run()
    return time.perf_counter() - began, result


def _row(name: str, value: float, unit: str, beside: float, conditions: Row) -> Row:
    return {
        "name": name,
        "value": round(value, 3),
        "unit": unit,
        "beside": round(beside, 3),
        "ratio": round(value / beside, 3),
        "conditions": conditions,
    }


if __name__ == "__main__":
    for row in whatif_rows():
        print(row)
