"""Start and stop a real vLLM on this machine's CPUs, with every surface that kvready taps.

As a library: `with Engine(python, model, folder) as engine: ... engine.url`. As a command it
prints one line of JSON when the engine serves, and stops it when interrupted. Everything listens
on loopback or on sockets in the run folder.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

START_SECONDS = 300.0
STOP_SECONDS = 30.0
REAP_SECONDS = 5.0
LOG_TAIL_LINES = 40
MAX_SOCKET_PATH_BYTES = 100
GIB = 1 << 30

STOCK_SCHEDULER = ""
MOVERS = ("dma_per_page", "gather")
OBSERVED_SCHEDULER = "kvready.collectors.engine.vllm_observer.ObservedScheduler"


class EngineError(RuntimeError):
    """The engine did not start, or died; the message ends with its log."""


@dataclass
class Engine:
    """One vLLM server and its workers, a process group of their own."""

    python: Path  # of the engine's environment
    model: Path
    folder: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="kvr-")))
    scheduler_class: str = OBSERVED_SCHEDULER
    observe: bool = True
    publish_kv_events: bool = True
    host_bytes: int = 4 * GIB  # 0: no host tier
    disk_bytes: int = 0  # of a tier below it; 0: none
    disk_folder: Path | None = None  # None: the disk tier's own choice
    mover: str = MOVERS[0]  # of host loads
    can_switch_mover: bool = False  # at run time, with use_mover
    check_every: int = 1_000  # gathered loads of which one is compared with per-page copies
    hbm_blocks: int = 256
    block_tokens: int = 32
    kv_space_gib: int = 2
    max_model_tokens: int = 4096
    max_requests: int = 16
    max_batch_tokens: int = 512
    extra_arguments: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.folder = Path(self.folder).resolve()
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        longest = self.folder / "observer-scheduler-0.sock"
        if len(os.fsencode(longest)) > MAX_SOCKET_PATH_BYTES:
            raise EngineError(f"{longest} is too long for a socket; choose a shorter run folder")
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = self.folder / "engine.log"
        self.kv_events_endpoint = f"ipc://{self.folder}/kv.sock"
        self.kv_replay_endpoint = f"ipc://{self.folder}/replay.sock"
        self.observer_folder = self.folder
        self.mover_file = self.folder / "mover"
        if self.can_switch_mover:
            self.use_mover(self.mover)
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Engine:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def start(self, timeout_seconds: float = START_SECONDS) -> None:
        """Start and wait until it serves. Raises `EngineError` with the end of its log."""
        environment = {**os.environ, **self._environment()}
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self.command(),
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env=environment,
                cwd=self.folder,
                start_new_session=True,
            )
        deadline = time.monotonic() + timeout_seconds
        try:
            while not self.is_healthy():
                self.check_alive()
                if time.monotonic() > deadline:
                    raise EngineError(self._explain(f"not serving after {timeout_seconds:.0f} s"))
                time.sleep(0.25)
        except BaseException:
            self.kill()
            raise

    def stop(self) -> None:
        """Ask it to end, then insist. Safe twice, and before `start`."""
        process = self._process
        if process is None:
            return
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_SECONDS)
        self.kill()

    def kill(self) -> None:
        """End the whole process group at once, as a crash would. Safe twice."""
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        # The workers hold the memory: wait for them too, so that a successor finds it free.
        deadline = time.monotonic() + REAP_SECONDS
        with contextlib.suppress(ProcessLookupError):
            while time.monotonic() < deadline:
                os.killpg(process.pid, 0)
                time.sleep(0.05)

    def use_mover(self, mover: str) -> None:
        """Let host loads from now on go by this mover. The engine goes on."""
        if not self.can_switch_mover:
            raise EngineError("this engine was not made with can_switch_mover")
        unfinished = self.mover_file.with_suffix(".part")
        unfinished.write_text(mover)
        unfinished.replace(self.mover_file)

    @property
    def pid(self) -> int:
        """Of the server, which leads the process group."""
        if self._process is None:
            raise EngineError("the engine is not running; call start first")
        return self._process.pid

    def is_healthy(self) -> bool:
        """Whether it answers now."""
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=2.0) as answer:
                return bool(answer.status == 200)
        except (OSError, urllib.error.URLError):
            return False

    def check_alive(self) -> None:
        """Raise `EngineError` if the server ended."""
        if self._process is None or self._process.poll() is not None:
            code = None if self._process is None else self._process.returncode
            raise EngineError(self._explain(f"ended with status {code}"))

    def command(self) -> list[str]:
        """The command line, for the reader as much as for the start."""
        arguments = {
            "--model": self.model,
            "--served-model-name": self.model.name,
            "--host": "127.0.0.1",
            "--port": self.port,
            "--dtype": "bfloat16",
            "--max-model-len": self.max_model_tokens,
            "--max-num-seqs": self.max_requests,
            "--max-num-batched-tokens": self.max_batch_tokens,
            "--block-size": self.block_tokens,
            "--num-gpu-blocks-override": self.hbm_blocks,
        }
        if self.publish_kv_events:
            arguments["--kv-events-config"] = json.dumps(self._kv_events())
        if self.host_bytes:
            arguments["--kv-transfer-config"] = json.dumps(self._kv_transfer())
        if self.scheduler_class != STOCK_SCHEDULER:
            arguments["--scheduler-cls"] = self.scheduler_class
        command = [str(self.python), "-m", "vllm.entrypoints.openai.api_server"]
        for name, value in arguments.items():
            command += [name, str(value)]
        command += ["--skip-tokenizer-init", "--enforce-eager", "--enable-prefix-caching"]
        command += ["--enable-prompt-tokens-details", *self.extra_arguments]
        return command

    def _environment(self) -> dict[str, str]:
        return {
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "DO_NOT_TRACK": "1",
            "VLLM_HOST_IP": "127.0.0.1",
            "VLLM_CPU_KVCACHE_SPACE": str(self.kv_space_gib),
            "KVREADY_OBSERVER": str(self.observer_folder) if self.observe else "off",
            **self.environment,
        }

    def _kv_events(self) -> dict[str, Any]:
        return {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            "endpoint": self.kv_events_endpoint,
            "replay_endpoint": self.kv_replay_endpoint,
        }

    def _kv_transfer(self) -> dict[str, Any]:
        settings: dict[str, Any] = {
            "cpu_bytes_to_use": self.host_bytes,
            "spec_name": "HostTierSpec",
            "spec_module_path": "kvready.kernels.engine.host_tier",
            "self_describing_kv_events": True,
            "mover": self.mover,
            "check_every": self.check_every,
        }
        if self.can_switch_mover:
            settings["mover_file"] = str(self.mover_file)
        if self.observe:
            settings["transfer_observer"] = "kvready.collectors.engine.transfers:observer"
        if self.disk_bytes:
            settings["spec_name"] = "DiskTierSpec"
            settings["spec_module_path"] = "kvready.kernels.engine.disk_spec"
            settings["disk_bytes"] = self.disk_bytes
            if self.disk_folder is not None:
                settings["disk_folder"] = str(self.disk_folder)
            if self.observe:
                settings["fetch_observer"] = "kvready.collectors.engine.fetches:observer"
        return {
            "kv_connector": "OffloadingConnector",
            "kv_role": "kv_both",
            "kv_connector_extra_config": settings,
        }

    def _explain(self, what: str) -> str:
        lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        tail = "\n".join(lines[-LOG_TAIL_LINES:])
        return f"the engine {what}; its log, {self.log}, ends:\n{tail}"


def free_port() -> int:
    """A port of 127.0.0.1 that nothing uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--python", type=Path, default=Path("build/engine/bin/python"))
    parser.add_argument("--folder", type=Path, help="for sockets and the log (default: a new one)")
    parser.add_argument("--host-gib", type=float, default=4.0, help="host tier; 0 for none")
    parser.add_argument("--disk-gib", type=float, default=0.0, help="disk tier below; 0 for none")
    parser.add_argument("--mover", choices=MOVERS, default=MOVERS[0], help="of host loads")
    parser.add_argument("--no-observer", action="store_true")
    options = parser.parse_args()
    engine = Engine(
        python=options.python.absolute(),
        model=options.model.resolve(),
        observe=not options.no_observer,
        host_bytes=int(options.host_gib * GIB),
        disk_bytes=int(options.disk_gib * GIB),
        mover=options.mover,
        **({"folder": options.folder} if options.folder else {}),
    )
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with engine:
            places = {
                "url": engine.url,
                "kv_events": engine.kv_events_endpoint,
                "kv_replay": engine.kv_replay_endpoint,
                "observer": str(engine.observer_folder) if engine.observe else None,
                "log": str(engine.log),
            }
            print(json.dumps(places), flush=True)
            while True:
                engine.check_alive()
                time.sleep(1.0)
    except KeyboardInterrupt:
        pass


if __name__ == "__main__":
    main()
