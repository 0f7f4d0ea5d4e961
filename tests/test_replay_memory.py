"""Twelve replay requests an hour are twelve, however often the sidecar is restarted."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kv_publisher import KvPublisher

from kvready.advisor.service.replay_memory import MAX_FILE_BYTES, ReplayMemory, state_directory
from kvready.advisor.service.taps import build_taps
from kvready.advisor.tap_settings import TapSettings
from kvready.collectors.contract import Gathered
from kvready.collectors.sequence import MAX_ROUNDS_PER_HOUR, ROUND_MEMORY_SECONDS

PATIENCE_SECONDS = 20.0
ENDPOINT = "ipc:///replay"


def test_what_is_kept_is_recalled_by_the_next_run_for_an_hour(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.monotonic()
    asked = [now - 3_500.0, now - 100.0, now]
    ReplayMemory(tmp_path / "deeper" / "still", ENDPOINT).keep(asked)
    again = ReplayMemory(tmp_path / "deeper" / "still", ENDPOINT)
    assert again.recall() == pytest.approx(asked, abs=1.0)
    assert ReplayMemory(tmp_path / "deeper" / "still", "ipc:///other").recall() == []
    wall = time.time() + 200.0
    monkeypatch.setattr(time, "time", lambda: wall)
    assert again.recall() == pytest.approx([now - 300.0, now - 200.0], abs=1.0)
    assert again.failures == 0


def test_a_clock_set_back_makes_no_request_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = ReplayMemory(tmp_path, ENDPOINT)
    memory.keep([time.monotonic()] * 5)
    wall = time.time() - 10 * ROUND_MEMORY_SECONDS
    monkeypatch.setattr(time, "time", lambda: wall)
    assert len(memory.recall()) == 5
    assert all(asked <= time.monotonic() for asked in memory.recall())


@given(content=st.binary(max_size=80) | st.just(b"[" * (MAX_FILE_BYTES + 1)))
def test_a_file_that_is_none_of_ours_is_ignored_and_counted(tmp_path: Path, content: bytes) -> None:
    memory = ReplayMemory(tmp_path, ENDPOINT)
    memory.path.write_bytes(content)
    assert memory.recall() == []
    assert memory.failures == 1


def test_numbers_without_sense_are_no_more_than_a_full_hour(tmp_path: Path) -> None:
    memory = ReplayMemory(tmp_path, ENDPOINT)
    memory.path.write_text('{"asked_wall_seconds": [1e308, -1e308, 0' + ", 1e12" * 200 + "]}")
    recalled = memory.recall()
    assert len(recalled) == MAX_ROUNDS_PER_HOUR
    assert recalled == sorted(recalled)


def test_a_directory_that_cannot_be_written_is_counted_and_nothing_more(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    memory = ReplayMemory(tmp_path / "file" / "below", ENDPOINT)
    memory.keep([1.0])
    assert memory.failures == 1
    assert memory.recall() == []


def test_files_of_endpoints_long_gone_are_removed(tmp_path: Path) -> None:
    old = ReplayMemory(tmp_path, "ipc:///old")
    old.keep([time.monotonic()])
    hours_ago = time.time() - 2 * ROUND_MEMORY_SECONDS
    os.utime(old.path, (hours_ago, hours_ago))
    (tmp_path / "not-ours.json").write_text("{}")
    os.utime(tmp_path / "not-ours.json", (hours_ago, hours_ago))
    new = ReplayMemory(tmp_path, "ipc:///new")
    new.keep([time.monotonic()])
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        [new.path.name, "not-ours.json"]
    )


def test_the_state_directory_follows_the_desktop_convention(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/var/state")
    assert state_directory(None) == Path("/var/state/kvready")
    assert state_directory(Path("/elsewhere")) == Path("/elsewhere")
    monkeypatch.delenv("XDG_STATE_HOME")
    assert state_directory(None) == Path.home() / ".local" / "state" / "kvready"


def test_a_sidecar_restarted_over_and_over_asks_no_more_than_the_hours_share(
    short_dir: Path, tmp_path: Path
) -> None:
    """Each run finds a silent replay socket; the engine is never asked a thirteenth time."""
    publisher = KvPublisher(short_dir, can_replay=True)
    settings = TapSettings(
        kv_events=(publisher.endpoint,),
        replay=(publisher.replay_endpoint or "",),
        state_dir=tmp_path,
    )
    received = 0
    for run in range(MAX_ROUNDS_PER_HOUR + 3):
        (tap,) = build_taps(settings)
        tap.collector.start(Gathered())
        deadline = time.monotonic() + PATIENCE_SECONDS
        wanted = min(run + 1, MAX_ROUNDS_PER_HOUR)
        while received < wanted or tap.collector.coverage().messages < 3:
            assert time.monotonic() < deadline, (run, received)
            publisher.publish(run)
            tap.collector.poll(0.02)
            received += drain(publisher)
        tap.collector.stop()
        received += drain(publisher)
        # As if the two seconds between rounds had passed.
        backdate(tap.memory)
    assert received == MAX_ROUNDS_PER_HOUR
    publisher.end()


def drain(publisher: KvPublisher) -> int:
    router = publisher._router
    taken = 0
    while router is not None and router.poll(0):
        router.recv_multipart()
        taken += 1
    return taken


def backdate(memory: ReplayMemory | None) -> None:
    assert memory is not None
    memory.keep([asked - 10.0 for asked in memory.recall()])
