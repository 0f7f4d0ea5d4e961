"""A recording gives back what was written, whole up to where a crash or a bad disk cut it."""

from __future__ import annotations

import os
import random
import zlib
from enum import Enum
from pathlib import Path
from typing import get_args

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from story import ENGINE

from kvready.collectors.asked import AskedCandidate
from kvready.collectors.commanded import RestoredPolicy
from kvready.collectors.errors import RecordingError
from kvready.collectors.recording import (
    Provenance,
    RecordingHeader,
    RecordingWriter,
    read_recording,
)
from kvready.collectors.records import (
    AnyRecord,
    BatchMember,
    BatchPlanned,
    BlocksStored,
    CounterName,
    CountersScraped,
    EngineDescribed,
    Ingested,
    KillSwitched,
    Outcome,
    PolicyCommanded,
    RequestArrived,
    RequestFinished,
    Surface,
    Tick,
    Tier,
)
from kvready.collectors.salting import Salter

HEADER = RecordingHeader(Provenance.SIMULATED, created_wall_seconds=1.0, kvready_version="test")


def written(path: Path, count: int, records_per_member: int = 5) -> list[Ingested]:
    items = [Ingested(n, n / 10, "tap", Tick(n / 10, 1e9 + n / 10)) for n in range(count)]
    with RecordingWriter(path, HEADER) as writer:
        for item in items:
            writer.write(item)
            if item.ingest % records_per_member == records_per_member - 1:
                writer.flush()
    return items


def test_what_is_written_is_read_back_with_its_header(tmp_path: Path) -> None:
    items = written(tmp_path / "a.kvr", 23)
    recording = read_recording(tmp_path / "a.kvr")
    assert recording.header == HEADER
    assert list(recording) == items
    assert recording.damage is None


@settings(max_examples=60, deadline=None)
@given(cut=st.integers(min_value=1), data=st.data())
def test_a_truncated_or_corrupt_tail_loses_only_itself(
    tmp_path_factory: pytest.TempPathFactory, cut: int, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("recording") / "a.kvr"
    items = written(path, 40)
    whole = path.read_bytes()
    header_bytes = len(whole) - len(whole.split(b"\x1f\x8b", 2)[2]) - 2
    at = header_bytes + cut % (len(whole) - header_bytes)
    if data.draw(st.booleans(), label="truncate"):
        path.write_bytes(whole[:at])
    else:
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])
    recording = read_recording(path)
    read = list(recording)
    assert read == items[: len(read)], "what is read is a true prefix"
    assert len(read) % 5 == 0, "only whole members are trusted"
    if len(read) < len(items) and at > 0:
        truncated_between_members = len(whole[:at]) and recording.damage is None
        assert recording.damage is not None or truncated_between_members


