"""The gateway before a real engine, with a load that makes delay hits: contrived, to be clear.

`--long-prefill-token-threshold 128` leaves room beside a long prefill, so that followers of one
prefix compute it again: what the engine does by itself on its default settings it cannot do here.
"""

from __future__ import annotations

import random
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import load
import pytest
from engine import Engine
from gateway_rig import Rig, gateway
from prometheus_client.parser import text_string_to_metric_families
from stub_engine import wait_for

from kvready.collectors.observer_tap import ObserverTap
from kvready.collectors.records import RequestArrived, Surface
from kvready.collectors.request_ids import reported_id

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]

SHARED_TOKENS = 2_400
OWN_TOKENS = 8
FOLLOWERS = 3
IDEAL_TOKENS = SHARED_TOKENS + (1 + FOLLOWERS) * OWN_TOKENS
VOCABULARY = 2_000


@pytest.fixture(scope="module")
def engine(engine_python: Path, models: Path) -> Iterator[Engine]:
    made = Engine(
        engine_python,
        models / "kv-heavy",
        host_bytes=0,
        hbm_blocks=400,
        extra_arguments=("--long-prefill-token-threshold", "128"),
    )
    with made:
        yield made


@pytest.fixture(scope="module")
def rig(engine: Engine) -> Iterator[Rig]:
    with gateway(engine.url, tokenizer=True, observer_dir=engine.observer_folder) as rig:
        yield rig


def prompts(seed: int) -> list[tuple[int, ...]]:
    """A leader's and its followers'."""
    chance = random.Random(seed)
    shared = tuple(chance.randrange(VOCABULARY) for _ in range(SHARED_TOKENS))
    return [
        shared + tuple(chance.randrange(VOCABULARY) for _ in range(OWN_TOKENS))
        for _ in range(1 + FOLLOWERS)
    ]


def figure(engine: Engine, name: str, label: str = "") -> float:
    with urllib.request.urlopen(f"{engine.url}/metrics", timeout=60) as page:
        text = page.read().decode()
    return sum(
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name and (not label or label in sample.labels.values())
    )


def computed(engine: Engine) -> float:
    return figure(engine, "vllm:prompt_tokens_by_source_total", "local_compute")


def ask_all(rig: Rig, engine: Engine, seed: int) -> tuple[float, list[load.Answer]]:
    """Prompt tokens that the engine computed for a leader and its followers, and their answers."""
    before = computed(engine)

    def ask(number: int) -> load.Answer:
        return load.ask(rig.url, engine.model.name, f"s{seed}-{number}", asked[number], 4)

    asked = prompts(seed)
    with ThreadPoolExecutor(len(asked)) as clients:
        first = clients.submit(ask, 0)
        wait_for(lambda: figure(engine, "vllm:num_requests_running") == 1, "the leader runs")
        others = [clients.submit(ask, number) for number in range(1, len(asked))]
        answers = [one.result() for one in (first, *others)]
    assert [one.error for one in answers] == [""] * len(asked)
    assert {len(one.output) for one in answers} == {4}
    return computed(engine) - before, answers


def test_followers_compute_nothing_twice_while_the_flag_is_on(rig: Rig, engine: Engine) -> None:
    rig.flags.on = False
    stock, _ = ask_all(rig, engine, 1)
    assert stock > 1.5 * IDEAL_TOKENS
    rig.flags.on = True
    held, answers = ask_all(rig, engine, 2)
    assert held <= 1.05 * IDEAL_TOKENS
    assert [one.cached_tokens for one in answers[1:]] == [SHARED_TOKENS] * FOLLOWERS
    assert rig.metric("released_total", "first_token") == FOLLOWERS


def test_whoever_leaves_is_gone_at_the_engine_and_its_followers_go_on(
    rig: Rig, engine: Engine
) -> None:
    rig.flags.on = True
    before = rig.metric("released_total", "leader_gone")
    name = engine.model.name
    leader, follower, *_ = map(list, prompts(4))
    with (
        ThreadPoolExecutor(1) as clients,
        rig.asking(model=name, prompt=leader, max_tokens=4) as leading,
    ):
        wait_for(lambda: rig.metric("leading_requests") == 1, "a leader")
        stays = clients.submit(load.ask, rig.url, name, "stays", follower, 4)
        rig.wait_for_metric("held_requests", "", 1)
        leading.leave()
        assert len(stays.result().output) == 4
    wait_for(lambda: figure(engine, "vllm:num_requests_running") == 0, "an idle engine")
    assert rig.metric("released_total", "leader_gone") == before + 1


def test_the_gateways_names_are_the_schedulers(rig: Rig, engine: Engine) -> None:
    rig.flags.on = False
    tap, arrived = ObserverTap("observer", engine.observer_folder), []
    tap.start(lambda record, *_: arrived.append(record))
    prompt = prompts(5)[0][:64]

    def surfaces() -> dict[str, dict[Surface, RequestArrived]]:
        tap.poll(0.05)
        told: dict[str, dict[Surface, RequestArrived]] = {}
        for one in arrived:
            if isinstance(one, RequestArrived):
                told.setdefault(reported_id(one.request_id), {})[one.surface] = one
        return told

    def is_told() -> bool:  # from when on the tap hears is not ours to say
        load.ask(rig.url, engine.model.name, f"n{time.monotonic_ns()}", prompt, 1)
        return any(len(one) == 2 for one in surfaces().values())

    try:
        wait_for(is_told, "both surfaces")
        both = next(one for one in surfaces().values() if len(one) == 2)
    finally:
        tap.stop()
    gateway_told, scheduler_told = both[Surface.GATEWAY], both[Surface.SCHEDULER]
    assert gateway_told.arrived_seconds < scheduler_told.arrived_seconds
    assert gateway_told.prompt_tokens == scheduler_told.prompt_tokens == len(prompt)
