"""Where the real engine and its models are."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
EXAMPLES = REPOSITORY / "examples" / "vllm"
HERE = Path(__file__).resolve().parent
GENERATE_SECONDS = 240.0

# Tests import the launcher and the load by their own names, as a user in that folder would. Last
# on the path, so that this folder hides no module of the tests beside it.
sys.path += [str(EXAMPLES), str(HERE)]

Generate = Callable[..., dict[str, Any]]


@pytest.fixture(scope="session")
def engine_python() -> Path:
    """The Python of the engine's environment."""
    python = Path(
        os.environ.get("KVREADY_ENGINE_PYTHON", REPOSITORY / "build/engine/bin/python")
    ).absolute()
    if not python.exists():
        give_up = pytest.fail if os.environ.get("CI") else pytest.skip
        give_up(f"{python} is missing; run `make engine`, or set KVREADY_ENGINE_PYTHON")
    return python


@pytest.fixture(scope="session")
def older_python() -> Path:
    """The Python that has vLLM 0.28."""
    python = (REPOSITORY / "build/engine-0.28/bin/python").absolute()
    if not python.exists():
        give_up = pytest.fail if os.environ.get("CI") else pytest.skip
        give_up(f"{python} is missing; run `make engine-test`")
    return python


@pytest.fixture(scope="session")
def models(engine_python: Path) -> Path:
    """A folder with the test models, made if they are not there."""
    folder = REPOSITORY / "build" / "models"
    command = [engine_python, EXAMPLES / "make_model.py", "--out", folder]
    subprocess.run(command, check=True, capture_output=True)
    return folder


@pytest.fixture
def run_folder() -> Iterator[Path]:
    """A folder whose name is short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="kvr-") as folder:
        yield Path(folder)


@pytest.fixture(scope="session")
def generate(engine_python: Path, models: Path) -> Generate:
    """Runs batches of prompts through an engine in a process of its own; see generate.py."""

    def run(
        batches: list[list[list[int]]],
        output_tokens: int,
        hbm_blocks: int,
        scheduler_class: str | None = None,
        observed: bool = False,
        host_tier: dict[str, Any] | None = None,
        max_requests: int = 8,
        settings: Mapping[str, Any] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        engine: dict[str, Any] = {
            "model": str(models / "check"),
            "skip_tokenizer_init": True,
            "dtype": "bfloat16",
            "max_model_len": 1024,
            "max_num_seqs": max_requests,
            "max_num_batched_tokens": 512,
            "block_size": 32,
            "num_gpu_blocks_override": hbm_blocks,
            "enforce_eager": True,
            "enable_prefix_caching": True,
            "disable_log_stats": False,
            **(settings or {}),
        }
        if scheduler_class is not None:
            engine["scheduler_cls"] = scheduler_class
        if host_tier is not None:
            engine["kv_transfer_config"] = {
                "kv_connector": "OffloadingConnector",
                "kv_role": "kv_both",
                "kv_connector_extra_config": host_tier,
            }
        with tempfile.TemporaryDirectory(prefix="kvr-") as name:
            folder = Path(name)
            account = folder / "account.json"
            job = {
                "engine": engine,
                "batches": batches,
                "output_tokens": output_tokens,
                "account": str(account),
            }
            done = subprocess.run(
                [engine_python, HERE / "generate.py"],
                input=json.dumps(job),
                text=True,
                capture_output=True,
                timeout=GENERATE_SECONDS,
                cwd=folder,
                env={**_environment(folder if observed else None), **(environment or {})},
            )
            assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
            return {**json.loads(account.read_text()), "sockets": sorted(folder.glob("*.sock"))}

    return run


def _environment(observer_folder: Path | None) -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, (str(HERE), os.environ.get("PYTHONPATH")))),
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "VLLM_HOST_IP": "127.0.0.1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "KVREADY_OBSERVER": str(observer_folder) if observer_folder else "off",
    }
