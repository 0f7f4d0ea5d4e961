"""Each trace reader against its slice, read another way; and against files that are wrong."""

from __future__ import annotations

import gzip
import json
import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvready.advisor.whatif import chains, trace_lines
from kvready.advisor.whatif.distances import ideal_hit_ratio
from kvready.advisor.whatif.mooncake import coarse_tick, spread
from kvready.advisor.whatif.ragpulse import cut_contents
from kvready.advisor.whatif.traces import Reading, TraceFormat, detected, read_workload
from kvready.collectors.errors import RecordingError, WorkloadError
from kvready.collectors.recording import read_recording
from kvready.collectors.records import RequestArrived, RequestFinished

EXAMPLES = Path(__file__).parents[1] / "examples"
TRACES = EXAMPLES / "traces"
CONVERSATION = TRACES / "mooncake-conversation-first-6-minutes.jsonl.gz"
ARXIV = TRACES / "mooncake-arxiv-first-1000.jsonl.gz"
SYNTHETIC = TRACES / "mooncake-synthetic-first-3-minutes.jsonl.gz"
SESSIONS = TRACES / "claude-code-short-sessions.jsonl.gz"
SESSION_IDS = TRACES / "claude-code-one-session-ids.jsonl.gz"
RAGPULSE = TRACES / "ragpulse-first-1000.jsonl.gz"
AZURE = TRACES / "azure-2023-conv-first-2000.csv.gz"
RECORDING = EXAMPLES / "recordings" / "vllm-0.32-cpu-kv-heavy.kvr"
FORMATS = {
    CONVERSATION: TraceFormat.MOONCAKE,
    ARXIV: TraceFormat.MOONCAKE,
    SYNTHETIC: TraceFormat.MOONCAKE,
    SESSIONS: TraceFormat.SESSIONS,
    SESSION_IDS: TraceFormat.SESSIONS,
    RAGPULSE: TraceFormat.RAGPULSE,
    AZURE: TraceFormat.AZURE,
    RECORDING: TraceFormat.RECORDING,
}
MOONCAKE_LINE = {"timestamp": 0, "input_length": 1100, "output_length": 5, "hash_ids": [7, 8, 9]}
SESSION_LINE = {
    "id": "s",
    "block_size": 64,
    "hash_id_scope": "local",
    "requests": [{"t": 0.0, "in": 130, "out": 4, "hash_ids": [1, 2]}],
}


def unpacked(path: Path) -> bytes:
    return gzip.decompress(path.read_bytes())


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in unpacked(path).splitlines() if line.strip()]


def written(path: Path, *lines: object) -> Path:
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return path


@pytest.mark.parametrize("path", FORMATS, ids=lambda path: path.name)
def test_a_file_is_known_by_its_first_line_and_read_whole(path: Path) -> None:
    assert detected(path) is FORMATS[path]
    workload = read_workload(path)
    parents: dict[int, int] = {}
    place: dict[str, int] = {}
    for index, request in enumerate(workload.requests):
        assert request.prompt_tokens >= 1
        assert len(request.blocks) <= request.prompt_tokens // workload.block_tokens
        parent = -1
        for block in request.blocks:
            assert parents.setdefault(block, parent) == parent  # an id is one whole prefix
            parent = block
        if request.after:
            assert place[request.after] < index
        place[request.request_id] = index
    assert len(place) == len(workload.requests)
    arrivals = [request.arrived_seconds for request in workload.requests]
    assert arrivals == sorted(arrivals)
    assert arrivals[0] == 0


@pytest.mark.parametrize("path", FORMATS, ids=lambda path: path.name)
def test_a_limit_reads_that_many_and_no_more(path: Path) -> None:
    few = read_workload(path, reading=Reading(first=13))
    assert len(few.requests) == 13
    if FORMATS[path] not in (TraceFormat.SESSIONS, TraceFormat.RAGPULSE):  # lines out of order
        assert few.requests == read_workload(path).requests[:13]


