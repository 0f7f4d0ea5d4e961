"""The hook in vLLM 0.28: it holds likewise, though nobody is told of it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from enforced import CAP, OWN_TOKENS, PATIENCE_SECONDS, Enforced

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

PREFIX_TOKENS = 2_400
IDEAL_TOKENS = PREFIX_TOKENS + 4 * OWN_TOKENS


def test_dedup_flipped_live_leaves_one_computation_of_a_prefix(
    older_python: Path, models: Path
) -> None:
    with Enforced(
        older_python, models / "check", observe=False, publish_kv_events=False, extra_arguments=CAP
    ) as enforced:
        stock = enforced.computed_for(enforced.prompts(PREFIX_TOKENS))
        enforced.sidecar.tell(on={"dedup": True})
        deadline = time.monotonic() + PATIENCE_SECONDS
        while enforced.computed_for(enforced.prompts(PREFIX_TOKENS)) > 1.05 * IDEAL_TOKENS:
            assert time.monotonic() < deadline, "the hook never held anybody"
        enforced.sidecar.kill()
        while enforced.computed_for(enforced.prompts(PREFIX_TOKENS)) < 2 * IDEAL_TOKENS:
            assert time.monotonic() < deadline, "the hook never let go"
        assert "balance stays out" in enforced.engine.log.read_text()
    assert stock >= 2 * IDEAL_TOKENS
