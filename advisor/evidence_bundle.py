"""A gate's verdict with everything that it follows from, in one file that anyone can replay.

A zip archive of three members, none compressed (a recording is already): `manifest.json` says what
the others must be, byte for byte, `reports.json` holds the verdicts, and `recording.kvr` every
record up to them, with what the models started from in its header.
"""

from __future__ import annotations

import hashlib
import tempfile
import zipfile
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import msgspec

from kvready.advisor.gates import report_bytes
from kvready.advisor.modes import Transition
from kvready.advisor.playback import play
from kvready.advisor.report_difference import differences
from kvready.advisor.verdicts import GateReport
from kvready.advisor.version import VERSION
from kvready.collectors.errors import RecordingError
from kvready.collectors.recording import (
    MAX_RECORDING_BYTES,
    Recording,
    RecordingWriter,
    read_recording,
)
from kvready.collectors.records import Ingested
from kvready.collectors.slicing import Slice

FORMAT = "kvready-evidence"
FORMAT_VERSION = 1
MANIFEST, REPORTS, RECORDING = "manifest.json", "reports.json", "recording.kvr"
MAX_MANIFEST_BYTES = 64 * 1024
MAX_REPORT_BYTES = 16 * 1024 * 1024
MAX_REPORTS = 64
MAX_MOVES = 1_024  # of policies, the latest
PIECE_BYTES = 1 << 20
LONG_AGO = (1980, 1, 1, 0, 0, 0)  # so that the same evidence makes the same file


class Member(msgspec.Struct, frozen=True):
    """What one member of the archive must be."""

    size_bytes: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True):
    """What a bundle is of."""

    kvready_version: str
    report_ids: tuple[str, ...]
    reports: Member
    recording: Member
    format: str = FORMAT
    version: int = FORMAT_VERSION


class Verified(msgspec.Struct, frozen=True):
    """Whether a bundle's verdicts come out again."""

    equal: bool
    report_ids: tuple[str, ...]
    differences: list[str]
    made_by: str  # the version of kvready
    replayed_by: str
    moves: tuple[Transition, ...] = ()  # of policies, that the recording leads to


def make_bundle(
    source: Path,
    target: Path,
    report_id: str = "",
    cut: Slice | None = None,
    kept: Sequence[GateReport] = (),
) -> tuple[GateReport, ...]:
    """Bundle a recording, or a part of it, with the verdicts that it leads to.

    The last ones, or those of the moment of one report; or, unseen, those of one moment that a
    sidecar kept while it wrote the recording. Raises `RecordingError`.
    """
    if target.exists():
        raise RecordingError(f"{target} exists; bundles are never overwritten: name another file")
    with tempfile.TemporaryDirectory(prefix="kvready-") as folder:
        part = source if cut is None else Path(folder) / "part.kvr"
        if cut is not None:
            _copy(read_recording(source), cut.of(read_recording(source)), part)
        reports = tuple(kept[:MAX_REPORTS]) or _chosen(part, report_id)
        copied = Path(folder) / RECORDING
        last_ingest = reports[0].made_ingest
        recording = read_recording(part)
        _copy(recording, _until(recording, last_ingest), copied)
        _write(target, reports, copied)
    return reports


def verify_bundle(path: Path) -> Verified:
    """Replay a bundle and hold what comes out against what it holds. Raises `RecordingError`."""
    with _opened(path) as archive:
        manifest = _manifest(path, archive)
        body = _read(path, archive, REPORTS, manifest.reports, MAX_REPORT_BYTES)
        there = _decoded_reports(path, body)
        with tempfile.TemporaryDirectory(prefix="kvready-") as folder:
            recording = Path(folder) / RECORDING
            with recording.open("wb") as file:
                _extract(path, archive, RECORDING, manifest.recording, file)
            here, moves = _replayed(recording, there)
    told = differences(here, there)
    is_equal = [report_bytes(one) for one in here] == [report_bytes(one) for one in there]
    return Verified(
        equal=is_equal,
        report_ids=manifest.report_ids,
        differences=told,
        made_by=manifest.kvready_version,
        replayed_by=VERSION,
        moves=moves,
    )


