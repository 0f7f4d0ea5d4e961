"""What counts as served: the `targets` section of the settings."""

from __future__ import annotations

from pydantic import Field

from kvready.advisor.tap_settings import Section
from kvready.collectors.service_targets import NO_TARGETS, ServiceTargets

MOST_TARGET_SECONDS = 3_600.0
MOST_TARGET_TOKENS = 100_000.0  # per second, of one request


class TargetSettings(Section):
    """What requests are held to that bring no targets of their own."""

    target_ttft_seconds: float | None = Field(
        None,
        gt=0,
        le=MOST_TARGET_SECONDS,
        description="Time to first token that counts as served, for requests that bring no target; "
        "none: no such limit.",
    )
    target_output_tokens_per_second: float | None = Field(
        None,
        gt=0,
        le=MOST_TARGET_TOKENS,
        description="Output tokens per second of one request, after its first, that count as "
        "served; none: no such limit.",
    )

    @property
    def service_targets(self) -> ServiceTargets | None:
        """As everything else takes them; None where nothing is asked."""
        targets = ServiceTargets(self.target_ttft_seconds, self.target_output_tokens_per_second)
        return None if targets == NO_TARGETS else targets
