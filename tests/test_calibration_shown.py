"""A link profile that is not of this link: told in the report, the status and the metrics."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from kvready.advisor.ledger import PairState, Target
from kvready.advisor.link_curves import priors_of
from kvready.advisor.pipeline import Pipeline
from kvready.advisor.report import build_report
from kvready.advisor.report_text import print_report
from kvready.advisor.service.snapshot import pipeline_values
from kvready.collectors.recording import read_recording
from kvready.kernels.profile import Cost, Curve, LinkProfile, Machine, Provenance

RECORDING = Path(__file__).parents[1] / "examples/recordings/vllm-0.32-cpu-kv-heavy.kvr"
PATH = ("host", "hbm", "dma_per_page")
MEASURED_RATE = 2.8e9  # of its loads, in bytes per second


def played(rate: float) -> tuple[Pipeline, LinkProfile]:
    curve = Curve(*PATH, "torch", 1, False, cost=Cost(0.0, 0.0, rate))
    profile = LinkProfile("elsewhere", Provenance.PUBLISHED, Machine("cpu", 2, "linux"), (curve,))
    pipeline = Pipeline(priors=priors_of(profile))
    for item in read_recording(RECORDING):
        pipeline.ingest(item)
    return pipeline, profile


def shown(pipeline: Pipeline) -> str:
    console = Console(width=200, record=True, file=io.StringIO())
    print_report(build_report(pipeline), console)
    return console.export_text()


@pytest.mark.parametrize(("rate", "stale"), [(MEASURED_RATE, False), (50e9, True)])
def test_a_profile_that_is_off_is_told_everywhere_and_one_that_fits_is_not(
    rate: float, stale: bool
) -> None:
    pipeline, profile = played(rate)
    assert f"published: elsewhere ({profile.calibration_id})" in shown(pipeline)
    assert ("it is stale" in shown(pipeline)) is stale
    values = pipeline_values(pipeline)
    assert values["kvready_link_profile_info"] == {("published", profile.calibration_id): 1}
    assert values["kvready_load_calibration_stale"][PATH] == stale
    factor = values["kvready_load_factor_ratio"][PATH]
    assert factor == pytest.approx(rate / MEASURED_RATE, rel=0.5)
    # Backups have no curve in that profile: nothing of theirs can be stale.
    assert not values["kvready_load_calibration_stale"]["hbm", "host", "dma_per_page"]
    loads = [
        pair.forecast.model_version
        for pair in pipeline.ledger.pairs
        if pair.forecast.target is Target.LOAD and pair.state is PairState.PAIRED
    ]
    assert loads[-1].endswith(":stale") is stale
    assert all(f"+published:{profile.calibration_id}" in version for version in loads[2:])


def test_without_a_profile_the_report_says_so() -> None:
    assert build_report(Pipeline()).conditions["link profile"] == "generic: no link profile given"