def bundled_reports(path: Path) -> tuple[GateReport, ...]:
    """The verdicts of a bundle, checked against its manifest, not replayed."""
    with _opened(path) as archive:
        manifest = _manifest(path, archive)
        body = _read(path, archive, REPORTS, manifest.reports, MAX_REPORT_BYTES)
        return _decoded_reports(path, body)


def is_bundle(path: Path) -> bool:
    """Whether a file is meant to be one."""
    return path.is_file() and zipfile.is_zipfile(path)


def _chosen(path: Path, report_id: str) -> tuple[GateReport, ...]:
    """The verdicts of one moment of a recording."""
    moments: dict[int, list[GateReport]] = {}
    wanted: list[int] = []

    def heard(report: GateReport) -> None:
        if not wanted:
            moments.setdefault(report.made_ingest, []).append(report)
            for old in list(moments)[:-1]:
                del moments[old]
        elif report.made_ingest == wanted[0]:
            moments[wanted[0]].append(report)
        if report_id and report.report_id == report_id:
            wanted.append(report.made_ingest)

    play(path, on_report=heard)
    if not moments:
        raise RecordingError(
            f"no gate was asked in {path}: it is shorter than a minute; record for longer"
        )
    if report_id and not wanted:
        raise RecordingError(
            f"{path} does not lead to report {report_id}: name the recording that was being "
            "written when it was made, whole from its start"
        )
    moment = wanted[0] if wanted else max(moments)
    return tuple(moments[moment][:MAX_REPORTS])


def _replayed(
    path: Path, wanted: tuple[GateReport, ...]
) -> tuple[tuple[GateReport, ...], tuple[Transition, ...]]:
    moment = wanted[0].made_ingest if wanted else -1
    found: list[GateReport] = []
    moves: deque[Transition] = deque(maxlen=MAX_MOVES)

    def heard(report: GateReport) -> None:
        if report.made_ingest == moment and len(found) < MAX_REPORTS:
            found.append(report)

    played = play(path, on_report=heard, on_transition=moves.append)
    if played.damage:
        raise RecordingError(f"the recording in the bundle is damaged: {played.damage}")
    return tuple(found), tuple(moves)


def _until(items: Iterable[Ingested], last_ingest: int) -> Iterator[Ingested]:
    for item in items:
        yield item
        if item.ingest >= last_ingest:
            return


def _copy(source: Recording, items: Iterable[Ingested], target: Path) -> None:
    with RecordingWriter(target, source.header) as writer:
        for item in items:
            if not writer.write(item):
                raise RecordingError(
                    f"{source.path} is too long for a bundle; name a --slice of it"
                )


def _write(target: Path, reports: tuple[GateReport, ...], recording: Path) -> None:
    body = b"[" + b",".join(report_bytes(report) for report in reports) + b"]"
    manifest = Manifest(
        kvready_version=VERSION,
        report_ids=tuple(report.report_id for report in reports),
        reports=Member(len(body), hashlib.sha256(body).hexdigest()),
        recording=_member_of(recording),
    )
    try:
        with zipfile.ZipFile(target, "x", zipfile.ZIP_STORED) as archive:
            archive.writestr(zipfile.ZipInfo(MANIFEST, LONG_AGO), msgspec.json.encode(manifest))
            archive.writestr(zipfile.ZipInfo(REPORTS, LONG_AGO), body)
            info = zipfile.ZipInfo(RECORDING, LONG_AGO)
            info.file_size = manifest.recording.size_bytes
            with archive.open(info, "w") as out, recording.open("rb") as file:
                while piece := file.read(PIECE_BYTES):
                    out.write(piece)
    except OSError as error:
        target.unlink(missing_ok=True)
        raise RecordingError(
            f"cannot write {target}: {error.strerror}; free some space, or name another folder"
        ) from None


