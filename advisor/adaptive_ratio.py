"""A load ratio that follows the stalls that were seen, where nobody profiled the machine.

Strata's limit of tokens loaded per token computed depends on model, link and batch: it breaks even
anywhere between 20 and 430. This one falls while batches stand still for their loads and rises
while it keeps requests out of batches that do not, within fixed bounds.
"""

from __future__ import annotations

import msgspec

from kvready.advisor.strata import LoadBudget, Plan, Settings

LOWEST_RATIO = 10.0
HIGHEST_RATIO = 1_000.0
STALL_SHARE = 0.1  # of a batch's time: more is too much
FALL = 0.9  # per batch that stalled
RISE = 1.05  # per batch that did not stall and left requests out for their loads


class AdaptiveRatio:
    """Told of each batch that ran; gives the settings for the next."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.ratio = min(max(settings.load_ratio, LOWEST_RATIO), HIGHEST_RATIO)

    @property
    def settings(self) -> Settings:
        """With the ratio in force; as they were where the budget is another."""
        if self._settings.budget is not LoadBudget.ADAPTIVE:
            return self._settings
        return msgspec.structs.replace(self._settings, load_ratio=self.ratio)

    def see(self, plan: Plan, stall_seconds: float, batch_seconds: float) -> None:
        """A planned batch ran so long, of which its compute stood still for loads."""
        if stall_seconds > STALL_SHARE * batch_seconds:
            self.ratio = max(LOWEST_RATIO, self.ratio * FALL)
        elif plan.deprioritised:
            self.ratio = min(HIGHEST_RATIO, self.ratio * RISE)
