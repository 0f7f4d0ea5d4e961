"""The load-aware reordering that regressed in public (SGLang pull request 38358).

Requests that would load go behind those that would not; an idle engine waits a little before it
admits one, in case others come; while decodes run they are deferred, up to a cap. Here as a
baseline that a good policy must beat, with the two times of that proposal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from kvready.advisor.whatif.cache import Match
from kvready.advisor.whatif.live_request import LiveRequest

IDLE_DELAY_SECONDS = 30e-3
LONGEST_DEFERRAL_SECONDS = 5.0


def naive_order(
    lives: Iterable[LiveRequest],
    match: Callable[[LiveRequest], Match],
    now_seconds: float,
    is_decoding: bool,
) -> tuple[list[LiveRequest], list[LiveRequest]]:
    """Who may be admitted, in order, and who is deferred."""
    plain: list[LiveRequest] = []
    hits: list[LiveRequest] = []
    for live in lives:
        # Compared as the timers are set, so that a request whose timer rang is past its time.
        due = live.outcome.admitted_seconds + LONGEST_DEFERRAL_SECONDS
        (hits if match(live).load_blocks and now_seconds < due else plain).append(live)
    if is_decoding or plain:
        return plain, hits
    ready: list[LiveRequest] = []
    early: list[LiveRequest] = []
    for live in hits:
        is_early = now_seconds < live.outcome.admitted_seconds + IDLE_DELAY_SECONDS
        (early if is_early else ready).append(live)
    return ready, early