@pytest.mark.parametrize("path", [CONVERSATION, ARXIV, SYNTHETIC], ids=lambda path: path.name)
def test_a_mooncake_request_is_its_line_without_the_partial_block(path: Path) -> None:
    workload = read_workload(path)
    lines = lines_of(path)
    assert workload.block_tokens == 512
    assert len(workload.requests) == len(lines)
    names: dict[int, int] = {}
    for request, line in zip(workload.requests, lines, strict=True):
        assert request.arrived_seconds == pytest.approx(line["timestamp"] / 1e3)
        assert request.prompt_tokens == line["input_length"]
        assert request.output_tokens == line["output_length"]
        whole = line["hash_ids"][: line["input_length"] // 512]
        assert len(request.blocks) == len(whole)
        # The same ids, numbered anew.
        for block, told in zip(request.blocks, whole, strict=True):
            assert names.setdefault(told, block) == block
    assert len(set(names.values())) == len(names)


def test_a_coarse_clock_is_told_and_spread_only_where_asked() -> None:
    plain = read_workload(CONVERSATION)
    assert any("3 s grid" in note for note in plain.notes)
    moved = read_workload(CONVERSATION, reading=Reading(spread_seed=1))
    assert any("spread inside it, seed 1" in note for note in moved.notes)
    assert moved == read_workload(CONVERSATION, reading=Reading(spread_seed=1))
    other = read_workload(CONVERSATION, reading=Reading(spread_seed=2))
    assert [r.arrived_seconds for r in other.requests] != [
        r.arrived_seconds for r in moved.requests
    ]
    for still, drawn in zip(plain.requests, moved.requests, strict=True):
        assert still.request_id == drawn.request_id
        assert 0 <= drawn.arrived_seconds - still.arrived_seconds <= 3
    stamps = {request.arrived_seconds for request in moved.requests}
    assert len(stamps) == len(moved.requests)


def test_a_fine_clock_is_left_alone() -> None:
    plain = read_workload(SYNTHETIC)
    assert not any("grid" in note for note in plain.notes)
    assert read_workload(SYNTHETIC, reading=Reading(spread_seed=1)) == plain


@given(st.lists(st.integers(0, 40), min_size=2, max_size=60), st.integers(0, 9))
def test_spreading_keeps_the_order_and_stays_inside_the_tick(ticks: list[int], seed: int) -> None:
    arrivals = [3.0 * tick for tick in sorted(ticks)]
    moved = spread(arrivals, 3.0, seed)
    assert moved == sorted(moved)
    for still, drawn in zip(arrivals, moved, strict=True):
        assert still <= drawn < still + 3.0


def test_a_tick_is_coarse_only_if_most_requests_share_a_stamp() -> None:
    assert coarse_tick([0.0, 0.0, 3.0, 3.0, 3.0, 6.0, 6.0]) == 3.0
    assert coarse_tick([0.0, 3.0, 6.0, 6.0, 9.0]) == 0
    assert coarse_tick([0.0, 0.0, 0.1, 0.1, 0.2, 0.2]) == 0
    assert coarse_tick([1.0]) == 0


def test_bailian_lines_are_read_by_their_documented_fields(tmp_path: Path) -> None:
    line = {"timestamp": 1.5, "input_length": 40, "output_length": 3, "hash_ids": [4, 5, 6]}
    bailian = {"chat_id": 1, "parent_chat_id": -1, "turn": 1, "type": "text"}
    later = line | {"timestamp": 2.5, "hash_ids": [4, 9, 6]}
    path = written(tmp_path / "bailian.jsonl", line | bailian, later | bailian)
    assert detected(path) is TraceFormat.BAILIAN
    workload = read_workload(path)
    assert workload.block_tokens == 16
    first, second = workload.requests
    assert (first.arrived_seconds, second.arrived_seconds) == (0.0, 1.0)
    assert first.request_class == "text"
    # The partial third block is left out; after another second block no id is the same prefix.
    assert len(first.blocks) == len(second.blocks) == 2
    assert first.blocks[0] == second.blocks[0]
    assert first.blocks[1] != second.blocks[1]


def flat_sessions(path: Path) -> dict[str, dict[str, Any]]:
    """Each request by its name, with its time by the session's clock and its ids."""
    found: dict[str, dict[str, Any]] = {}

    def take(entries: list[dict[str, Any]], name: str, origin: float) -> None:
        for index, entry in enumerate(entries):
            ranges = entry.get("hash_ranges")
            ids = entry.get("hash_ids")
            if ranges is not None:
                ids = [i for first, last in ranges for i in range(first, last + 1)]
            if ids is not None:
                found[f"{name}/{index}"] = entry | {"at": origin + entry["t"], "ids": ids}
            take(entry.get("requests", []), f"{name}/{entry.get('agent_id')}", origin + entry["t"])

    for session in lines_of(path):
        take(session["requests"], session["id"], 0.0)
    return found


@pytest.mark.parametrize("path", [SESSIONS, SESSION_IDS], ids=lambda path: path.name)
def test_rounds_keep_their_clock_their_think_times_and_their_ids(path: Path) -> None:
    workload = read_workload(path)
    told = flat_sessions(path)
    assert {request.request_id for request in workload.requests} == set(told)
    starts: dict[str, set[float]] = {}
    offsets: dict[str, set[int]] = {}
    for request in workload.requests:
        entry = told[request.request_id]
        session = request.request_id.partition("/")[0]
        starts.setdefault(session, set()).add(round(request.arrived_seconds - entry["at"], 6))
        differences = {b - i for b, i in zip(request.blocks, entry["ids"], strict=True)}
        offsets.setdefault(session, set()).update(differences)
        assert (request.prompt_tokens, request.output_tokens) == (entry["in"], entry["out"])
        if request.request_class == "main" and request.after and "think_time" in entry:
            assert request.think_seconds == entry["think_time"]
    assert all(len(start) == 1 for start in starts.values())
    # Each session's ids are moved as one, to where no other session's are.
    assert all(len(offset) == 1 for offset in offsets.values())
    owners: dict[int, str] = {}
    for request in workload.requests:
        for block in request.blocks:
            session = request.request_id.partition("/")[0]
            assert owners.setdefault(block, session) == session


def test_subagents_start_after_the_round_that_called_them() -> None:
    requests = {request.request_id: request for request in read_workload(SESSIONS).requests}
    inner = [request for request in requests.values() if request.request_class == "subagent"]
    assert inner
    for request in inner:
        before = requests[request.after]
        gap = request.arrived_seconds - before.arrived_seconds
        if before.request_class == "main":
            assert request.think_seconds <= gap + 1e-6
        else:
            assert before.request_id.rpartition("/")[0] == request.request_id.rpartition("/")[0]
    # Its parent does not wait for it in our chain: the next think time covers it.
    main = [r for r in requests.values() if r.request_class == "main" and r.after]
    assert all(requests[request.after].request_class == "main" for request in main)


def test_ranges_say_the_same_as_ids(tmp_path: Path) -> None:
    session = lines_of(SESSION_IDS)[0]
    for entry in session["requests"]:
        ids = entry.pop("hash_ids")
        cuts = [i for i in range(1, len(ids)) if ids[i] != ids[i - 1] + 1]
        edges = [0, *cuts, len(ids)]
        pairs = pairwise(edges)
        entry["hash_ranges"] = [[ids[a], ids[b - 1]] for a, b in pairs if a < b]
    path = written(tmp_path / "ranges.jsonl", session)
    assert read_workload(path).requests == read_workload(SESSION_IDS).requests


def test_starts_of_sessions_are_drawn_by_a_seed_at_their_rate() -> None:
    def starts(seed: int, rate: float = 0.1) -> list[float]:
        reading = Reading(seed=seed, sessions_per_second=rate)
        requests = read_workload(SESSIONS, reading=reading).requests
        first: dict[str, float] = {}
        for request in requests:
            first.setdefault(request.request_id.partition("/")[0], request.arrived_seconds)
        return list(first.values())

    assert starts(1) == starts(1)
    assert starts(1) != starts(2)
    assert starts(1, 0.2) == pytest.approx([start / 2 for start in starts(1)], abs=1.0)
    gaps = [start / (len(every) - 1) for every in map(starts, range(8)) for start in every[-1:]]
    mean = sum(gaps) / len(gaps)
    assert mean == pytest.approx(10, rel=5 / math.sqrt(8 * 33))
    notes = read_workload(SESSIONS).notes
    assert any("Poisson process of 0.1/s, seed 0" in note for note in notes)


def test_long_think_times_are_cut_only_where_asked() -> None:
    whole = read_workload(SESSIONS)
    cut = read_workload(SESSIONS, reading=Reading(longest_think_seconds=30))
    assert max(request.think_seconds for request in whole.requests) > 1_000
    before = {request.request_id: request for request in whole.requests}
    for request in cut.requests:
        assert request.think_seconds == min(before[request.request_id].think_seconds, 30)
        assert request.arrived_seconds <= before[request.request_id].arrived_seconds + 1e-6
    assert any("cut to 30 s" in note for note in cut.notes)


contents = st.lists(st.tuples(st.integers(0, 2), st.integers(1, 9)), max_size=6)


@given(contents, contents, st.integers(1, 8))
def test_cut_contents_are_equal_exactly_as_far_as_their_tokens(
    one: list[tuple[int, int]], other: list[tuple[int, int]], size: int
) -> None:
    """A content's tokens are told apart by (content, position); its length is by its id."""

    def tokens(pieces: list[tuple[int, int]]) -> list[tuple[int, int]]:
        return [(content, at) for content, length in pieces for at in range(length)]

    def shared(a: list[Any], b: list[Any]) -> int:
        same = 0
        while same < min(len(a), len(b)) and a[same] == b[same]:
            same += 1
        return same

    cut_one, cut_other = (list(cut_contents(pieces, size)) for pieces in (one, other))
    assert len(cut_one) == len(tokens(one)) // size
    assert shared(cut_one, cut_other) == shared(tokens(one), tokens(other)) // size


def test_ragpulse_prompts_are_their_contents_in_the_documented_order() -> None:
    workload = read_workload(RAGPULSE, reading=Reading(block_tokens=1, first=100))
    lengths = json.loads(unpacked(TRACES / "ragpulse_lengths.json.gz"))
    order = ("sys_prompt", "passages_ids", "history", "web_search", "user_input")
    prefixes: dict[tuple[int, ...], int] = {}
    by_line = {request.request_id: request for request in workload.requests}
    hits = 0
    for number, line in enumerate(lines_of(RAGPULSE)[:100], start=1):
        request = by_line[f"line-{number}"]
        told = [content for part in order for content in line["hash_ids"][part]]
        at = 0
        for upto, content in enumerate(told, start=1):
            at += lengths[str(content)]
            block = request.blocks[at - 1]
            hits += tuple(told[:upto]) in prefixes
            assert prefixes.setdefault(tuple(told[:upto]), block) == block
        assert len(request.blocks) == at <= request.prompt_tokens == line["input_length"]
    assert hits > 100


def test_ragpulse_needs_its_lengths(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl.gz"
    path.write_bytes(RAGPULSE.read_bytes())
    with pytest.raises(WorkloadError, match=r"put ragpulse_lengths\.json\.gz beside it"):
        read_workload(path)
    reading = Reading(lengths=TRACES / "ragpulse_lengths.json.gz")
    assert read_workload(path, reading=reading).requests == read_workload(RAGPULSE).requests
    lengths = written(tmp_path / "lengths.json", {"1": 2})
    with pytest.raises(WorkloadError, match="line 1: content 8302 has no length"):
        read_workload(path, reading=Reading(lengths=lengths))
    with pytest.raises(WorkloadError, match="must be one JSON object"):
        read_workload(path, reading=Reading(lengths=written(tmp_path / "bad.json", [1])))


def test_azure_tells_lengths_and_no_reuse() -> None:
    workload = read_workload(AZURE)
    rows = unpacked(AZURE).decode().split()  # date, "time,in,out", date, ...
    told = [tuple(map(int, row.split(",")[1:])) for row in rows[2::2]]
    assert [(r.prompt_tokens, r.output_tokens) for r in workload.requests] == told
    assert ideal_hit_ratio(workload) == 0
    assert any("nothing is ever used again" in note for note in workload.notes)


def test_a_recordings_requests_are_what_its_scheduler_took() -> None:
    workload = read_workload(RECORDING)
    records = [item.record for item in read_recording(RECORDING)]
    arrived = [record for record in records if isinstance(record, RequestArrived)]
    ended = {r.request_id: r.output_tokens for r in records if isinstance(r, RequestFinished)}
    assert len(workload.requests) == len(arrived)
    names: dict[int, int] = {}
    for request, record in zip(workload.requests, arrived, strict=True):
        assert request.request_id == record.request_id
        assert request.prompt_tokens == record.prompt_tokens
        assert request.output_tokens == ended[record.request_id]
        since = record.arrived_seconds - arrived[0].arrived_seconds
        assert request.arrived_seconds == pytest.approx(since)
        assert request.request_class == record.request_class
        whole = record.block_hashes[: record.prompt_tokens // record.block_tokens]
        for block, told in zip(request.blocks, whole, strict=True):
            assert names.setdefault(told, block) == block
    assert "recorded REAL" in workload.notes


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"timestamp": 0, "input_length": 1100', "line 2: Input data was truncated"),
        (json.dumps(MOONCAKE_LINE | {"hash_ids": [1]}), "line 2: 1 ids for 1100 tokens"),
        (json.dumps(MOONCAKE_LINE | {"hash_ids": [1, 2, 3, 4]}), "line 2: 4 ids for 1100 tokens"),
        (json.dumps(MOONCAKE_LINE | {"input_length": 0}), "line 2: lengths must be"),
        (json.dumps(MOONCAKE_LINE | {"output_length": -1}), "line 2: lengths must be"),
        (json.dumps(MOONCAKE_LINE | {"hash_ids": ["x"]}), "line 2: Expected `int`"),
        (json.dumps({"timestamp": 0}), "line 2: Object missing required field"),
    ],
)
def test_a_bad_mooncake_line_is_named_with_the_fix(tmp_path: Path, line: str, reason: str) -> None:
    path = written(tmp_path / "trace.jsonl", MOONCAKE_LINE)
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(WorkloadError, match=f"{reason}.*; .*line"):
        read_workload(path)


@pytest.mark.parametrize(
    ("change", "entry", "reason"),
    [
        ({"hash_id_scope": "global"}, {}, "hash_id_scope 'global' is not known"),
        ({"block_size": 0}, {}, "block_size must be 1 or more"),
        ({"block_size": 32}, {}, "blocks of 32 tokens after blocks of 64"),
        ({}, {"in": 100}, "2 blocks of 64 in 100 tokens"),
        ({}, {"hash_ids": [-1, 2]}, "is not within"),
        ({}, {"hash_ids": None, "hash_ranges": [[5, 4]]}, "is not within"),
        ({}, {"hash_ids": None, "hash_ranges": [[0, 10**15]]}, "is not within"),
        ({}, {"t": "soon"}, "Expected `float`"),
    ],
)
def test_a_bad_session_is_named(
    tmp_path: Path, change: dict[str, Any], entry: dict[str, Any], reason: str
) -> None:
    entries = [SESSION_LINE["requests"][0] | entry]  # type: ignore[index]
    path = written(
        tmp_path / "s.jsonl", SESSION_LINE, SESSION_LINE | {"requests": entries} | change
    )
    with pytest.raises(WorkloadError, match=f"line 2: .*{reason}"):
        read_workload(path)


def test_a_bad_azure_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.68,374,44\nx,1,2\n"
    )
    with pytest.raises(WorkloadError, match=r"line 3: .*columns must be TIMESTAMP"):
        read_workload(path)


