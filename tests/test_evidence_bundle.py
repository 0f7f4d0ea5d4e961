"""Evidence bundles: anyone's replay gives the same verdict bytes, and damage has a name."""

from __future__ import annotations

import hashlib
import json
import zipfile
from pathlib import Path

import msgspec
import pytest
from story import Story, decode, prefill
from typer.testing import CliRunner

from kvready.advisor.commands.app import app
from kvready.advisor.commands.gate import served_reports
from kvready.advisor.evidence_bundle import (
    MANIFEST,
    RECORDING,
    REPORTS,
    bundled_reports,
    is_bundle,
    make_bundle,
    verify_bundle,
)
from kvready.advisor.gates import digest_of, report_bytes
from kvready.advisor.playback import play
from kvready.advisor.policies import Policy
from kvready.advisor.report_difference import MAX_DIFFERENCES, differences
from kvready.advisor.verdicts import GateReport
from kvready.collectors.errors import RecordingError
from kvready.collectors.recording import Provenance, RecordingHeader, RecordingWriter
from kvready.collectors.records import Tick
from kvready.collectors.slicing import Slice

SECONDS = 200


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three minutes of a story, and a little more."""
    story = Story()
    for second in range(SECONDS):
        story.tell(float(second), Tick(float(second), 1e6 + second), tap="recorder")
        if second % 4 == 1:
            name, at = f"r{second}", second + 0.1
            story.arrives(at, name, [second], prompt=64)
            story.batch(at + 0.1, at + 0.3, prefill(name, 64))
            story.scheduled(at + 0.1, name)
            story.first_token(at + 0.3, name)
            story.batch(at + 0.4, at + 0.5, decode(name, 64))
            story.finished(at + 0.5, name)
    path = tmp_path_factory.mktemp("recordings") / "story.kvr"
    header = RecordingHeader(Provenance.SIMULATED, 0.0, "test")
    with RecordingWriter(path, header) as writer:
        for item in story.told:
            writer.write(item)
    return path


@pytest.fixture(scope="module")
def bundle(recording: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bundles") / "evidence.kve"
    make_bundle(recording, path)
    return path


def test_a_bundle_replays_to_the_same_verdict_bytes(bundle: Path) -> None:
    found = verify_bundle(bundle)
    assert found.equal
    assert found.differences == []
    assert found.report_ids == tuple(one.report_id for one in bundled_reports(bundle))


def test_a_bundle_holds_the_verdicts_of_the_recording_and_no_record_after_them(
    recording: Path, bundle: Path
) -> None:
    last = list(play(recording).pipeline.gates.latest.values())
    assert list(map(report_bytes, bundled_reports(bundle))) == list(map(report_bytes, last))
    with zipfile.ZipFile(bundle) as archive:
        (bundle.parent / RECORDING).write_bytes(archive.read(RECORDING))
    played = play(bundle.parent / RECORDING)
    assert played.pipeline.last_ingest == last[0].made_ingest


def test_an_earlier_verdict_is_bundled_by_its_id(recording: Path, tmp_path: Path) -> None:
    reports = []
    play(recording, on_report=reports.append)
    wanted = reports[0]
    made = make_bundle(recording, tmp_path / "b", wanted.report_id)
    assert wanted in made
    assert {one.made_ingest for one in made} == {wanted.made_ingest}
    assert verify_bundle(tmp_path / "b").equal


def test_a_slice_is_judged_by_itself_and_replays_too(recording: Path, tmp_path: Path) -> None:
    whole = make_bundle(recording, tmp_path / "whole")
    part = make_bundle(recording, tmp_path / "part", cut=Slice(60.0, 100.0))
    assert verify_bundle(tmp_path / "part").equal
    assert {one.report_id for one in part}.isdisjoint(one.report_id for one in whole)


def test_the_same_evidence_makes_the_same_file(
    recording: Path, bundle: Path, tmp_path: Path
) -> None:
    make_bundle(recording, tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == bundle.read_bytes()


def test_a_forged_verdict_is_told_with_where_it_differs(bundle: Path, tmp_path: Path) -> None:
    """Whoever forges the reports and the manifest too is found out by the replay."""
    reports = list(bundled_reports(bundle))
    forged = msgspec.structs.replace(reports[0], verdict="pass")
    forged = msgspec.structs.replace(forged, report_id=digest_of(forged))
    path = _rewritten(bundle, tmp_path, [forged, *reports[1:]])
    found = verify_bundle(path)
    assert not found.equal
    assert any("dedup.verdict" in one for one in found.differences)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9, 0.999])
def test_a_bundle_cut_short_is_named(bundle: Path, tmp_path: Path, share: float) -> None:
    body = bundle.read_bytes()
    path = tmp_path / "cut"
    path.write_bytes(body[: int(len(body) * share)])
    with pytest.raises(RecordingError, match=r"cut short"):
        verify_bundle(path)


def test_a_bundle_with_any_byte_changed_is_named_or_means_the_same(
    bundle: Path, tmp_path: Path
) -> None:
    """Only what carries no evidence, such as a date, may change unseen."""
    body = bundle.read_bytes()
    path = tmp_path / "changed"
    unseen = 0
    for place in range(0, len(body), max(1, len(body) // 200)):
        path.write_bytes(body[:place] + bytes([body[place] ^ 0x20]) + body[place + 1 :])
        try:
            found = verify_bundle(path)
        except RecordingError:
            continue
        unseen += 1
        assert found.equal
    assert unseen < 10


def test_other_files_are_no_bundles(recording: Path, tmp_path: Path) -> None:
    assert not is_bundle(recording)
    with pytest.raises(RecordingError, match="no whole bundle"):
        verify_bundle(recording)
    with pytest.raises(RecordingError, match="no bundle at"):
        verify_bundle(tmp_path / "nothing")
    with zipfile.ZipFile(tmp_path / "zip", "w") as archive:
        archive.writestr("a", "b")
    with pytest.raises(RecordingError, match="it holds a"):
        verify_bundle(tmp_path / "zip")


def test_bundles_are_never_overwritten(recording: Path, bundle: Path) -> None:
    before = bundle.read_bytes()
    with pytest.raises(RecordingError, match="exists"):
        make_bundle(recording, bundle)
    assert bundle.read_bytes() == before


def test_a_recording_that_leads_to_no_such_verdict_is_refused(
    recording: Path, tmp_path: Path
) -> None:
    with pytest.raises(RecordingError, match="does not lead to"):
        make_bundle(recording, tmp_path / "b", "0" * 32)
    with pytest.raises(RecordingError, match="shorter than a minute"):
        make_bundle(recording, tmp_path / "b", cut=Slice(0.0, 30.0))
    assert not (tmp_path / "b").exists()


def test_a_later_format_is_refused_with_what_to_do(bundle: Path, tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match="upgrade kvready"):
        verify_bundle(_rewritten(bundle, tmp_path, bundled_reports(bundle), version=99))


def test_few_of_many_differences_are_named_and_the_rest_is_counted(bundle: Path) -> None:
    reports = bundled_reports(bundle)
    changed = [
        msgspec.structs.replace(
            report, checks=tuple(msgspec.structs.replace(c, note="x") for c in report.checks)
        )
        for report in reports
    ]
    told = differences(reports, changed)
    assert len(told) == MAX_DIFFERENCES + 1
    assert told[-1].startswith("and ")


def _rewritten(bundle: Path, folder: Path, reports, **manifest_changes) -> Path:
    """A bundle forged with care: its manifest fits."""
    body = b"[" + b",".join(map(report_bytes, reports)) + b"]"
    path = folder / "forged"
    with zipfile.ZipFile(bundle) as source, zipfile.ZipFile(path, "w") as target:
        manifest = json.loads(source.read(MANIFEST))
        manifest["reports"] = {"size_bytes": len(body), "sha256": hashlib.sha256(body).hexdigest()}
        target.writestr(MANIFEST, json.dumps(manifest | manifest_changes))
        target.writestr(REPORTS, body)
        target.writestr(RECORDING, source.read(RECORDING))
    return path


def run(*arguments: str):
    return CliRunner().invoke(app, arguments)


def test_gate_report_shows_a_bundles_verdicts_with_figures_and_limits(bundle: Path) -> None:
    ended = run("gate", "report", "dedup", "--from", str(bundle))
    assert ended.exit_code == 0, ended.output
    assert "dedup, version 1, in shadow: inconclusive" in ended.output
    assert "(at least 100 pairs)" in ended.output
    assert "balance" not in ended.output


def test_gate_report_as_json_is_the_one_spelling_of_the_reports(bundle: Path) -> None:
    ended = run("gate", "report", "--from", str(bundle), "--json")
    found = msgspec.json.decode(ended.output, type=tuple[GateReport, ...])
    assert found == bundled_reports(bundle)
    assert all(report_bytes(one).decode() in ended.output for one in found)


def test_a_verdict_is_explained_by_its_id(bundle: Path) -> None:
    report = bundled_reports(bundle)[1]
    ended = run("explain", report.report_id, "--from", str(bundle))
    assert ended.exit_code == 0, ended.output
    for check in report.checks:
        assert check.name.replace("_", " ") in ended.output


def test_a_request_is_explained_from_a_recording(recording: Path) -> None:
    ended = run("explain", "r5", "--from", str(recording))
    assert ended.exit_code == 0, ended.output
    assert "where its 300.0 ms to the first token went" in ended.output
    assert isinstance(run("explain", "nobody", "--from", str(recording)).exception, RecordingError)


def test_verify_says_equal_or_different_with_its_exit_code(bundle: Path, tmp_path: Path) -> None:
    assert run("evidence", "verify", str(bundle)).exit_code == 0
    reports = list(bundled_reports(bundle))
    reports[0] = msgspec.structs.replace(reports[0], verdict="pass")
    ended = run("evidence", "verify", str(_rewritten(bundle, tmp_path, reports)))
    assert ended.exit_code == 1
    assert "different" in ended.output


def test_reports_of_a_sidecar_are_read_back_as_they_were(bundle: Path) -> None:
    """Whatever JSON does to them on the way."""
    reports = bundled_reports(bundle)

    class Answering:
        def get(self, path: str, **query: object) -> object:
            own = [one for one in reports if one.policy == query["policy"]]
            return json.loads(json.dumps({"reports": [msgspec.to_builtins(one) for one in own]}))

    found = [one for p in Policy for one in served_reports(Answering(), p, 10)]
    assert list(map(report_bytes, found)) == list(map(report_bytes, reports))
