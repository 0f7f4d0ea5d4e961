"""Times the hook beside a real scheduler's own pass. For the engine's own Python.

Reads a job (JSON) from standard input, prints an account as its last line. 128 requests wait all
the while; each pass is timed in its two parts, the engine's and the hook's.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from types import MappingProxyType
from typing import Any

WAITING = 128
SEATS = 16
DOCUMENTS = 16
DOCUMENT_TOKENS = 2_400
WARM_UP = 140
PASSES = 100


def main() -> None:
    job = json.load(sys.stdin)
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    import vllm
    from vllm import LLM, SamplingParams

    from kvready.advisor.hooks.lease import Held, Switch
    from kvready.advisor.hooks.vllm_hook import VllmHook

    llm = LLM(
        model=job["model"],
        skip_tokenizer_init=True,
        dtype="bfloat16",
        max_model_len=4096,
        max_num_seqs=SEATS,
        max_num_batched_tokens=512,
        block_size=32,
        enforce_eager=True,
        long_prefill_token_threshold=128,
        scheduler_cls="kvready.advisor.hooks.vllm_scheduler.EnforcingScheduler",
    )
    scheduler = llm.llm_engine.engine_core.engine_core.scheduler
    on = {name: Switch(is_on=True) for name in ("dedup", "balance")}
    held = Held(MappingProxyType(on), float("-inf"), float("inf"))
    hook = Timed(VllmHook(scheduler, vllm.__version__, lambda: held, 60.0))
    scheduler.policy_hook = hook
    sampling = SamplingParams(max_tokens=1_000, ignore_eos=True, detokenize=False)
    for number in range(SEATS + WAITING):
        # Who is in decodes for the whole run, so that the others wait for the whole run.
        own = [(number * 31 + place) % 2_000 for place in range(40)]
        document = [(number % DOCUMENTS * 7 + place) % 2_048 for place in range(DOCUMENT_TOKENS)]
        prompt = own if number < SEATS else document + own
        llm.llm_engine.add_request(str(number), {"prompt_token_ids": prompt}, sampling)
    passes = []
    stock = scheduler.schedule
    for step in range(WARM_UP + PASSES):
        if step == WARM_UP:
            hook.seconds.clear()
            scheduler.schedule = timed(stock, passes)
        llm.llm_engine.step()
    waiting = len(scheduler.waiting)
    hook_seconds = statistics.fmean(hook.seconds)  # not all passes cost the same
    print(
        json.dumps(
            {
                "waiting": waiting,
                "failures": hook.failures,
                "hook_seconds": hook_seconds,
                "schedule_seconds": statistics.fmean(passes) - hook_seconds,
            }
        )
    )


def timed(stock: Any, spent: list[float]) -> Any:
    """The same, with its seconds written down."""

    def schedule(*arguments: Any, **named: Any) -> Any:
        began = time.perf_counter()
        try:
            return stock(*arguments, **named)
        finally:
            spent.append(time.perf_counter() - began)

    return schedule


class Timed:
    """A hook, with the seconds of each pass written down."""

    def __init__(self, hook: Any) -> None:
        self.seconds: list[float] = []
        self._hook = hook
        self._before = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._hook, name)

    def before_pass(self) -> None:
        began = time.perf_counter()
        self._hook.before_pass()
        self._before = time.perf_counter() - began

    def after_pass(self) -> None:
        began = time.perf_counter()
        self._hook.after_pass()
        self.seconds.append(self._before + time.perf_counter() - began)


if __name__ == "__main__":
    main()
