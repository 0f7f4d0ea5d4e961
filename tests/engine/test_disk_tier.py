"""A disk tier's answers to vLLM's tiering manager, in the engine's own Python."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]

CHUNK_BYTES = 8192
HIT, MISS = "HIT", "MISS"


@pytest.fixture(scope="module")
def said(engine_python: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("disk")
    done = subprocess.run(
        [engine_python, Path(__file__).with_name("drive_disk_tier.py"), folder],
        capture_output=True,
        text=True,
        env={**os.environ, "VLLM_NO_USAGE_STATS": "1"},
        timeout=200,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert list(folder.iterdir()) == []
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_what_was_stored_is_fetched_and_both_are_told(said: dict[str, Any]) -> None:
    assert said["stored"] == {
        "success": True,
        "kept": [],
        "bytes": 2 * CHUNK_BYTES,
        "events": [["stored", "STORAGE", "a"], ["stored", "STORAGE", "b"]],
        "present": {"a": HIT, "b": HIT, "c": MISS, "d": MISS},
    }
    assert said["fetched"]["success"]
    assert said["fetched"]["events"] == []
    assert said["content"] == [1, 2]


def test_a_chunk_that_is_there_is_not_written_again(said: dict[str, Any]) -> None:
    assert (said["again"]["success"], said["again"]["bytes"]) == (True, 0)
    assert said["again"]["events"] == []


def test_the_least_recently_used_chunk_gives_way_and_is_told_gone(said: dict[str, Any]) -> None:
    assert said["evicts"]["events"] == [["removed", "STORAGE", "b"], ["stored", "STORAGE", "d"]]
    assert said["evicts"]["present"] == {"a": HIT, "b": MISS, "c": HIT, "d": HIT}


def test_a_fetch_of_what_is_gone_fails_for_that_chunk_alone(said: dict[str, Any]) -> None:
    assert (said["gone"]["success"], said["gone"]["kept"]) == (False, ["c"])


def test_a_disk_that_fails_loses_the_chunk_and_nothing_else(said: dict[str, Any]) -> None:
    broken = said["broken"]
    assert (broken["success"], broken["kept"], broken["bytes"]) == (False, [], 0)
    assert broken["events"] == [["removed", "STORAGE", "a"]]
    assert broken["present"]["a"] == MISS
