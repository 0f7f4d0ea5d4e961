"""The condition card: what must be known beside every simulated figure. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from kvready.advisor.version import VERSION
from kvready.advisor.whatif.outcome import RequestOutcome
from kvready.advisor.whatif.scenario import LinkSpec, Scenario
from kvready.advisor.whatif.summary import CountedFrom, Spread, Targets, spread
from kvready.advisor.whatif.workload import Workload

GIGA = 1e9
# What a comparison's policies may differ in; the rest of their cards is one.
OWN = ("page size", "host memory", "disk", "link", "policies", "overlap mode")


def card(
    scenario: Scenario,
    workload: Workload,
    outcomes: Sequence[RequestOutcome],
    targets: Targets,
    seed: int,
    machine: str,
) -> dict[str, str]:
    """Name to words, in the order in which it is read."""
    tiers = scenario.tiers
    token_bytes = scenario.shape.layout(1, scenario.tensor_parallel).rank_bytes_per_token
    return {
        "evidence": "simulated",
        "model": f"{scenario.shape.name}, TP {scenario.tensor_parallel}",
        "machine": machine,
        "workload": f"{workload.name}: {len(workload.requests):,} requests; {workload.source}",
        "context length": _lengths(spread(one.prompt_tokens for one in outcomes)),
        "output length": _lengths(spread(one.output_tokens for one in outcomes)),
        "request rate": _rate(workload),
        "reuse distance": _reuse(outcomes),
        "initial cache state": _initial(workload),
        "page size": f"{scenario.page_tokens} tokens; cached by {workload.block_tokens}",
        "HBM for KV": f"{_size(tiers.hbm_bytes)} a GPU, {tiers.hbm_bytes // token_bytes:,} tokens",
        "host memory": _memory(tiers.host_bytes, scenario.tensor_parallel, token_bytes),
        "disk": _memory(tiers.disk_bytes, scenario.tensor_parallel, token_bytes),
        "link": _link(scenario),
        "policies": _policies(scenario),
        "overlap mode": scenario.engine.overlap.value,
        "engine": _engine(scenario),
        "TTFT target": f"{targets.ttft_seconds:g} s, counted from {_from(targets.counted_from)}",
        "throughput target": "none set"
        if targets.tokens_per_second is None
        else f"{targets.tokens_per_second:g} tokens/s of a request",
        "seed": str(seed),
        "version": f"kvready {VERSION}",
        **({"notes": "; ".join(workload.notes)} if workload.notes else {}),
    }


def link_text(link: LinkSpec) -> str:
    """One direction's cost in words."""
    if link.bytes_per_second == float("inf"):
        return f"{link.mover}: takes no time"
    parts = [f"{link.bytes_per_second / GIGA:.3g} GB/s"]
    if link.fragment_seconds:
        parts.append(f"{link.fragment_seconds * 1e6:.3g} µs a fragment")
    if link.start_seconds:
        parts.append(f"{link.start_seconds * 1e6:.3g} µs a load")
    return f"{link.mover}: {', '.join(parts)}"


def _lengths(lengths: Spread) -> str:
    if lengths.p50 is None or lengths.p90 is None:
        return "unknown"
    return f"p50 {lengths.p50:,.0f}, p90 {lengths.p90:,.0f} tokens"


def _rate(workload: Workload) -> str:
    arrivals = [one.arrived_seconds for one in workload.requests if not one.after]
    span = arrivals[-1] - arrivals[0] if len(arrivals) > 1 else 0.0
    if not span:
        return "all at once"
    later = len(workload.requests) - len(arrivals)
    rounds = f", {later:,} rounds after another's end" if later else ""
    return f"{(len(arrivals) - 1) / span:.3g} requests/s{rounds}"


def _reuse(outcomes: Sequence[RequestOutcome]) -> str:
    again = spread(one.reuse_tokens for one in outcomes if one.reuse_tokens is not None)
    if again.p50 is None or again.p90 is None:
        return "no prefix comes twice"
    share = again.count / len(outcomes)
    return (
        f"p50 {again.p50:,.0f}, p90 {again.p90:,.0f} distinct tokens in between; "
        f"{share:.0%} of requests come back"
    )


def _initial(workload: Workload) -> str:
    if not workload.warm_blocks:
        return "cold"
    tokens = len(workload.warm_blocks) * workload.block_tokens
    return f"host memory filled with {tokens:,} tokens, HBM empty"


def _memory(rank_bytes: int, ranks: int, token_bytes: int) -> str:
    if not rank_bytes:
        return "none"
    return f"{_size(rank_bytes * ranks)} for KV, {rank_bytes // token_bytes:,} tokens"


def _link(scenario: Scenario) -> str:
    if not scenario.tiers.host_bytes:
        return "not used"
    told = link_text(scenario.load)
    return f"{told}; disk {link_text(scenario.fetch)}" if scenario.fetch else told


def _policies(scenario: Scenario) -> str:
    policies = scenario.policies
    named = [policies.order.value]
    if policies.strata is not None:
        switches = ("dedup", "balance", "decode_fill")
        named += [name for name in switches if getattr(policies.strata, name)]
    return " + ".join(named)


def _engine(scenario: Scenario) -> str:
    engine = scenario.engine
    told = [f"{engine.batch_tokens:,} tokens and {engine.running_requests} requests a batch"]
    if engine.chunk_tokens:
        told.append(f"chunks of {engine.chunk_tokens:,}")
    if engine.in_flight_requests:
        told.append(f"at most {engine.in_flight_requests} in flight")
    told.append("decodes in prefill batches" if engine.mixed_batches else "prefill goes first")
    return ", ".join(told)


def _from(counted_from: CountedFrom) -> str:
    if counted_from is CountedFrom.ARRIVAL:
        return "arrival"
    return "admission under the in-flight cap"


def _size(size_bytes: int) -> str:
    return f"{size_bytes / GIGA:,.4g} GB"
