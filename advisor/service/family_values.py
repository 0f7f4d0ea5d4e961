"""The values of what memory, movement and service come to."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from kvready.advisor.capacity import capacity
from kvready.advisor.link_use import Idle
from kvready.advisor.readiness import UNTOLD
from kvready.advisor.service.metric import PREFIX
from kvready.advisor.service.snapshot import (
    Children,
    Histogram,
    Histograms,
    histogram_of,
    named,
)
from kvready.advisor.service_account import By

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvready.advisor.copy_account import Beside, CopyPath, CopySize
    from kvready.advisor.distribution import Distribution
    from kvready.advisor.pipeline import Pipeline
    from kvready.collectors.records import CopyMethod


def family_values(pipeline: Pipeline) -> dict[str, Children]:
    """All but the histograms."""
    return named(_capacity(pipeline) | _movement(pipeline) | _service(pipeline))


def family_histograms(pipeline: Pipeline) -> Histograms:
    """The histograms, with an example of each bucket."""

    def told(distribution: Distribution) -> Histogram:
        return histogram_of(distribution, pipeline)

    service, lengths = pipeline.service, pipeline.lengths
    found: Histograms = {
        "request_prompt_tokens": {(): told(lengths.prompts)},
        "request_prefix_tokens": {(): told(lengths.prefixes)},
        "decision_to_usable_seconds": {
            (path,): told(one) for path, one in pipeline.copies.usable.items()
        },
        "reported_ttft_seconds": {(): told(service.reported_ttft)},
    }
    for by in By:
        found[f"ttft_by_{by}_seconds"] = {
            (name,): told(sums.ttft) for name, sums in service.groups[by].items()
        }
    return {PREFIX + name: children for name, children in found.items()}


def _capacity(pipeline: Pipeline) -> dict[str, Children]:
    now = capacity(pipeline.ranks.values(), pipeline.inventory)
    return {
        "inventory_distinct_blocks": {(): pipeline.inventory.distinct_blocks},
        "disk_share_ratio": _known(now.disk_ratio),
        "kv_bytes_per_token": _known(now.token_bytes),
        "tier_capacity_bytes": {(tier,): size for tier, size in now.tier_bytes.items()},
        "tier_held_bytes": {(tier,): size for tier, size in now.held_bytes.items()},
        "hbm_free_bytes": _known(now.free_hbm_bytes),
        "nominal_hit_tier_tokens_total": {
            (tier,): tokens for tier, tokens in pipeline.totals.nominal_tier_tokens.items()
        },
    }


def _movement(pipeline: Pipeline) -> dict[str, Children]:
    copies = pipeline.copies
    links = [rank.link for rank in pipeline.ranks.values()]
    engine = pipeline.engine
    idle: Counter[Idle] = Counter()
    for link in links:
        idle.update(link.idle_seconds)
    return {
        "transfer_bytes_total": _by_cell(copies.transfer_bytes),
        "transfer_seconds_total": _by_cell(copies.transfer_seconds),
        "untimed_transfers_total": {(path,): count for path, count in copies.untimed.items()},
        "mover_fragments_total": _by_mover(copies.mover_fragments),
        "mover_bytes_total": _by_mover(copies.mover_bytes),
        "mover_seconds_total": _by_mover(copies.mover_seconds),
        "gather_workers": _known(engine.gather_workers or None if engine else None),
        "decision_to_start_seconds_total": {
            (path,): seconds for path, seconds in copies.start_wait_seconds.items()
        },
        "link_busy_seconds_total": {(): sum(link.busy_seconds for link in links)},
        "link_idle_seconds_total": {(reason,): seconds for reason, seconds in idle.items()},
        "link_untold_seconds_total": {(): sum(link.untold_seconds for link in links)},
    }


def _service(pipeline: Pipeline) -> dict[str, Children]:
    service = pipeline.service
    targets = service.targets
    values: dict[str, Children] = {
        "served_requests_total": {
            (name, served): count for (name, served), count in service.served.items()
        },
        "arrivals_by_surface_total": {(one,): count for one, count in service.surfaces.items()},
        "gateway_arrivals_total": {(one,): n for one, n in pipeline.gateway.counts.items()},
        "reuses_total": {(): service.reuses},
        "reuse_distance_tokens_total": {(): service.reuse_tokens},
        "reported_served_requests_total": {(one,): n for one, n in service.reported.items()},
        "target_ttft_seconds": _known(targets.ttft_seconds),
        "target_output_tokens_per_second": _known(targets.output_tokens_per_second),
    }
    for by in By:
        groups = service.groups[by].items()
        values[f"output_tokens_by_{by}_total"] = {(n,): sums.output_tokens for n, sums in groups}
        values[f"decode_seconds_by_{by}_total"] = {(n,): sums.decode_seconds for n, sums in groups}
    return values


def _known(value: float | None) -> Children:
    return {} if value is None else {(): value}


def _by_mover(sums: Mapping[tuple[CopyPath, CopyMethod | None], float]) -> Children:
    return {(path, method or UNTOLD): value for (path, method), value in sums.items()}


def _by_cell(sums: Mapping[tuple[CopyPath, CopySize, Beside], float]) -> Children:
    return {(path, size, beside): value for (path, size, beside), value in sums.items()}
