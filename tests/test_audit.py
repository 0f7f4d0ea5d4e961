"""The audit: what was verified stays verified, and what is wrong with a file is named."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kvready.advisor.audit_chain import GENESIS, follow
from kvready.advisor.service import audit as audit_module
from kvready.advisor.service.audit import FILE, Audit, files_of, tail, verify

ENTRIES = 12


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    audit = Audit(tmp_path)
    audit.open()
    for number in range(ENTRIES):
        audit.append("moved", actor="ann", reason=f"reason {number}", policy="dedup")
    audit.close()
    return tmp_path


def test_a_chain_names_its_head_and_the_next_run_goes_on_from_it(folder: Path) -> None:
    chain = verify(folder)
    assert (chain.entries, chain.problem, chain.torn_bytes) == (ENTRIES, "", 0)
    audit = Audit(folder)
    audit.open()
    entry = audit.append("started")
    assert entry.previous == chain.head
    assert entry.sequence == ENTRIES + 1
    assert tail(folder, 2)[-1] == entry
    audit.close()


def test_cut_at_any_byte_it_is_verified_or_its_torn_tail_named(folder: Path) -> None:
    whole = (folder / FILE).read_bytes()
    ends = [0]
    for line in whole.splitlines(keepends=True):
        ends.append(ends[-1] + len(line))
    heads = [follow(whole[:end].splitlines(keepends=True)).head for end in ends]
    assert heads[0] == GENESIS
    for cut in range(len(whole) + 1):
        chain = follow(whole[:cut].splitlines(keepends=True))
        # A line that lacks its end alone is whole.
        complete = sum(end - 1 <= cut for end in ends[1:])
        assert chain.problem == ""
        assert chain.entries == complete
        assert chain.head == heads[complete]
        assert chain.torn_bytes == (0 if cut >= ends[complete] - 1 and cut <= ends[complete]
                                    else cut - ends[complete])  # fmt: skip


@pytest.mark.parametrize("cut_bytes", [1, 2, 60, 200])
def test_a_torn_tail_is_cut_off_and_the_audit_says_so(folder: Path, cut_bytes: int) -> None:
    before = verify(folder)
    os.truncate(folder / FILE, (folder / FILE).stat().st_size - cut_bytes)
    audit = Audit(folder)
    audit.open()
    audit.append("started")
    audit.close()
    after = verify(folder)
    assert after.problem == ""
    events = [entry.event for entry in tail(folder, 3)]
    if cut_bytes == 1:  # the line's end alone
        assert after.entries == before.entries + 1
        assert events == ["moved", "moved", "started"]
    else:
        assert after.entries == before.entries + 1  # one lost, two new
        assert events == ["moved", "mended", "started"]
        assert "torn tail" in tail(folder, 2)[0].reason


def test_any_changed_byte_is_noticed(folder: Path) -> None:
    path = folder / FILE
    whole = path.read_bytes()
    head = verify(folder).head
    for place in range(0, len(whole), 7):
        changed = bytearray(whole)
        changed[place] ^= 1
        chain = follow(bytes(changed).splitlines(keepends=True))
        assert chain.problem or chain.torn_bytes or chain.head != head


def test_a_line_taken_out_or_put_in_is_noticed(folder: Path) -> None:
    lines = (folder / FILE).read_bytes().splitlines(keepends=True)
    assert "does not follow" in follow(lines[:4] + lines[5:]).problem
    assert "does not follow" in follow([*lines[:4], lines[2], *lines[4:]]).problem
    assert "is no line of an audit" in follow([*lines, b"{}\n"]).problem


def test_a_forged_file_is_put_aside_and_stays_evidence(folder: Path) -> None:
    path = folder / FILE
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:4] + lines[5:]))
    audit = Audit(folder)
    audit.open()
    audit.append("started")
    audit.close()
    assert [entry.event for entry in tail(folder, 2)] == ["mended", "started"]
    assert "does not follow" in verify(folder).problem
    again = Audit(folder)
    again.open()
    again.append("started")
    again.close()
    assert len(files_of(folder)) == 2, "the new file is good, and goes on"


def test_rotation_bounds_the_files_and_keeps_the_chain(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(audit_module, "MAX_FILE_BYTES", 4_000)
    monkeypatch.setattr(audit_module, "MAX_FILES", 4)
    audit = Audit(tmp_path)
    audit.open()
    for number in range(200):
        audit.append("moved", reason=str(number) * 20)
    audit.close()
    chain = verify(tmp_path)
    assert len(files_of(tmp_path)) == 4
    assert chain.problem == ""
    assert chain.first_sequence > 1, "the oldest were rotated away"
    assert chain.last_sequence == chain.first_sequence + chain.entries - 1
    assert all(path.stat().st_size < 4_000 + 500 for path in files_of(tmp_path))


def test_a_run_that_ended_between_two_files_goes_on(folder: Path) -> None:
    head = verify(folder).head
    os.replace(folder / FILE, folder / "audit-000000000012.jsonl")
    audit = Audit(folder)
    audit.open()
    assert audit.append("started").previous == head
    audit.close()
    assert verify(folder).entries == ENTRIES + 1


@pytest.mark.parametrize("what", ["removed", "emptied", "added to"])
def test_a_file_changed_under_the_writer_is_noticed(folder: Path, what: str) -> None:
    audit = Audit(folder)
    audit.open()
    path = folder / FILE
    if what == "removed":
        path.unlink()
    elif what == "emptied":
        os.truncate(path, 0)
    else:
        with path.open("ab") as file:
            file.write(b'{"half')
    audit.append("moved")
    audit.close()
    assert [entry.event for entry in tail(folder, 2)] == ["mended", "moved"]
    if what != "added to":
        assert tail(folder, 1)[0].sequence == ENTRIES + 2, "numbers never fall back"


def test_a_full_disk_takes_no_half_line(folder: Path) -> None:
    audit = Audit(folder)
    audit.open()
    before = verify(folder)
    room = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (before.good_bytes + 50, room[1]))
    try:
        with pytest.raises(OSError, match=r"large|part of a line"):
            audit.append("moved")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, room)
    assert verify(folder) == before
    audit.append("moved")
    audit.close()
    assert verify(folder).entries == ENTRIES + 1


WRITER = """
import sys
from pathlib import Path
from kvready.advisor.service.audit import Audit
audit = Audit(Path(sys.argv[1]))
audit.open()
number = 0
while True:
    entry = audit.append("moved", reason=f"{number} " + "x" * (number % 300))
    print(entry.sequence, audit.chain.head, flush=True)
    number += 1
