"""Runs prompts through an engine in this process and writes down every step it took.

For the engine's own Python. Reads a job (JSON) from standard input, writes the account to the
file that the job names. All prompts of a batch are handed in before the first step, so that
arrival times cannot matter.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any


def main() -> None:
    job = json.load(sys.stdin)
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    from vllm import LLM, SamplingParams

    llm = LLM(**job["engine"])
    scheduler = llm.llm_engine.engine_core.engine_core.scheduler
    steps: list[list[list[Any]]] = []
    counts = {"loads": 0, "preempted": 0, "held": 0}
    _write_down(scheduler, steps, counts)
    sampling = SamplingParams(
        temperature=0, max_tokens=job["output_tokens"], ignore_eos=True, detokenize=False
    )
    outputs = []
    for batch in job["batches"]:
        prompts = [{"prompt_token_ids": prompt} for prompt in batch]
        done = llm.generate(prompts, sampling, use_tqdm=False)
        outputs += [list(one.outputs[0].token_ids) for one in done]
    observer = getattr(scheduler, "step_observer", None)
    hook = getattr(scheduler, "policy_hook", None)
    account = {
        "scheduler": type(scheduler).__name__,
        "observed": observer is not None,
        "failures": observer.publisher.failures if observer is not None else 0,
        "hook": None if hook is None else _account_of(hook),
        "outputs": outputs,
        "steps": steps,
        **counts,
    }
    Path(job["account"]).write_text(json.dumps(account))


def _account_of(hook: Any) -> dict[str, Any]:
    return {"failures": hook.failures, "refusals": dict(hook.refusals)}


def _write_down(scheduler: Any, steps: list[Any], counts: dict[str, int]) -> None:
    """Note what `schedule` returns, on this instance alone: its class stays as it is."""
    stock = scheduler.schedule

    def schedule(*arguments: Any, **named: Any) -> Any:
        output = stock(*arguments, **named)
        if output.num_scheduled_tokens:
            # The engine adds a random suffix to each request's number.
            chosen = output.num_scheduled_tokens.items()
            steps.append([[name.split("-")[0], tokens] for name, tokens in chosen])
        counts["preempted"] += len(output.preempted_req_ids or ())
        hook = getattr(scheduler, "policy_hook", None)
        counts["held"] += 0 if hook is None else len(hook.held)
        if output.kv_connector_metadata is not None:
            counts["loads"] += len(output.kv_connector_metadata.load_jobs)
        return output

    scheduler.schedule = schedule


if __name__ == "__main__":
    main()