def _member_of(path: Path) -> Member:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(PIECE_BYTES):
            digest.update(piece)
    return Member(path.stat().st_size, digest.hexdigest())


@contextmanager
def _opened(path: Path) -> Iterator[zipfile.ZipFile]:
    try:
        with zipfile.ZipFile(path) as archive:
            yield archive
    except FileNotFoundError:
        raise RecordingError(
            f"no bundle at {path}; make one with `kvready evidence make`"
        ) from None
    except zipfile.BadZipFile as error:
        raise RecordingError(
            f"{path} is no whole bundle ({error}): it was cut short or changed; ask for it again"
        ) from None
    # What zipfile raises of a changed archive: another compression, encryption, sizes or names
    # that cannot be. Whoever sent it, it is named as unreadable.
    except (OSError, NotImplementedError, RuntimeError, ValueError) as error:
        raise RecordingError(f"cannot read {path}: {error}; ask for the bundle again") from None


def _manifest(path: Path, archive: zipfile.ZipFile) -> Manifest:
    names = sorted(archive.namelist())
    if names != sorted((MANIFEST, REPORTS, RECORDING)):
        raise RecordingError(
            f"{path} is no evidence bundle: it holds {', '.join(names[:4]) or 'nothing'}; make one "
            "with `kvready evidence make`"
        )
    if archive.getinfo(MANIFEST).file_size > MAX_MANIFEST_BYTES:
        raise RecordingError(f"{MANIFEST} in {path} is too large to be one; ask for it again")
    try:
        manifest = msgspec.json.decode(archive.read(MANIFEST), type=Manifest)
    except msgspec.MsgspecError as error:
        raise RecordingError(f"{MANIFEST} in {path} cannot be read ({error})") from None
    if manifest.format != FORMAT or manifest.version > FORMAT_VERSION:
        raise RecordingError(
            f"{path} is {manifest.format} version {manifest.version}, this kvready reads {FORMAT} "
            f"up to version {FORMAT_VERSION}: upgrade kvready"
        )
    return manifest


def _read(path: Path, archive: zipfile.ZipFile, name: str, member: Member, limit: int) -> bytes:
    if member.size_bytes > limit or archive.getinfo(name).file_size > limit:
        raise RecordingError(f"{name} in {path} is larger than {limit:,} bytes: not read")
    body = archive.read(name)
    _check(path, name, member, len(body), hashlib.sha256(body).hexdigest())
    return body


def _extract(
    path: Path, archive: zipfile.ZipFile, name: str, member: Member, out: BinaryIO
) -> None:
    limit = MAX_RECORDING_BYTES + PIECE_BYTES
    digest, size = hashlib.sha256(), 0
    with archive.open(name) as file:
        while piece := file.read(PIECE_BYTES):
            size += len(piece)
            if size > limit:
                raise RecordingError(f"{name} in {path} is larger than {limit:,} bytes: not read")
            digest.update(piece)
            out.write(piece)
    _check(path, name, member, size, digest.hexdigest())


def _check(path: Path, name: str, member: Member, size: int, digest: str) -> None:
    if (size, digest) != (member.size_bytes, member.sha256):
        raise RecordingError(
            f"{name} in {path} is not what the manifest says: {size:,} bytes of "
            f"{member.size_bytes:,}, digest {digest[:12]} for {member.sha256[:12]}; it was changed"
        )


def _decoded_reports(path: Path, body: bytes) -> tuple[GateReport, ...]:
    try:
        return msgspec.json.decode(body, type=tuple[GateReport, ...])
    except msgspec.MsgspecError as error:
        raise RecordingError(
            f"{REPORTS} in {path} cannot be read ({error}): upgrade kvready"
        ) from None
