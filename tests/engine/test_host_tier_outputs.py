"""What the host tier brings back is what was put there: outputs do not change."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]

DOCUMENTS = 8
ENDINGS = 3
VOCABULARY = 2048
HOST_BYTES = 256 << 20
SMALL_HOST_BYTES = 4 << 20  # 64 blocks: three documents


def questions() -> list[list[list[int]]]:
    """One prompt at a time, each document after all others: HBM alone cannot keep them."""
    chance = random.Random(5)

    def tokens(count: int) -> list[int]:
        return [chance.randrange(VOCABULARY) for _ in range(count)]

    documents = [tokens(600) for _ in range(DOCUMENTS)]
    endings = [tokens(40) for _ in range(ENDINGS)]
    return [[document + ending] for ending in endings for document in documents]


def tier(**settings: object) -> dict[str, object]:
    return {
        "cpu_bytes_to_use": HOST_BYTES,
        "spec_name": "HostTierSpec",
        "spec_module_path": "kvready.kernels.engine.host_tier",
    } | settings


def disk_tier(**settings: object) -> dict[str, object]:
    return tier(
        cpu_bytes_to_use=SMALL_HOST_BYTES,
        disk_bytes=HOST_BYTES,
        spec_name="DiskTierSpec",
        spec_module_path="kvready.kernels.engine.disk_spec",
        **settings,
    )


def test_loaded_prefixes_give_the_outputs_of_prefixes_that_never_left_hbm(generate: Any) -> None:
    prompts = questions()
    kept = generate(prompts, output_tokens=24, hbm_blocks=400)["outputs"]

    # The comparison has power: another prefix under the same ending gives another output ...
    for ending in range(ENDINGS):
        same_ending = kept[ending * DOCUMENTS : (ending + 1) * DOCUMENTS]
        assert all(one != other for one, other in itertools.combinations(same_ending, 2))
    # ... and a tier that brings back nothing is found out, every time.
    forgetful = generate(
        prompts,
        output_tokens=24,
        hbm_blocks=64,
        host_tier=tier(spec_name="ForgetfulTierSpec", spec_module_path="forgetful_tier"),
    )
    loaded = (ENDINGS - 1) * DOCUMENTS
    assert forgetful["loads"] == loaded
    differing = sum(a != b for a, b in zip(forgetful["outputs"], kept, strict=True))
    assert differing == loaded

    for settings in (
        tier(),
        tier(mover="gather", store_mover="gather", blocks_per_chunk=3, check_every=2),
        disk_tier(mover="gather", check_every=2),
    ):
        moved = generate(prompts, output_tokens=24, hbm_blocks=64, host_tier=settings)
        assert moved["loads"] == loaded
        assert moved["outputs"] == kept
