"""What counts as served: a first token in time, then tokens fast enough, over the whole path."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from kvready.collectors.records import Outcome
from kvready.collectors.service_targets import ServiceTargets


class Served(StrEnum):
    """How a request fared against its targets."""

    GOOD = "good"  # whole, and inside every target that it has
    LATE = "late"  # its first token came, or was given up, after its target
    SLOW = "slow"  # in time, but its tokens came slower than their target
    FAILED = "failed"  # the engine ended it with an error, or restarted
    ABORTED = "aborted"  # its client gave up before the target had passed
    NO_TARGET = "no_target"  # nobody said what it should be
    UNSEEN = "unseen"  # how long it took was not seen


class Ended(msgspec.Struct, frozen=True):
    """What is known of a request that ended. None: not seen. Seconds from its arrival on."""

    outcome: Outcome
    ttft_seconds: float | None
    decode_seconds: float | None  # from its first token to its end
    whole_seconds: float | None
    output_tokens: int | None
    ttft_target_seconds: float | None = None  # its own


def judge(ended: Ended, targets: ServiceTargets) -> Served:
    """One request that ended. Its own target comes before the one that holds for all."""
    ttft_target = ended.ttft_target_seconds or targets.ttft_seconds
    pace_target = targets.output_tokens_per_second
    if ended.outcome is Outcome.FAILED:
        return Served.FAILED
    if ttft_target is None and pace_target is None:
        return Served.NO_TARGET
    if ttft_target is not None:
        waited = ended.ttft_seconds
        if waited is None and ended.outcome is Outcome.ABORTED:
            waited = ended.whole_seconds
        if waited is None:
            return Served.UNSEEN
        if waited > ttft_target:
            return Served.LATE
    if ended.outcome is Outcome.ABORTED:
        return Served.ABORTED
    if pace_target is None or ended.output_tokens == 1:
        return Served.GOOD  # of a single token there is no pace
    if ended.decode_seconds is None or not ended.output_tokens:
        return Served.UNSEEN
    enough = ended.output_tokens - 1 >= pace_target * ended.decode_seconds
    return Served.GOOD if enough else Served.SLOW