def test_a_damaged_gzip_file_says_how_far_it_was_whole(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl.gz"
    path.write_bytes(CONVERSATION.read_bytes()[:40_000])
    with pytest.raises(WorkloadError, match=r"damaged after line \d+ .*fetch the file again"):
        read_workload(path)
    assert len(read_workload(path, reading=Reading(first=5)).requests) == 5


def test_a_plain_file_is_read_as_a_packed_one(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_bytes(unpacked(ARXIV))
    assert read_workload(path).requests == read_workload(ARXIV).requests


@pytest.mark.parametrize("text", ["", "hello\n", "[]\n", '{"a": 1}\n', "\x00\xff\n"])
def test_what_is_no_trace_is_refused_with_the_formats(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x"
    path.write_text(text)
    with pytest.raises(WorkloadError, match="mooncake, bailian, sessions, ragpulse, azure"):
        read_workload(path)


def test_files_that_cannot_be_read_say_why(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match=r"cannot read .*: No such file"):
        read_workload(tmp_path / "missing")
    with pytest.raises(WorkloadError, match=r"cannot read .*: Is a directory"):
        read_workload(tmp_path)
    empty = tmp_path / "empty"
    empty.touch()
    with pytest.raises(WorkloadError, match="holds no request"):
        read_workload(empty, TraceFormat.MOONCAKE)
    with pytest.raises(RecordingError, match="no kvready recording"):
        read_workload(CONVERSATION, TraceFormat.RECORDING)


def test_lines_and_workloads_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path / "trace.jsonl", MOONCAKE_LINE, MOONCAKE_LINE)
    with monkeypatch.context() as patch:
        patch.setattr(trace_lines, "MAX_LINE_BYTES", 20)
        with pytest.raises(WorkloadError, match="line 1 is longer than 20 bytes"):
            read_workload(path)
    with monkeypatch.context() as patch:
        patch.setattr(chains, "MAX_REQUESTS", 1)
        with pytest.raises(WorkloadError, match="read fewer requests"):
            read_workload(path)
    monkeypatch.setattr(chains, "MAX_BLOCK_REFERENCES", 3)
    with pytest.raises(WorkloadError, match="read fewer requests"):
        read_workload(path)
