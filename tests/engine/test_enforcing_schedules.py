"""The hook changes batches where a policy gains by it, and outputs nowhere."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
from enforced import SCHEDULER
from flag_server import FlagServer

from kvready.advisor.policies import Policy

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

VOCABULARY = 2048
HOST_TIER = {
    "cpu_bytes_to_use": 256 << 20,
    "spec_name": "HostTierSpec",
    "spec_module_path": "kvready.kernels.engine.host_tier",
}


def convoys() -> list[list[list[int]]]:
    """Few documents and many questions, more than the cache holds; the second batch finds some of
    them in a host tier, if there is one."""
    chance = random.Random(17)

    def tokens(count: int) -> list[int]:
        return [chance.randrange(VOCABULARY) for _ in range(count)]

    documents = [tokens(640) for _ in range(4)]
    return [
        [document + tokens(chance.randrange(8, 60)) for document in documents for _ in range(5)]
        for _ in range(2)
    ]


@pytest.fixture(scope="module")
def server() -> Iterator[FlagServer]:
    made = FlagServer()
    made.on = {policy.value: True for policy in Policy}
    yield made
    made.end()


@pytest.fixture(scope="module")
def stock(generate: Any) -> dict[str, Any]:
    account: dict[str, Any] = generate(convoys(), output_tokens=24, hbm_blocks=64)
    return account


def test_in_the_default_configuration_it_stays_out_and_says_no_benefit(
    generate: Any, server: FlagServer, stock: dict[str, Any]
) -> None:
    hooked = generate(
        convoys(),
        output_tokens=24,
        hbm_blocks=64,
        scheduler_class=SCHEDULER,
        environment={"KVREADY_HOOK_FLAGS": server.url},
    )
    assert server.asked, "the flags were on, and heard"
    assert hooked["hook"]["failures"] == 0
    assert hooked["hook"]["refusals"]["dedup"].endswith("no_benefit")
    assert hooked["steps"] == stock["steps"]
    assert hooked["outputs"] == stock["outputs"]


def test_held_and_reordered_requests_say_what_they_would_have_said(
    generate: Any, server: FlagServer, stock: dict[str, Any]
) -> None:
    enforced = generate(
        convoys(),
        output_tokens=24,
        hbm_blocks=64,
        scheduler_class=SCHEDULER,
        host_tier=HOST_TIER,
        settings={"long_prefill_token_threshold": 128},
        environment={"KVREADY_HOOK_FLAGS": server.url},
    )
    assert enforced["hook"] == {"failures": 0, "refusals": {}}
    assert enforced["held"] > 0
    assert enforced["loads"] > 0
    pairs = list(zip(enforced["outputs"], stock["outputs"], strict=True))
    # Other batches round otherwise, which now and then turns a token, and all after it. Keys and
    # values of another prompt would turn the first token of each.
    assert sum(one == other for one, other in pairs) >= 0.9 * len(pairs)
