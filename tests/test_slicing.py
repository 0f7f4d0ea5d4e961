"""A part of a recording: what it holds, and what it leads to."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from story import Story

from kvready.advisor.commands.recorded import share
from kvready.advisor.pipeline import Pipeline
from kvready.collectors.errors import RecordingError, SettingsError
from kvready.collectors.recording import read_recording
from kvready.collectors.records import Ingested, Tier
from kvready.collectors.slicing import LASTING, Slice, slice_of


def pipeline_of(items: list[Ingested]) -> Pipeline:
    pipeline = Pipeline()
    for item in items:
        pipeline.ingest(item)
    return pipeline


@settings(max_examples=25)
@given(st.data())
def test_a_slice_holds_its_seconds_whole_and_knows_the_caches_as_they_were(
    told_story: Story, data: st.DataObject
) -> None:
    told = told_story.told
    begin = told[0].received_seconds
    last = told[-1].received_seconds - begin
    start = data.draw(st.floats(0.0, last * 0.9))
    seconds = data.draw(st.floats(last - start, last + 1.0)) / 2 + last * 0.05
    cut = list(Slice(start, seconds).of(told))
    inside = [one for one in told if start <= one.received_seconds - begin < start + seconds]
    assert [one for one in cut if one.received_seconds - begin >= start] == inside
    before = [one for one in cut if one.received_seconds - begin < start]
    assert all(isinstance(one.record, LASTING) for one in before)
    until = [one for one in told if one.received_seconds - begin < start + seconds]
    whole, part = pipeline_of(until), pipeline_of(cut)
    for tier in Tier:
        assert part.inventory.blocks(tier) == whole.inventory.blocks(tier)
    assert part.engine == whole.engine
    assert part.tap_states == whole.tap_states


def test_a_slice_from_the_start_pairs_as_the_whole_does_until_then(told_story: Story) -> None:
    told = told_story.told
    seconds = (told[-1].received_seconds - told[0].received_seconds) / 2
    pairs: list[object] = []
    pipeline = Pipeline(pairs.append)
    for item in Slice(0.0, seconds).of(told):
        pipeline.ingest(item)
    assert pairs
    assert pairs == told_story.pairs[: len(pairs)]


def test_a_slice_is_shared_with_what_it_is(kvready, recording: Path, tmp_path: Path) -> None:
    out = tmp_path / "part.kvr"
    made = kvready("share", recording, out, "--slice", "0.5:1")
    assert made.returncode == 0, made.stderr
    part = read_recording(out)
    assert part.header.conditions["slice"].startswith("1 s from 0.5 s on")
    assert 0 < len(list(part)) < len(list(read_recording(recording)))


@pytest.mark.parametrize("text", ["", "60", "60:", ":60", "a:b", "-1:5", "0:0", "0:inf", "nan:1"])
def test_what_is_no_part_is_refused(text: str) -> None:
    assert slice_of(text) is None


def test_a_slice_with_nothing_in_it_is_refused_and_leaves_no_file(
    recording: Path, tmp_path: Path
) -> None:
    for cut, kind, reason in (
        ("1e6:5", RecordingError, "start a slice earlier"),
        ("1-5", SettingsError, "START:SECONDS"),
    ):
        out = tmp_path / "part.kvr"
        with pytest.raises(kind, match=reason):
            share(recording, out, part=cut)
        assert not out.exists()
