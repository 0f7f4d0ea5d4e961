"""The hook in a real engine: dedup flipped live, and a sidecar that breaks in every way.

A contrived load: chunks of prefills are capped, and several ask about one new prefix at a time. In
vLLM's default configuration nothing is computed twice, and the hook stays out.
"""

from __future__ import annotations

import http.client
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from enforced import CAP, HOLD_SECONDS, OWN_TOKENS, Enforced, Traffic

from kvready.advisor.hooks.lease import MAX_LEASE_SECONDS
from kvready.collectors.records import (
    BatchPlanned,
    Outcome,
    RequestArrived,
    RequestFinished,
    RequestScheduled,
)

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

PREFIX_TOKENS = 2_400
IDEAL_TOKENS = PREFIX_TOKENS + 4 * OWN_TOKENS
TRIES = 10  # to catch a leader while it computes


@pytest.fixture(scope="module")
def enforced(engine_python: Path, models: Path) -> Iterator[Enforced]:
    with Enforced(engine_python, models / "check", extra_arguments=CAP) as made:
        yield made


def test_dedup_flipped_live_leaves_one_computation_of_a_prefix(enforced: Enforced) -> None:
    enforced.obey()
    stock = enforced.computed_for(enforced.prompts(PREFIX_TOKENS))
    enforced.obey(dedup=True)
    held = enforced.computed_for(enforced.prompts(PREFIX_TOKENS))
    enforced.obey()
    again = enforced.computed_for(enforced.prompts(PREFIX_TOKENS))
    assert held <= 1.05 * IDEAL_TOKENS
    assert min(stock, again) >= 2 * IDEAL_TOKENS


def goes_back_to_stock(enforced: Enforced, break_it: Callable[[], None]) -> None:
    """Under load: within one lease nobody is held any more, and everybody is answered."""
    enforced.obey(dedup=True)
    before = len(enforced.watched.holds())
    with Traffic(enforced) as traffic:
        enforced.watched.wait_for(lambda: len(enforced.watched.holds()) > before, "a hold")
        break_it()
        until = time.monotonic() + MAX_LEASE_SECONDS
        enforced.watched.wait_for(lambda: time.monotonic() > until, "the end of the lease")
        begun = traffic.convoys
        enforced.watched.wait_for(lambda: traffic.convoys > begun + 2, "traffic")
    assert traffic.errors == []
    assert traffic.answered == traffic.asked
    late = [one for one in enforced.watched.holds() if one.deferred_seconds > until]
    assert late == []


def test_a_frozen_sidecar(enforced: Enforced) -> None:
    goes_back_to_stock(enforced, enforced.sidecar.freeze)
    enforced.sidecar.freeze(False)


def test_a_sidecar_that_answers_too_slowly(enforced: Enforced) -> None:
    goes_back_to_stock(enforced, lambda: enforced.sidecar.tell(behave="slow"))


def test_a_sidecar_that_lies(enforced: Enforced) -> None:
    goes_back_to_stock(enforced, lambda: enforced.sidecar.tell(behave="lie"))


def test_a_sidecar_that_flaps_loses_nobody(enforced: Enforced) -> None:
    enforced.obey(dedup=True)
    with Traffic(enforced) as traffic:
        enforced.sidecar.tell(behave="flap")
        enforced.watched.wait_for(lambda: traffic.convoys > 12, "traffic")
    assert traffic.errors == []
    assert traffic.answered == traffic.asked


class Convoy:
    """A leader that computes, and followers that are held for it."""

    def __init__(self, enforced: Enforced, number: int) -> None:
        names = [f"lead-{number}", *(f"follow-{number}-{one}" for one in range(2))]
        prompts = enforced.prompts(3_600, followers=2)
        self.watched = enforced.watched
        self.leader, *self.followers = names
        self.calls: dict[str, http.client.HTTPConnection] = {}
        for name, prompt in zip(names, prompts, strict=True):
            self.calls[name] = enforced.begin(name, prompt, output_tokens=3)
            self._wait(lambda name=name: self.watched.of(RequestArrived, name), name)  # type: ignore[misc]

    def hang_up(self, name: str) -> None:
        """Its client goes away."""
        self.calls.pop(name).close()

    def finish(self) -> dict[str, Outcome]:
        """Read what is left; how each of them ended."""
        for call in self.calls.values():
            with call.getresponse() as response:
                assert response.status == 200
                assert b"[DONE]" in response.read()
            call.close()
        for name in (self.leader, *self.followers):
            self._wait(lambda name=name: self.watched.of(RequestFinished, name), name)  # type: ignore[misc]
        return {
            name: self.watched.of(RequestFinished, name)[0].outcome
            for name in (self.leader, *self.followers)
        }

    def _wait(self, found: Callable[[], object], what: str) -> None:
        self.watched.wait_for(found, what)


def test_when_a_producer_is_aborted_the_next_one_computes(enforced: Enforced) -> None:
    enforced.obey(dedup=True)
    for number in range(TRIES):
        convoy = Convoy(enforced, number)
        convoy.hang_up(convoy.leader)
        ends = convoy.finish()
        held = [one for one in convoy.followers if enforced.watched.holds(one)]
        if ends.pop(convoy.leader) is Outcome.ABORTED and held:
            break
    else:
        pytest.fail("no leader was caught while it computed")
    assert set(ends.values()) == {Outcome.FINISHED}
    aborted = enforced.watched.of(RequestFinished, convoy.leader)[0].finished_seconds
    admitted = min(enforced.watched.of(RequestScheduled, one)[0].scheduled_seconds for one in held)
    assert passes(enforced, aborted, admitted) <= 1


def test_a_request_that_is_cancelled_while_held_is_gone(enforced: Enforced) -> None:
    enforced.obey(dedup=True)
    for number in range(TRIES, 2 * TRIES):
        convoy = Convoy(enforced, number)
        cancelled = convoy.followers[0]
        convoy.hang_up(cancelled)
        ends = convoy.finish()
        was_held = enforced.watched.holds(cancelled)
        was_admitted = enforced.watched.of(RequestScheduled, cancelled)
        if ends.pop(cancelled) is Outcome.ABORTED and was_held and not was_admitted:
            break
    else:
        pytest.fail("no follower was caught while it was held")
    assert set(ends.values()) == {Outcome.FINISHED}


def test_a_killed_sidecar(enforced: Enforced) -> None:
    goes_back_to_stock(enforced, enforced.sidecar.kill)


def test_after_all_that_nobody_was_lost_or_held_beyond_the_deadline(enforced: Enforced) -> None:
    watched = enforced.watched
    arrived = {one.request_id for one in watched.of(RequestArrived)}
    assert len(arrived) > 100
    watched.wait_for(
        lambda: {one.request_id for one in watched.of(RequestFinished)} == arrived, "all ends"
    )
    failed = [one for one in watched.of(RequestFinished) if one.outcome is Outcome.FAILED]
    assert failed == []
    admitted = {one.request_id: one.scheduled_seconds for one in watched.of(RequestScheduled)}
    for hold in watched.holds():
        deadline = hold.deferred_seconds + HOLD_SECONDS
        assert passes(enforced, deadline, admitted.get(hold.request_id, 0.0)) <= 1
    log = enforced.engine.log.read_text()
    assert "kvready hook: balance stays out" in log
    assert "the engine goes on without policies" not in log
    assert "EngineDeadError" not in log


def passes(enforced: Enforced, begin_seconds: float, end_seconds: float) -> int:
    """Batches that were planned between two moments."""
    planned = enforced.watched.of(BatchPlanned)
    return sum(begin_seconds < one.planned_seconds < end_seconds for one in planned)
