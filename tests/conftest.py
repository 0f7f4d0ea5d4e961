"""What many tests share: an untouched environment, a recording, and `kvready` as a process."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import served
from hypothesis import HealthCheck, settings
from story import BLOCK_TOKENS, Story, decode, prefill

from kvready.collectors.recording import Provenance, RecordingHeader, RecordingWriter
from kvready.collectors.records import Tier

# The same examples every time, so that a change is judged by itself; `make fuzz` draws new ones.
settings.register_profile(
    "tests",
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
settings.register_profile(
    "fuzz",
    settings.get_profile("tests"),
    derandomize=False,
    max_examples=5_000,
    print_blob=True,
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "tests"))

Kvready = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session", autouse=True)
def _state_of_our_own(tmp_path_factory: pytest.TempPathFactory) -> None:
    os.environ["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("state"))


@pytest.fixture(scope="session", autouse=True)
def _interrupts_reach_children() -> None:
    # A shell without job control starts what runs in its background with SIGINT ignored, and every
    # process started from there would ignore it too.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in list(os.environ):
        if variable.startswith("KVREADY_") and variable != "KVREADY_ENGINE_PYTHON":
            monkeypatch.delenv(variable)


@pytest.fixture
def short_dir() -> Iterator[Path]:
    """A folder whose path leaves room for sockets, which systems limit to about 100 bytes."""
    folder = Path(tempfile.mkdtemp(prefix="kv"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def in_memory() -> Iterator[Path]:
    """A folder on no disk: a killed process waits for what its disk was asked to do."""
    memory = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(prefix="kv", dir=memory if memory.is_dir() else None))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def free_port() -> int:
    """A port that nothing listens on."""
    return served.free_port()


@pytest.fixture(scope="session")
def told_story() -> Story:
    """An engine's day in small: documents computed, evicted to the host tier, loaded again."""
    story = Story()
    now = 1.0
    for number in range(60):
        chain = range(1_000 * (number % 6 + 1), 1_000 * (number % 6 + 1) + 6)
        name = f"r{number}"
        again = number >= 6
        story.arrives(now, name, chain)
        if again:
            story.loads(number, name, decided=now, blocks=6)
            ready = now + 0.02 + 0.001 * (number % 5)
            story.loaded(number, started=now + 0.001, ready=ready)
            now = ready
        loaded = 6 * BLOCK_TOKENS if again else 0
        new = 8 if again else 6 * BLOCK_TOKENS + 8
        story.scheduled(now, name, loaded=loaded)
        finished = now + 0.004 + new * 1e-4
        story.batch(now, finished, prefill(name, new, loaded))
        if not again:
            story.stored(finished, chain)
            story.stored(finished, chain, tier=Tier.HOST)
            story.removed(finished, chain)
        story.first_token(finished, name)
        story.batch(finished, finished + 0.005, decode(name, loaded + new))
        now = finished + 0.005
        story.finished(now, name)
    return story


@pytest.fixture(scope="session")
def recording(told_story: Story, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The story as a recording."""
    path = tmp_path_factory.mktemp("recordings") / "story.kvr"
    header = RecordingHeader(
        provenance=Provenance.SIMULATED,
        created_wall_seconds=0.0,
        kvready_version="test",
        conditions={"told by": "a test"},
    )
    with RecordingWriter(path, header) as writer:
        for item in told_story.told:
            writer.write(item)
    return path


@pytest.fixture
def kvready() -> Kvready:
    """Run the command line to its end."""

    def run(*arguments: object, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*served.KVREADY, *map(str, arguments)],
            env={**os.environ, **variables},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    return run