@pytest.mark.parametrize("content", [b"", b"not a recording", b"\x1f\x8b\x08\x00garbage", b"{}\n"])
def test_a_file_that_is_no_recording_is_refused_with_the_fix(
    tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / "no.kvr"
    path.write_bytes(content)
    with pytest.raises(RecordingError, match="kvready record"):
        read_recording(path)


def test_a_recording_is_never_overwritten(tmp_path: Path) -> None:
    written(tmp_path / "a.kvr", 1)
    with pytest.raises(RecordingError, match="never overwritten"):
        RecordingWriter(tmp_path / "a.kvr", HEADER)


def add_member(path: Path, *lines: bytes) -> None:
    """A whole, checksummed member more, holding these lines."""
    compressor = zlib.compressobj(wbits=31)
    member = compressor.compress(b"".join(line + b"\n" for line in lines)) + compressor.flush()
    path.write_bytes(path.read_bytes() + member)


def test_kinds_of_a_later_version_are_skipped_counted_and_told(tmp_path: Path) -> None:
    path = tmp_path / "a.kvr"
    items = written(path, 3)
    later = Ingested(5, 1.0, "tap", Tick(1.0, 2.0))
    news = [b'[%d,0.5,"tap",{"kind":"later_%d","x":[1]}]' % (place, place) for place in range(20)]
    add_member(path, *news, msgspec.json.encode(later))
    recording = read_recording(path)
    assert list(recording) == [*items, later]
    assert recording.damage is not None
    assert "20 records" in recording.damage
    assert "later_0" in recording.damage
    assert "upgrade kvready" in recording.damage
    assert len(recording.damage) < 300


@pytest.mark.parametrize(
    "line",
    [
        b"5",
        b"{}",
        b"[1]",
        b"not json",
        b'[1,0.5,"tap",{"kind":5}]',
        b'[1,0.5,"tap",{"kind":"tick","tick_seconds":null,"tick_wall_seconds":1}]',
    ],
)
def test_a_line_that_is_no_record_is_an_error_that_names_the_fix(
    tmp_path: Path, line: bytes
) -> None:
    path = tmp_path / "a.kvr"
    written(path, 3)
    add_member(path, line)
    with pytest.raises(RecordingError, match=r"record 4 cannot be read .* upgrade kvready"):
        list(read_recording(path))


def test_what_lies_behind_damage_is_measured_and_not_read(tmp_path: Path) -> None:
    path = tmp_path / "a.kvr"
    items = written(path, 5)
    whole = path.stat().st_size
    size = 1 << 36
    os.truncate(path, size)  # sparse: reading it would take minutes
    recording = read_recording(path)
    assert list(recording) == items
    assert recording.damage is not None
    assert f"{size - whole} bytes after offset {whole} are lost" in recording.damage


def test_what_is_no_file_is_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, Path("/dev/zero")):
        with pytest.raises(RecordingError, match="is no file"):
            read_recording(path)


SENSITIVE_TEXT = {"request_id", "tenant", "adapter", "detail", "request_class"}
SENSITIVE_TEXT |= {"actor", "pool"}
SENSITIVE_NUMBERS = {"block_hashes", "parent_hash", "extra_key_hashes", "content_keys"}
SENSITIVE_NUMBERS |= {"session_hash"}
SECRET_TEXT, SECRET_NUMBER = "secret-of-a-client", 0x5EC2E7
SECRET_WALL_SECONDS = 1_764_457_555.125
SAID = (PolicyCommanded, KillSwitched, RestoredPolicy)  # whose reasons are a person's words


def sample(kind: type[msgspec.Struct]) -> msgspec.Struct:
    """A record of any kind whose sensitive fields all hold the secrets."""
    values: dict[str, object] = {}
    for field in msgspec.structs.fields(kind):
        if field.name in SENSITIVE_TEXT or (field.name == "reason" and kind in SAID):
            values[field.name] = SECRET_TEXT
        elif field.name in SENSITIVE_NUMBERS:
            one = SECRET_NUMBER
            values[field.name] = (one,) if field.name.endswith(("hashes", "keys")) else one
        elif field.name == "model":
            values[field.name] = f"/srv/{SECRET_TEXT}/models/tiny"
        elif field.name.endswith("wall_seconds"):
            values[field.name] = SECRET_WALL_SECONDS
        elif kind is CountersScraped and field.name == "values":
            values[field.name] = {CounterName.STARTED_WALL_SECONDS: SECRET_WALL_SECONDS}
        elif field.name == "members":
            values[field.name] = (BatchMember(SECRET_TEXT, 1, 0, True),)
        elif field.name == "candidates":
            values[field.name] = (sample(AskedCandidate),)
        elif field.name == "policies":
            values[field.name] = (sample(RestoredPolicy),)
        elif field.name == "held_by" and kind is not RestoredPolicy:
            values[field.name] = ("api",)
        elif field.type in (str, "str") and field.required:
            values[field.name] = "word"
        elif field.name == "waiting":
            values[field.name] = (SECRET_TEXT,)
        elif field.required:
            values[field.name] = next(iter(field.type), 0) if _is_enum(field.type) else 0
    return kind(**values)


