"""The launcher starts, kills and restarts an engine on the same sockets, and says why one died."""

from __future__ import annotations

import os
import time
from pathlib import Path

import load
import pytest
import zmq
from engine import Engine, EngineError

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

SMALL_HOST_TIER = 64 << 20
JOIN_SECONDS = 0.5
QUIET_MILLISECONDS = 1_000


def small_engine(python: Path, models: Path, folder: Path, **settings: object) -> Engine:
    return Engine(
        python,
        models / "check",
        folder,
        host_bytes=SMALL_HOST_TIER,
        max_model_tokens=1024,
        **settings,  # type: ignore[arg-type]
    )


def test_an_engine_that_cannot_start_says_why(
    engine_python: Path, models: Path, run_folder: Path
) -> None:
    engine = small_engine(
        engine_python, models, run_folder, extra_arguments=("--no-such-flag", "1")
    )
    with pytest.raises(EngineError, match=r"ended with status(.|\n)*--no-such-flag"):
        engine.start()


def test_a_killed_engine_comes_back_on_the_same_sockets(
    engine_python: Path, models: Path, run_folder: Path
) -> None:
    for life in range(2):
        with small_engine(engine_python, models, run_folder) as engine:
            answer, sequences = ask_and_listen(engine, f"life-{life}")
            assert answer.error == ""
            assert len(answer.output) == 4
            # A new incarnation numbers its messages from 0.
            assert sequences
            assert sequences == list(range(len(sequences)))
            leader = engine.pid
            engine.kill()
            engine.kill()
            with pytest.raises(ProcessLookupError):
                os.killpg(leader, 0)
            assert not engine.is_healthy()


def ask_and_listen(engine: Engine, name: str) -> tuple[load.Answer, list[int]]:
    """One request, and the numbers of the observer's messages about it."""
    with zmq.Context() as context, context.socket(zmq.SUB) as subscriber:
        subscriber.setsockopt(zmq.LINGER, 0)
        subscriber.subscribe(b"")
        subscriber.connect(f"ipc://{engine.observer_folder}/observer-scheduler-0.sock")
        time.sleep(JOIN_SECONDS)
        answer = load.ask(engine.url, "check", name, range(100), output_tokens=4)
        sequences = []
        while subscriber.poll(QUIET_MILLISECONDS):
            _, sequence, _ = subscriber.recv_multipart()
            sequences.append(int.from_bytes(sequence, "big"))
        return answer, sequences


def test_a_folder_with_a_long_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="choose a shorter run folder"):
        Engine(Path("python"), Path("model"), tmp_path / ("x" * 100))
