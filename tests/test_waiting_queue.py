"""Matches kept by events equal matches made anew; leaders have heirs; nobody starves."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from chains import Chains
from hypothesis import given
from hypothesis import strategies as st

from kvready.advisor import waiting_queue as waiting_queue_module
from kvready.advisor.strata import PAPER, BatchLimits, Settings, Waiting, intended_batch
from kvready.advisor.transient import NOBODY, Mark, TransientBlocks
from kvready.advisor.waiting_queue import Match, WaitingQueue

BLOCK = 16
CHAINS = Chains()
PATHS = st.text("ab", min_size=1, max_size=6)
TIERS = st.sampled_from(("hbm", "host"))


class Engine:
    """Residency, promises and the queue, as a host of the queue keeps them."""

    def __init__(self) -> None:
        self.hbm: set[int] = set()
        self.host: set[int] = set()
        self.transient = TransientBlocks()
        self.queue = WaitingQueue(self.match, self.transient, BLOCK)
        self.chains: dict[str, tuple[int, ...]] = {}
        self.seconds = 0.0

    def match(self, chain: Sequence[int]) -> Match:
        held = self.hbm | self.host
        return Match(leading(chain, self.hbm), leading(chain, held))

    def arrives(self, name: str, path: str, tail: int = 1) -> None:
        chain = self.chains[name] = CHAINS.chain(path)
        self.queue.arrive(name, len(chain) * BLOCK + tail, chain)
        self.transient.promise(chain, self.match(chain).held_blocks, name)

    def stores(self, tier: str, hashes: Sequence[int]) -> None:
        getattr(self, tier).update(hashes)
        self.queue.stored(hashes)

    def removes(self, tier: str, hashes: Sequence[int]) -> None:
        getattr(self, tier).difference_update(hashes)
        self.queue.stored(hashes)

    def completes(self, name: str) -> None:
        """It ran, and its blocks are in HBM."""
        self.queue.leave(name)
        self.stores("hbm", self.chains[name])
        self.transient.complete(name)
        self.queue.follow(name)

    def aborts(self, name: str) -> None:
        self.queue.leave(name)
        self.transient.abort(name)
        self.queue.follow(name)

    def waiting(self) -> list[Waiting]:
        return self.queue.waiting(self.seconds)


def leading(chain: Sequence[int], there: set[int]) -> int:
    return next((n for n, block in enumerate(chain) if block not in there), len(chain))


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("arrives"), PATHS),
        st.tuples(st.just("completes"), st.integers(0, 5)),
        st.tuples(st.just("aborts"), st.integers(0, 5)),
        st.tuples(st.just("stores"), TIERS, PATHS, st.integers(0, 5)),
        st.tuples(st.just("removes"), TIERS, PATHS, st.integers(0, 5)),
        st.tuples(st.just("read")),
    ),
    max_size=30,
)


@given(STEPS)
def test_matches_that_events_renew_equal_matches_made_anew(steps: list[tuple[object, ...]]) -> None:
    engine = Engine()
    for number, (kind, *args) in enumerate(steps):
        match kind, args:
            case "arrives", [str(path)]:
                engine.arrives(f"r{number}", path)
            case (("completes" | "aborts"), [int(place)]):
                names = [waiting.request_id for waiting in engine.waiting()]
                if names:
                    getattr(engine, str(kind))(names[place % len(names)])
            case (("stores" | "removes"), [str(tier), str(path), int(start)]):
                getattr(engine, str(kind))(tier, CHAINS.chain(path)[start:])
            case _:
                engine.waiting()
    for waiting in engine.waiting():
        chain = engine.chains[waiting.request_id]
        hbm, held = engine.match(chain)
        assert waiting.load_hashes == chain[hbm:held]
        assert waiting.load_tokens == (held - hbm) * BLOCK
        assert waiting.context_tokens == held * BLOCK
        assert waiting.compute_tokens == (len(chain) - held) * BLOCK + 1
        assert waiting.blocks_needed == len(chain) + 1 - hbm
        awaited = engine.transient.awaited(chain, held, len(chain), waiting.request_id)
        assert waiting.awaited_tokens == awaited.blocks * BLOCK


@given(st.lists(st.tuples(PATHS, st.booleans()), max_size=12), st.integers(0, 11))
def test_what_an_aborted_request_promised_falls_to_the_next_that_brings_it(
    requests: list[tuple[str, bool]], gone: int
) -> None:
    transient, without = TransientBlocks(), TransientBlocks()
    for number, (path, dispatched) in enumerate(requests):
        transient.promise(CHAINS.chain(path), 0, f"r{number}")
        if dispatched:
            transient.dispatch(f"r{number}")
        if number != gone:
            without.promise(CHAINS.chain(path), 0, f"r{number}")
    transient.abort(f"r{gone}")
    for path, _ in requests:
        for block in CHAINS.chain(path):
            assert transient.producer(block) == without.producer(block)
    assert len(transient) == len(without)


def test_a_promise_is_in_queue_until_it_is_dispatched() -> None:
    transient = TransientBlocks()
    chain = CHAINS.chain("abcdef")
    transient.promise(chain, 2, "a")
    assert transient.mark("a") is Mark.IN_QUEUE
    transient.dispatch("a")
    assert transient.mark("a") is Mark.IN_FLIGHT
    transient.requeue("a")
    assert transient.mark("a") is Mark.IN_QUEUE
    assert transient.awaited(chain, 2, 6, "b") == (4, "a", "a")
    assert transient.awaited(chain, 0, 6, "b") == NOBODY  # a gap
    assert transient.awaited(chain, 2, 6, "a") == NOBODY  # its own
    transient.complete("a")
    assert not len(transient)


def test_a_follower_is_deferred_goes_first_and_then_finds_what_it_waited_for() -> None:
    engine = Engine()
    document = "d" * 8
    for name, path in (("leader", document), ("other", "o"), ("follower", document + "q")):
        engine.arrives(name, path)
    limits = BatchLimits(batch_requests=2, block_tokens=BLOCK)
    plan = intended_batch(engine.waiting(), limits)
    assert [admission.request_id for admission in plan.admitted] == ["leader", "other"]
    assert plan.deferred == ("follower",)
    engine.queue.settle(plan, 0.0)
    engine.completes("leader")
    engine.completes("other")
    engine.arrives("late", "l")
    assert [waiting.request_id for waiting in engine.waiting()] == ["follower", "late"]
    follower = engine.waiting()[0]
    assert (follower.awaited_tokens, follower.context_tokens) == (0, 8 * BLOCK)
    assert follower.compute_tokens == BLOCK + 1


def test_followers_of_an_aborted_leader_are_led_by_the_earliest_of_them() -> None:
    engine = Engine()
    for name in ("leader", "second", "third"):
        engine.arrives(name, "z" * 9)
    assert [waiting.leader for waiting in engine.waiting()] == ["", "leader", "leader"]
    engine.aborts("leader")
    assert [waiting.leader for waiting in engine.waiting()] == ["", "second"]
    assert intended_batch(engine.waiting(), BatchLimits(block_tokens=BLOCK)).deferred == ("third",)


def test_who_was_preempted_goes_before_the_others() -> None:
    engine = Engine()
    engine.arrives("a", "a")
    engine.queue.arrive("back", 40, (), first=True)
    assert [waiting.request_id for waiting in engine.waiting()] == ["back", "a"]
    assert "back" in engine.queue
    assert [waiting.request_id for waiting in engine.queue.these(("a", "gone"), 0.0)] == ["a"]


def test_a_cleared_tier_renews_every_match() -> None:
    engine = Engine()
    engine.stores("host", CHAINS.chain("abab"))
    engine.arrives("a", "abab")
    assert engine.waiting()[0].load_tokens == 4 * BLOCK
    engine.host.clear()
    engine.queue.renew_all()
    assert engine.waiting()[0].load_tokens == 0


def test_places_of_blocks_that_nobody_waits_for_are_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(waiting_queue_module, "SPARE_PLACES", 10)
    engine = Engine()
    engine.arrives("stays", "sysstay")
    for number in range(50):
        engine.arrives(f"r{number}", "sys" + chr(1_000 + number) * 20)
        engine.queue.leave(f"r{number}")
    assert len(engine.queue._watched) <= 10 + 3 * 27
    engine.stores("hbm", CHAINS.chain("sys"))
    assert engine.waiting()[0].context_tokens == 3 * BLOCK
    engine.queue.leave("stays")
    assert not engine.queue._watched
    assert not len(engine.queue)


def test_beyond_the_bound_a_match_stays_as_it_came(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting_queue_module, "MAX_WATCHED_BLOCKS", 5)
    engine = Engine()
    engine.arrives("a", "abcd")
    engine.arrives("b", "wxyz")
    engine.stores("hbm", CHAINS.chain("wxyz"))
    assert engine.queue.unwatched == 1
    assert [waiting.context_tokens for waiting in engine.waiting()] == [0, 0]


ARRIVALS = st.lists(
    st.lists(st.tuples(PATHS, st.integers(1, 3)), max_size=2), min_size=40, max_size=60
)
TIGHT = st.builds(
    BatchLimits,
    batch_tokens=st.sampled_from((None, 20, 60)),
    batch_requests=st.sampled_from((1, 2)),
    block_tokens=st.just(BLOCK),
)


@given(ARRIVALS, TIGHT, st.integers(1, 3), st.sampled_from((0.5, 100.0)))
def test_nobody_waits_for_more_rounds_than_the_hold_and_those_before_it(
    arrivals: list[list[tuple[str, int]]], limits: BatchLimits, busy_rounds: int, ratio: float
) -> None:
    """Each round lasts a second; whoever runs computes for some rounds, and then has its blocks."""
    settings = Settings(delay_tokens=0, load_ratio=ratio, hold_seconds=5.0)
    engine = Engine()
    engine.host.update(CHAINS.chain("abab"))
    rounds_waited: dict[str, int] = {}
    computing: list[tuple[float, str]] = []
    longest_queue = 0
    for number, arriving in enumerate(arrivals):
        for place, (path, tail) in enumerate(arriving):
            engine.arrives(f"r{number}.{place}", path, tail)
        engine.seconds = float(number)
        for done in [item for item in computing if item[0] <= engine.seconds]:
            computing.remove(done)
            engine.completes(done[1])
        queue = engine.waiting()
        longest_queue = max(longest_queue, len(queue))
        plan = intended_batch(queue, limits, settings)
        engine.queue.settle(plan, engine.seconds)
        for admission in plan.admitted:
            engine.queue.leave(admission.request_id)
            engine.transient.dispatch(admission.request_id)
            computing.append((engine.seconds + busy_rounds, admission.request_id))
        if plan.admitted:
            for waiting in engine.waiting():
                name = waiting.request_id
                rounds_waited[name] = rounds_waited.get(name, 0) + 1
    bound = int(settings.hold_seconds) + 2 * longest_queue + 1
    assert max(rounds_waited.values(), default=0) <= bound


@pytest.mark.parametrize("hold_seconds", [10.0, PAPER.hold_seconds])
def test_followers_put_in_front_round_after_round_do_not_keep_the_head_for_ever(
    hold_seconds: float,
) -> None:
    """The paper's rule alone would: each newcomer follows the one that runs, and goes first."""
    settings = Settings(hold_seconds=hold_seconds)
    limits = BatchLimits(batch_requests=1, block_tokens=BLOCK)
    engine = Engine()
    engine.arrives("f0", "f" * 10)
    engine.arrives("patient", "p")
    running = ""
    for number in range(1, 100):
        engine.seconds = float(number)
        engine.arrives(f"f{number}", "f" * (10 * (number + 1)))
        if running:
            engine.completes(running)
        plan = intended_batch(engine.waiting(), limits, settings)
        engine.queue.settle(plan, engine.seconds)
        (running,) = [admission.request_id for admission in plan.admitted]
        engine.queue.leave(running)
        if running == "patient":
            break
    # passed over first in round 2, so overdue after the hold
    assert engine.seconds == hold_seconds + 2.0