def _is_enum(annotation: object) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, Enum)


@pytest.mark.parametrize("kind", get_args(AnyRecord), ids=lambda kind: kind.__name__)
def test_no_kind_of_record_leaves_the_salter_with_a_secret(kind: type[msgspec.Struct]) -> None:
    salted = Salter()(sample(kind))  # type: ignore[arg-type]
    text = msgspec.json.encode(salted).decode()
    assert SECRET_TEXT not in text
    assert str(SECRET_NUMBER) not in text
    assert str(int(SECRET_WALL_SECONDS)) not in text


def test_every_wall_clock_is_set_back_by_the_same_time() -> None:
    salt = Salter()
    shifts = set()
    for kind in get_args(AnyRecord):
        before, after = sample(kind), salt(sample(kind))
        shifts |= {
            getattr(before, name) - getattr(after, name)
            for name in kind.__struct_fields__
            if name.endswith("wall_seconds")
        }
    scrape = salt(CountersScraped(1.0, values={CounterName.STARTED_WALL_SECONDS: 1.7e9}))
    assert isinstance(scrape, CountersScraped)
    shifts.add(1.7e9 - scrape.values[CounterName.STARTED_WALL_SECONDS])
    shifts.add(1.7e9 - salt.wall(1.7e9))
    assert len(shifts) == 1
    assert shifts.pop() > 0
    assert Salter().wall(1.7e9) != salt.wall(1.7e9), "another recording, another time"


@pytest.mark.parametrize(
    ("model", "shared"),
    [
        ("/srv/acme/secret-finetune", "secret-finetune"),
        ("./models/tiny/", "tiny"),
        ("~/models/tiny", "tiny"),
        ("acme/eu/tiny", "tiny"),
        ("owner/model", "owner/model"),
        ("tiny", "tiny"),
    ],
)
def test_the_path_to_a_model_is_cut_to_its_name(model: str, shared: str) -> None:
    salted = Salter()(msgspec.structs.replace(ENGINE, model=model))
    assert isinstance(salted, EngineDescribed)
    assert salted.model == shared


@pytest.mark.parametrize("block_hash", [-5, 1 << 64])
def test_a_hash_that_cannot_be_one_is_refused_clearly(block_hash: int) -> None:
    arrived = RequestArrived("r", Surface.SCHEDULER, 1.0, 1, (block_hash,), 32)
    with pytest.raises(RecordingError, match="no unsigned 64-bit hash"):
        Salter()(arrived)


def test_salting_replaces_every_hash_and_id_consistently() -> None:
    hashes = tuple(random.Random(1).randrange(1, 2**64) for _ in range(4))
    arrived = RequestArrived("cmpl-user-7", Surface.SCHEDULER, 1.0, 128, hashes, 32, tenant="acme")
    stored = BlocksStored("e", 0, 1, 1.0, Tier.HBM, hashes[1:], hashes[0], 32)
    planned = BatchPlanned(1, 1.0, 1.0, (BatchMember("cmpl-user-7", 9, 0, True),), ("cmpl-user-7",))
    finished = RequestFinished("cmpl-user-7", 2.0, Outcome.FINISHED)
    salt = Salter()
    a, s, p, f = (salt(record) for record in (arrived, stored, planned, finished))
    assert isinstance(a, RequestArrived)
    assert isinstance(s, BlocksStored)
    assert isinstance(p, BatchPlanned)
    assert isinstance(f, RequestFinished)
    assert not set(a.block_hashes) & set(hashes)
    assert (s.parent_hash, *s.block_hashes) == a.block_hashes, "the chain still joins"
    assert {p.members[0].request_id, p.waiting[0], f.request_id} == {a.request_id}
    assert "user" not in a.request_id
    assert a.tenant != "acme"
