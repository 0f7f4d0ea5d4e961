"""The story of a request or a batch, in lines. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from kvready.advisor.explanation import BatchStory, Event, RequestStory
from kvready.advisor.ledger import Pair, PairState

VERDICTS = {True: "inside its range", False: "outside its range", None: "no outcome"}


def request_lines(story: RequestStory) -> list[str]:
    """What happened, where the wait went, what was foreseen, what Strata would have done."""
    lines = [f"request {story.request_id}, rank {story.rank}", *_events(story.events)]
    if story.wait_seconds and story.ttft_seconds is not None:
        lines.append(f"where its {_seconds(story.ttft_seconds)} to the first token went")
        for state, seconds in story.wait_seconds.items():
            share = seconds / story.ttft_seconds if story.ttft_seconds else 0.0
            lines.append(f"  {state:9} {_seconds(seconds):>10}  {share:4.0%}")
    else:
        lines.append("it got no first token")
    lines += _pairs(story.pairs)
    passes = story.passes
    compared = passes.same + passes.sooner + passes.later
    if not compared:
        lines.append("Strata: no pass in which it waited left a choice to be compared")
    else:
        lines.append(
            f"Strata: of {compared} passes in which it waited and there was a choice, it would "
            f"have done the same in {passes.same}, taken it or loaded for it sooner in "
            f"{passes.sooner}, and held it in {passes.later}"
        )
    return lines


def batch_lines(story: BatchStory) -> list[str]:
    """What it held, how long it took and should have, whom Strata would have taken."""
    lines = [f"batch {story.step}, rank {story.rank}", *_events(story.events)]
    lines += _pairs(story.pairs)
    if not story.compared:
        lines.append("Strata: there was no choice, or an episode was under way: not compared")
    elif not story.differs:
        lines.append("Strata would have decided the same")
    else:
        lines += ["Strata would have decided otherwise", *(f"  {one}" for one in story.differs)]
    return lines


def pair_line(
    target: str, p50: float, low: float, high: float, actual: float | None, covered: bool | None
) -> str:
    """One forecast beside its outcome."""
    was = "was not seen" if actual is None else f"was {_seconds(actual)}"
    foreseen = f"{_seconds(p50)} ({_seconds(low)} to {_seconds(high)})"
    return f"  {target:14} foreseen {foreseen}, {was}: {VERDICTS[covered]}"


def _events(events: Sequence[Event]) -> list[str]:
    return [f"  {event.seconds:+10.4f} s  {event.says}" for event in events]


def _pairs(pairs: Sequence[Pair]) -> list[str]:
    lines = ["forecasts"] if pairs else ["no forecast was written"]
    for pair in pairs:
        one = pair.forecast
        line = pair_line(
            one.target, one.p50_seconds, one.low_seconds, one.high_seconds,
            pair.actual_seconds, pair.covered,
        )  # fmt: skip
        odd = pair.state is not PairState.PAIRED
        lines.append(f"{line} ({pair.state}: not scored)" if odd else line)
    return lines


def _seconds(value: float) -> str:
    return f"{value * 1e3:.1f} ms" if abs(value) < 1.0 else f"{value:.2f} s"
