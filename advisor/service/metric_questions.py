"""What to ask of the metrics: questions of who runs an engine, and queries that answer them."""

from __future__ import annotations

from typing import NamedTuple


class Asked(NamedTuple):
    """One question and its query in PromQL."""

    question: str
    query: str


QUESTIONS = (
    Asked(
        "What share of requests was served inside its targets?",
        'sum(rate(kvready_served_requests_total{served="good"}[5m])) / '
        'sum(rate(kvready_served_requests_total{served=~"good|late|slow|failed"}[5m]))',
    ),
    Asked(
        "How late are first tokens, by where their prefix was?",
        "histogram_quantile(0.9, sum by (le, initial_state) "
        "(rate(kvready_ttft_by_state_seconds_bucket[5m])))",
    ),
    Asked(
        "How fast does one request of each class get its tokens?",
        "sum by (class) (rate(kvready_output_tokens_by_class_total[5m])) / "
        "sum by (class) (rate(kvready_decode_seconds_by_class_total[5m]))",
    ),
    Asked(
        "What bandwidth do loads reach by size, alone and beside others?",
        'sum by (size, beside) (rate(kvready_transfer_bytes_total{path="load"}[5m])) / '
        'sum by (size, beside) (rate(kvready_transfer_seconds_total{path="load"}[5m]))',
    ),
    Asked(
        "What does a scattered piece cost, by mover?",
        'sum by (method) (rate(kvready_mover_seconds_total{path="load"}[5m])) / '
        'sum by (method) (rate(kvready_mover_fragments_total{path="load"}[5m]))',
    ),
    Asked(
        "How long is it from a load's order until it is usable?",
        "histogram_quantile(0.9, sum by (le, path) "
        "(rate(kvready_decision_to_usable_seconds_bucket[5m])))",
    ),
    Asked(
        "Why is the link into HBM idle?",
        "sum by (reason) (rate(kvready_link_idle_seconds_total[5m]))",
    ),
    Asked(
        "How far back do prompts reach, in tokens?",
        "sum(rate(kvready_reuse_distance_tokens_total[5m])) / sum(rate(kvready_reuses_total[5m]))",
    ),
    Asked(
        "What share of HBM is left for decode?",
        'sum(kvready_hbm_free_bytes) / sum(kvready_tier_capacity_bytes{tier="hbm"})',
    ),
    Asked(
        "Of which families is something not seen, or not known yet?",
        "kvready_coverage_ratio < 1",
    ),
)
