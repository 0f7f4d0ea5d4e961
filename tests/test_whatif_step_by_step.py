"""The simulator against the same engine taken one decode step at a time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_engines import engine, workloads
from step_by_step import StepByStep

from kvready.advisor.whatif.simulate import simulate
from kvready.advisor.whatif.workload import Workload
from kvready.collectors.names import OverlapMode


@given(
    workloads(),
    st.sampled_from([OverlapMode.LAYERWISE, OverlapMode.BLOCKING]),
    st.booleans(),
    st.sampled_from([0, 48]),
    st.sampled_from([320, 512, 4_096]),
    st.sampled_from([0, 128, 320, 640, 1 << 16]),
)
def test_many_steps_at_once_end_as_one_by_one(
    asked: Workload,
    overlap: OverlapMode,
    asynchronous: bool,
    chunk_tokens: int,
    hbm_tokens: int,
    host_tokens: int,
) -> None:
    scenario = engine(
        hbm_tokens,
        host_tokens,
        overlap=overlap,
        asynchronous=asynchronous,
        chunk_tokens=chunk_tokens,
    )
    outcome = simulate(asked, scenario)
    plainly = StepByStep(asked, scenario).run()
    assert outcome.unfinished == 0
    for row, one in zip(outcome.requests, plainly, strict=True):
        assert (row.hbm_tokens, row.host_tokens) == (one.hbm, one.host)
        assert row.first_token_seconds == pytest.approx(one.first, rel=1e-9)
        assert row.finished_seconds == pytest.approx(one.finished, rel=1e-9)
