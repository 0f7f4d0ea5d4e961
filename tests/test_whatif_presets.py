"""Scenarios by name: what a machine, a mover and a policy come to, beside published figures."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from kvready.advisor.roofline import GPUS
from kvready.advisor.whatif.machines import (
    HBM_BYTES,
    Rates,
    load_link,
    profiled_machine,
    published_machine,
)
from kvready.advisor.whatif.presets import BASELINES, Sizes, assumed, scenario
from kvready.advisor.whatif.scenario import LinkSpec, QueueOrder, Scenario
from kvready.collectors.errors import SettingsError
from kvready.collectors.names import OverlapMode
from kvready.kernels.errors import LayoutError
from kvready.kernels.presets import preset
from kvready.kernels.profile import Curve, LinkProfile, Machine, Provenance, Sample


def cost(link: LinkSpec, payload_bytes: float, fragments: float) -> float:
    moved = payload_bytes / link.bytes_per_second
    return link.start_seconds + fragments * link.fragment_seconds + moved


def loaded(one: Scenario, tokens: int) -> float:
    layout = one.shape.layout(one.page_tokens, one.tensor_parallel)
    pages = layout.pages(tokens)
    return (
        pages * layout.page_bytes / cost(one.load, pages * layout.page_bytes, pages * layout.planes)
    )


def test_a_gpu_pool_holds_what_the_published_memory_share_leaves() -> None:
    # 0.82M, 0.48M and 1.08M tokens: 88 % of 141 GB less the weights, over KV bytes a token.
    held = {
        ("llama-3.1-8b", 1): 0.82e6,
        ("qwen2.5-14b", 1): 0.48e6,
        ("llama-3.1-70b", 4): 1.08e6,
    }
    for (model, ranks), tokens in held.items():
        one = scenario(model, "h200", "strata", tensor_parallel=ranks)
        per_token = one.shape.layout(1, ranks).rank_bytes_per_token
        assert one.tiers.hbm_bytes / per_token == pytest.approx(tokens, rel=0.01)


@pytest.mark.parametrize(
    ("machine", "baseline", "published"),
    [
        ("h200", "per-page", 10.80e9),
        ("h200", "fast-copies", 40.30e9),
        ("gh200", "per-page", 19.43e9),
        ("gh200", "fast-copies", 150.50e9),
    ],
)
def test_links_reach_what_was_published_under_serving(
    machine: str, baseline: str, published: float
) -> None:
    one = scenario("llama-3.1-8b", machine, baseline)
    assert loaded(one, 1 << 20) == pytest.approx(published, rel=1e-6)


def test_isolated_rates_are_those_of_a_copy_alone() -> None:
    alone = scenario("llama-3.1-8b", "h200", "per-page", rates=Rates.ISOLATED)
    assert loaded(alone, 8192) == pytest.approx(0.22 * 64e9, rel=1e-6)
    gather = scenario("llama-3.1-8b", "h200", "fast-copies", rates=Rates.ISOLATED)
    assert loaded(gather, 8192) == pytest.approx(48e9, rel=1e-6)


def test_fewer_heads_a_rank_make_per_page_copies_slower() -> None:
    whole = scenario("llama-3.1-8b", "h200", "per-page")
    split = scenario("llama-3.1-70b", "h200", "per-page", tensor_parallel=4)
    assert loaded(split, 8192) < loaded(whole, 8192) / 2.5


def test_recompute_has_no_tier_and_an_oracle_no_wait() -> None:
    bare = scenario("qwen2.5-14b", "h200", "recompute")
    assert (bare.tiers.host_bytes, bare.tiers.disk_bytes, bare.policies.load_hits) == (0, 0, False)
    ideal = scenario("qwen2.5-14b", "h200", "oracle")
    assert cost(ideal.load, 1e12, 1e6) == cost(ideal.backup, 1e12, 1e6) == 0.0
    assert ideal.load.bytes_per_second == math.inf
    assert ideal.load.prefill_slowdown == 0.0


def test_policies_are_added_one_by_one() -> None:
    plain = scenario("qwen2.5-14b", "h200", "per-page")
    assert plain.policies.strata is None
    for added, switches in {
        "+dedup": (True, False, False),
        "+balance": (False, True, False),
        "+decode-fill": (False, False, True),
        "+balance+dedup": (True, True, False),
    }.items():
        strata = scenario("qwen2.5-14b", "h200", "fast-copies" + added).policies.strata
        assert strata is not None
        assert (strata.dedup, strata.balance, strata.decode_fill) == switches
    whole = scenario("qwen2.5-14b", "h200", "strata")
    parts = scenario("qwen2.5-14b", "h200", "fast-copies+dedup+balance+decode-fill")
    assert (whole.load, whole.policies) == (parts.load, parts.policies)
    assert scenario("qwen2.5-14b", "h200", "prefix-order").policies.order is (
        QueueOrder.LONGEST_PREFIX
    )


def test_what_is_like_lmcache_stages_chunks_and_waits_for_its_scatter_kernels() -> None:
    like = scenario("llama-3.1-8b", "h200", "lmcache-like")
    gather = scenario("llama-3.1-8b", "h200", "fast-copies")
    assert (like.page_tokens, like.engine.overlap) == (256, OverlapMode.BLOCKING)
    layout = like.shape.layout(256)
    pages = layout.pages(128 << 10)
    moved = pages * layout.page_bytes, pages * layout.planes
    # LMCache issue 5067: about 50 ms a retrieve of 128k tokens beyond the copies.
    assert cost(like.load, *moved) - cost(gather.load, *moved) == pytest.approx(50e-3, rel=1e-9)


def test_host_memory_is_shared_by_the_ranks() -> None:
    four = scenario("llama-3.1-70b", "h200", "strata", Sizes(host_bytes=10**12), tensor_parallel=4)
    assert four.tiers.host_bytes == 250 * 10**9


def measured(fragment_bytes: int, seconds: float) -> LinkProfile:
    samples = tuple(
        Sample(fragment_bytes, count, number, seconds * count)
        for number in range(3)
        for count in (256, 1024, 4096)
    )
    curve = Curve("host", "hbm", "dma_per_page", "cpu", 1, contended=False, samples=samples)
    machine = Machine(cpu="any", cpus=2, operating_system="linux")
    return LinkProfile("a box", Provenance.MEASURED, machine, (curve,))


def test_a_measured_link_costs_what_its_samples_say_at_the_scenarios_page() -> None:
    shape = preset("llama-3.1-8b")
    machine = profiled_machine(measured(64 << 10, 8e-6), "h100")
    link = load_link(machine, "dma_per_page", shape.layout(32), Rates.SUSTAINED)
    assert cost(link, 2048 * (64 << 10), 2048) == pytest.approx(2048 * 8e-6, rel=0.1)
    with pytest.raises(SettingsError, match="has no gather from host to HBM"):
        scenario("llama-3.1-8b", machine, "strata", Sizes(host_bytes=10**11))
    with pytest.raises(SettingsError, match="--host-gib"):
        scenario("llama-3.1-8b", machine, "per-page")


def test_names_that_are_not_known_are_told_with_those_that_are() -> None:
    with pytest.raises(SettingsError, match="fast-copies"):
        scenario("llama-3.1-8b", "h200", "magic")
    with pytest.raises(SettingsError, match=r"\+dedup"):
        scenario("llama-3.1-8b", "h200", "per-page+luck")
    with pytest.raises(SettingsError, match="gh200"):
        scenario("llama-3.1-8b", "abacus", "strata")
    with pytest.raises(LayoutError, match=r"llama-3\.1-8b"):
        scenario("no-such-model", "h200", "strata")
    with pytest.raises(SettingsError, match="weights"):
        scenario("llama-3.1-70b", "h200", "strata")
    with pytest.raises(SettingsError, match="no GPU"):
        profiled_machine(measured(4096, 1e-6), "voodoo")


def test_a_model_may_be_a_config_of_its_own(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(
        '{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": 2,'
        '"hidden_size": 256, "num_attention_heads": 8, "num_key_value_heads": 8,'
        '"intermediate_size": 512, "vocab_size": 1000, "torch_dtype": "bfloat16"}'
    )
    assert scenario(str(config), "h200", "strata").shape.layers == 2


def test_every_gpu_has_its_memory_and_every_baseline_says_what_it_assumes() -> None:
    assert HBM_BYTES.keys() == GPUS.keys()
    machine = published_machine("h200")
    for name in BASELINES:
        told = assumed(name, machine, Sizes(), Rates.SUSTAINED)
        assert any("under serving" in one for one in told) is (name not in ("recompute", "oracle"))