"""


def killed_while_writing(folder: Path, seconds: float) -> tuple[int, str]:
    """The last entry that a writer told of before it was killed."""
    command = [sys.executable, "-c", WRITER, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        first = writer.stdout.readline()
        with contextlib.suppress(subprocess.TimeoutExpired):
            writer.wait(seconds)
        writer.send_signal(signal.SIGKILL)
        told = (first + writer.stdout.read()).split(b"\n")
    sequence, head = told[-2].split()
    return int(sequence), head.decode()


def check_kills(folder: Path, times: int) -> None:
    """Nothing that a writer told of is lost, however it ended."""
    for number in range(times):
        sequence, head = killed_while_writing(folder, 0.003 + 0.0007 * (number % 20))
        chain = verify(folder)
        assert chain.problem == ""
        assert chain.last_sequence in (sequence, sequence + 1)
        if chain.last_sequence == sequence:
            assert chain.head == head


def test_nothing_that_was_told_is_lost_when_the_writer_is_killed(in_memory: Path) -> None:
    check_kills(in_memory, 10)


@pytest.mark.soak
def test_the_same_two_hundred_times(in_memory: Path) -> None:
    for number in range(20):  # each over an audit that is still short: checking it all takes time
        folder = in_memory / str(number)
        folder.mkdir()
        check_kills(folder, 10)
