"""What the hook costs beside the pass of a real scheduler that it is in."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SCRIPT = Path(__file__).with_name("time_hook.py")
RUN_SECONDS = 600.0
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "KVREADY_OBSERVER": "off",
    "KVREADY_HOOK_FLAGS": "off",
}


def hook_rows(engine_python: Path, model: Path) -> Iterator[dict[str, Any]]:
    """One row: the hook's seconds at 128 waiting, beside the stock `schedule()`."""
    with tempfile.TemporaryDirectory(prefix="kvr-") as folder:
        done = subprocess.run(
            [engine_python, SCRIPT],
            input=json.dumps({"model": str(model.with_name("check"))}),
            text=True,
            capture_output=True,
            timeout=RUN_SECONDS,
            cwd=folder,
            env={**os.environ, **ENVIRONMENT},
        )
    if done.returncode:
        raise RuntimeError(f"the engine that was to be timed failed: {done.stderr[-4000:]}")
    account = json.loads(done.stdout.splitlines()[-1])
    if account["failures"] or account["waiting"] < 128:
        raise RuntimeError(f"nothing was timed that means anything: {account}")
    yield {
        "name": "hook_on_128_in_engine_seconds",
        "value": round(account["hook_seconds"], 7),
        "unit": "s",
        "beside": round(account["schedule_seconds"], 7),
        "ratio": round(account["hook_seconds"] / account["schedule_seconds"], 3),
        "conditions": {
            "waiting": account["waiting"],
            "running": 16,
            "beside": "the mean of vLLM's own schedule() in the same passes",
            "kind": "measured",
        },
    }
