"""Whatever fails in the hook stays in the hook: the engine goes on as a stock one."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from fake_vllm import ByPriority, FakeRequest, FirstCome, Status
from test_hook_scheduler import HOLD_SECONDS, ON, STEP_SECONDS, Engine, convoy, fresh, into_host

from kvready.advisor.hooks.lease import NOTHING, Held
from kvready.advisor.hooks.vllm_hook import VllmHook
from kvready.advisor.policies import Policy

BOTH = {Policy.DEDUP: ON, Policy.BALANCE: ON}
MOST_TOUCHES = 1_500


class Broken(RuntimeError):
    """What the trap raises."""


class Trap:
    """Stands before an object; from the n-th touch on, every one fails."""

    def __init__(self, real: object, touches: list[int]) -> None:
        self._real = real
        self._touches = touches

    def __getattr__(self, name: str) -> Any:
        self._touches[0] -= 1
        if self._touches[0] < 0:
            raise Broken(name)
        found = getattr(self._real, name)
        if isinstance(found, (int, float, str, list, dict, set)) or callable(found):
            return found
        return Trap(found, self._touches) if name != "waiting" else found


def story(engine: Engine) -> dict[str, Status]:
    """Convoys, hits and others; somebody is preempted, somebody aborted."""
    hits = [fresh("hit", number, 20) for number in range(3)]
    into_host(engine, *hits)
    engine.vllm.add(fresh("other", 7, 2, output_tokens=40), *convoy(), *hits)
    engine.step(3)
    engine.vllm.preempt(engine.vllm.running[-1].request_id)
    engine.step(2)
    engine.vllm.abort("r2")
    engine.run()
    return engine.vllm.ends


def trapped(touches: int) -> tuple[Engine, list[int]]:
    engine = Engine(host=True)
    left = [touches]
    engine.hook._scheduler = Trap(engine.vllm, left)
    assert engine.hook._view is not None
    engine.hook._view._scheduler = engine.hook._scheduler
    engine.flags.say(BOTH)
    return engine, left


def test_a_failure_at_any_touch_of_the_engine_loses_nobody() -> None:
    expected = story(Engine(host=True))
    touches = 0
    while touches < MOST_TOUCHES:
        engine, left = trapped(touches)
        assert story(engine) == expected
        if left[0] >= 0:
            break
        assert engine.hook.failures == 1, "once, and it asks for nothing any more"
        assert not engine.hook.held
        touches += 1 if touches < 60 else 17
    assert 60 < touches < MOST_TOUCHES, "failures were met, and at last there was none"


class Brittle(FirstCome):
    """A queue of which one method fails, once."""

    fails = ""

    def _check(self, name: str) -> None:
        if name == self.fails:
            self.fails = ""
            raise Broken(name)

    def clear(self) -> None:
        self._check("clear")
        super().clear()

    def extend(self, requests: Any) -> None:
        self._check("extend")
        super().extend(requests)


class BrittleHeap(ByPriority):
    """Likewise."""

    fails = ""

    def _check(self, name: str) -> None:
        if name == self.fails:
            self.fails = ""
            raise Broken(name)

    def add_request(self, request: Any) -> None:
        self._check("add_request")
        super().add_request(request)

    def remove_requests(self, requests: Any) -> None:
        self._check("remove_requests")
        super().remove_requests(requests)


@pytest.mark.parametrize("method", ["add_request", "remove_requests"])
def test_a_heap_that_fails_is_whole_again(method: str) -> None:
    engine = Engine(policy="priority")
    engine.vllm.waiting = heap = BrittleHeap()
    engine.flags.say({Policy.DEDUP: ON})
    engine.vllm.add(*convoy())
    heap.fails = method
    engine.run()
    assert engine.vllm.ends.keys() == {"r0", "r1", "r2", "r3"}
    assert engine.hook.failures == 1


@pytest.mark.parametrize("method", ["clear", "extend"])
@pytest.mark.parametrize("in_pass", [True, False], ids=["before the pass", "in the pass"])
def test_a_queue_that_fails_is_whole_again(method: str, in_pass: bool) -> None:
    engine = Engine(host=True)
    engine.vllm.waiting = queue = Brittle()
    engine.flags.say(BOTH)
    hit = fresh("hit", 0)
    into_host(engine, hit)
    engine.vllm.add(fresh("other", 7, 2, output_tokens=20), *convoy(), hit)
    if in_pass:
        stock = engine.vllm.schedule

        def schedule() -> dict[str, int]:
            queue.fails = method
            try:
                return stock()
            finally:
                engine.vllm.schedule = stock  # type: ignore[method-assign]

        engine.vllm.schedule = schedule  # type: ignore[method-assign]
    else:
        queue.fails = method
    engine.run()
    assert engine.vllm.ends.keys() == {"other7", "r0", "r1", "r2", "r3", "hit0"}


def test_it_is_said_once_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    engine, _ = trapped(0)
    with caplog.at_level(logging.WARNING):
        engine.step(5)
        engine.flags.say({})
        engine.step()
        engine.flags.say(BOTH)
        engine.step(5)
    assert engine.hook.failures == 2
    assert len([one for one in caplog.records if "Broken" in one.message]) == 1


def test_after_a_failure_it_stays_out_until_the_flags_were_off() -> None:
    engine = Engine()
    engine.flags.say({Policy.DEDUP: ON})
    engine.vllm.add(fresh("other", 7, 2, output_tokens=900), *convoy())
    engine.hook._scheduler = None
    engine.step()
    engine.hook._scheduler = engine.vllm
    engine.step(20)
    assert engine.hook.failures == 1
    assert engine.held_at == {}
    engine.flags.say({Policy.DEDUP: ON})
    more = convoy(prefix=tuple(range(50_000, 50_075)), name="s")
    engine.vllm.add(*more[:2])
    engine.step()
    assert engine.held_at == {}, "said again is not off and on"
    engine.flags.held = NOTHING
    engine.step()
    engine.flags.say({Policy.DEDUP: ON})
    engine.vllm.add(*more[2:])
    engine.step()
    assert engine.hook.held == {"s2", "s3"}


def test_flags_that_cannot_be_read_are_off() -> None:
    engine = Engine()

    def broken() -> Held:
        raise Broken("flags")

    engine.hook = engine.vllm.hook = VllmHook(engine.vllm, "0.32.0", broken, HOLD_SECONDS)
    engine.vllm.add(*convoy())
    engine.run()
    assert engine.held_at == {}
    assert engine.hook.failures == len(engine.vllm.steps)


def test_a_scheduler_that_cannot_be_read_is_left_alone() -> None:
    engine = Engine()
    hook = VllmHook(object(), "0.32.0", lambda: engine.flags.held, HOLD_SECONDS)
    assert hook.refusals.keys() == {Policy.DEDUP, Policy.BALANCE}
    engine.flags.say(BOTH)
    hook.before_pass()
    hook.after_pass()
    assert hook.failures == 1


def test_a_pass_that_fails_by_itself_keeps_its_own_error_and_its_queue() -> None:
    engine = Engine()
    engine.flags.say({Policy.DEDUP: ON})
    engine.vllm.add(*convoy())

    def schedule() -> dict[str, int]:
        raise Broken("the engine's own")

    engine.vllm.schedule = schedule  # type: ignore[method-assign]
    with pytest.raises(Broken, match="own"):
        engine.vllm.step()
    assert [one.request_id for one in engine.vllm.waiting] == ["r0", "r1", "r2", "r3"]
    assert engine.hook.failures == 0


@pytest.mark.parametrize("every", [1, 2, 7])
def test_flags_that_flap_lose_nobody_and_hold_nobody_while_off(every: int) -> None:
    engine = Engine(host=True)
    requests = [*convoy(), *convoy(prefix=tuple(range(60_000, 60_050)), name="s")]
    waiting: list[FakeRequest] = list(requests)
    step = 0
    while waiting or engine.vllm.requests:
        is_on = step // every % 2 == 0
        engine.flags.say(BOTH if is_on else {})
        if waiting and step % 3 == 0:
            engine.vllm.add(waiting.pop(0))
        engine.step()
        assert is_on or not engine.hook.held
        step += 1
    assert engine.vllm.ends.keys() == {one.request_id for one in requests}
    assert engine.flags.now < 100.0 + 1_000 * STEP_SECONDS
    assert engine.hook.failures == 0
