"""A recording played through the whole pipeline, as fast as it goes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import msgspec

from kvready.advisor.compute import ComputePrior
from kvready.advisor.contract import Evidence
from kvready.advisor.ledger import Pair
from kvready.advisor.load_priors import LoadPriors
from kvready.advisor.modes import Transition
from kvready.advisor.pipeline import Pipeline
from kvready.advisor.verdicts import GateReport
from kvready.collectors.recording import (
    Provenance,
    Recording,
    RecordingHeader,
    read_recording,
)
from kvready.collectors.service_targets import NO_TARGETS

PROGRESS_RECORDS = 1_000


class Playback(msgspec.Struct, frozen=True):
    """What a recording led to."""

    pipeline: Pipeline
    header: RecordingHeader
    records: int
    pairs: int
    digest: str
    damage: str | None


class PairDigest:
    """One figure that is equal exactly when every pair is, in order."""

    def __init__(self) -> None:
        self.pairs = 0
        self._hash = hashlib.sha256()
        self._encode = msgspec.json.Encoder().encode

    def __call__(self, pair: Pair) -> bytes:
        """Add one pair; returns the line that stands for it."""
        line = self._encode(pair) + b"\n"
        self._hash.update(line)
        self.pairs += 1
        return line

    @property
    def hexadecimal(self) -> str:
        """The digest so far."""
        return self._hash.hexdigest()


def play(
    path: Path,
    on_pair: Callable[[Pair, bytes], None] | None = None,
    on_progress: Callable[[int], None] | None = None,
    on_report: Callable[[GateReport], None] | None = None,
    on_transition: Callable[[Transition], None] | None = None,
) -> Playback:
    """Play a recording; `on_pair` gets each pair with its JSON line, `on_progress` the records,
    `on_report` each gate report, `on_transition` each move of a policy.

    Loads and compute start from what those of the recorded run started from. Raises
    `RecordingError` for a file that is no recording.
    """
    recording: Recording = read_recording(path)
    digest = PairDigest()

    def settled(pair: Pair) -> None:
        line = digest(pair)
        if on_pair is not None:
            on_pair(pair, line)

    header = recording.header
    pipeline = Pipeline(
        settled,
        LoadPriors.of_told(header.load_start),
        compute_prior=ComputePrior.of_told(header.compute_start),
        on_report=on_report,
        on_transition=on_transition,
        targets=header.targets or NO_TARGETS,
    )
    records = 0
    for item in recording:
        pipeline.ingest(item)
        records += 1
        if on_progress is not None and records % PROGRESS_RECORDS == 0:
            on_progress(records)
    return Playback(
        pipeline=pipeline,
        header=told_header(header, pipeline.evidence),
        records=records,
        pairs=digest.pairs,
        digest=digest.hexadecimal,
        damage=recording.damage,
    )


def told_header(header: RecordingHeader, evidence: Evidence) -> RecordingHeader:
    """A recording's header as its records correct it: it was begun before any was seen."""
    if evidence is not Evidence.SIMULATED:
        return header
    return msgspec.structs.replace(header, provenance=Provenance.SIMULATED)
