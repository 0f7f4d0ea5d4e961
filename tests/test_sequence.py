"""The order of a lossy stream, rehearsed without sockets against an engine whose truth is known."""

from __future__ import annotations

import itertools
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from streams import SmallEngine

from kvready.advisor.inventory import Inventory, Knowledge
from kvready.collectors.records import TapEvent, TapState, TapStatus, Tier
from kvready.collectors.sequence import (
    KEPT_MARKS,
    MAX_HELD_MESSAGES,
    MAX_ROUNDS_PER_HOUR,
    ROUND_APART_SECONDS,
    Ask,
    Deliver,
    SequenceGate,
)
from kvready.collectors.vllm import KvEventDecoder

TAP = "engine"
MEDIUM_OF_TIER = {Tier.HBM: "GPU", Tier.HOST: "CPU"}


class Rehearsal:
    """A tap without sockets: gate, decoder and inventory, and an engine with a replay ring."""

    def __init__(self, seed: int, *, can_replay: bool = True, ring: int = 10_000) -> None:
        self.random = Random(seed)
        self.now = 100.0
        self.gate = SequenceGate(TAP, can_replay=can_replay)
        self.decoder = KvEventDecoder(TAP)
        self.inventory = Inventory()
        self.engine = SmallEngine(seed)
        self.ring = ring
        self.leaky = self.shedding = False
        self.asked: list[float] = []
        self.statuses: list[TapStatus] = []
        self.deliveries: list[tuple[int, int]] = []  # (epoch, sequence)
        self.delivered: int | None = None  # the last, in this epoch
        self.gate.connected(self.now)
        self.settle()

    def publish(self) -> tuple[int, bytes]:
        """The engine's next message, whatever becomes of it."""
        payload = self.engine.step()
        return len(self.engine.published) - 1, payload

    def arrive(self, message: tuple[int, bytes]) -> None:
        """A live message reaches us."""
        sequence, payload = message
        if self.gate.live(sequence, payload, payload[:10], self.now):
            self.deliver(sequence, payload)
        self.settle()

    def shed(self, message: tuple[int, bytes]) -> None:
        """What a live message brings is delivered, and lost on its way to the inventory."""
        self.shedding = True
        before = len(self.deliveries)
        self.arrive(message)
        self.shedding = False
        count = len(self.deliveries) - before
        if not count:
            return  # it was held back: nothing was lost
        loss = TapStatus(TAP, 0, TapEvent.DROPPED, TapState.DEGRADED, count=count)
        self.inventory.apply(loss)
        self.delivered = None
        self.gate.lost_behind(count, self.now)
        self.settle()

    def restart(self) -> None:
        """The engine dies and another comes up under the same address."""
        self.gate.disconnected(self.now)
        self.settle()
        self.engine = SmallEngine(self.random.getrandbits(32), self.engine.wall_seconds + 30)
        self.now += 30
        self.gate.connected(self.now)
        self.settle()

    def swap(self) -> None:
        """Another engine, further on than the one we knew, and no news of a broken connection."""
        known = max(self.gate.highest, len(self.engine.published))
        self.engine = SmallEngine(self.random.getrandbits(32), self.engine.wall_seconds + 30)
        for _ in range(known + self.random.randint(1, 5)):
            self.engine.step()

    def wait(self, seconds: float) -> None:
        """Time passes in the tap's rhythm."""
        for _ in range(int(seconds / 0.5)):
            self.now += 0.5
            self.gate.tick(self.now)
            self.settle()

    def settle(self) -> None:
        """Do what the gate wants done, replays included."""
        while self.gate.actions:
            action = self.gate.actions.popleft()
            if isinstance(action, Deliver):
                self.deliver(action.sequence, action.payload)
            elif isinstance(action, Ask):
                self.asked.append(self.now)
                self.replay(action.start)
            else:
                self.statuses.append(action)
                self.inventory.apply(action)
                if action.event is TapEvent.EPOCH:
                    self.delivered = None

    def replay(self, start: int) -> None:
        """vLLM's ROUTER: what the ring holds, and nothing more once its queue is full."""
        first = max(start, len(self.engine.published) - self.ring)
        wanted = list(enumerate(self.engine.published))[first:]
        if self.leaky and len(wanted) > 2:
            kept = self.random.randint(2, len(wanted))
            wanted = wanted[:kept]
            resumes = self.random.random() < 0.5
            for sequence, payload in wanted:
                self.gate.reply(sequence, payload, payload[:10], self.now)
            if not resumes:
                return  # the end marker was dropped too
        else:
            for sequence, payload in wanted:
                self.gate.reply(sequence, payload, payload[:10], self.now)
        self.gate.replay_ended(self.now)

    def deliver(self, sequence: int, payload: bytes) -> None:
        """The consumer takes a message; what it then holds must have been true after it."""
        last = self.delivered
        assert last is None or sequence > last, "delivered out of order"
        self.delivered = sequence
        self.deliveries.append((self.gate.epoch, sequence))
        if self.shedding:
            return
        for record in self.decoder.decode(sequence, payload).records:
            self.inventory.apply(record)
        if payload in self.engine.published[sequence : sequence + 1]:  # this incarnation's
            self.check_nothing_invented(sequence)

    def check_nothing_invented(self, sequence: int) -> None:
        """No block may be called live, or live twice, that the engine did not then have."""
        truth = self.engine.truths[sequence]
        for tier, medium in MEDIUM_OF_TIER.items():
            for block_hash, count in self.inventory.blocks(tier).items():
                assert count <= truth[medium][block_hash]

    def finish(self) -> None:
        """A quiet time, then one more message that shows how far the stream reaches."""
        self.leaky = False
        self.wait(30)
        self.arrive(self.publish())
        self.wait(30)


FATES = st.lists(
    st.sampled_from(
        ["arrive"] * 8 + ["lose"] * 3 + ["twice", "late", "wait", "restart", "leaky", "shed"]
    ),
    min_size=5,
    max_size=60,
)


# A ring that has passed cannot show a swap; sockets tell it by the broken connection.
FATES_AND_SWAPS = st.one_of(
    FATES, st.lists(st.sampled_from(["arrive"] * 6 + ["lose", "wait", "swap"]), max_size=40)
)


def play(rehearsal: Rehearsal, fates: list[str]) -> None:
    late: tuple[int, bytes] | None = None
    for fate in fates:
        if fate == "restart":
            late = None
            rehearsal.restart()
            continue
        if fate == "wait":
            rehearsal.wait(2.5)
            continue
        if fate == "swap":
            late = None
            rehearsal.swap()
            continue
        if fate == "leaky":
            rehearsal.leaky = not rehearsal.leaky
            continue
        message = rehearsal.publish()
        if fate == "late":
            late = message
            continue
        if fate == "shed":
            rehearsal.shed(message)
        if fate in ("arrive", "twice"):
            rehearsal.arrive(message)
        if fate == "twice":
            rehearsal.arrive(message)
        if late is not None:
            rehearsal.arrive(late)
            late = None
    rehearsal.finish()


@given(fates=FATES_AND_SWAPS, seed=st.integers(0, 2**32 - 1))
def test_where_the_ring_holds_what_was_lost_every_tier_ends_equal_to_the_engine(
    fates: list[str], seed: int
) -> None:
    rehearsal = Rehearsal(seed)
    # Twelve rounds an hour is a bound of its own, tried elsewhere; here time goes by unhurried.
    rehearsal.gate.asked_seconds.clear()
    play(rehearsal, fates)
    if rehearsal.gate.partial:
        assert len(rehearsal.asked) >= MAX_ROUNDS_PER_HOUR
        return
    assert rehearsal.gate.state is TapState.LIVE
    assert rehearsal.inventory.state(TAP) is Knowledge.LIVE
    truth = rehearsal.engine.truths[-1]
    for tier, medium in MEDIUM_OF_TIER.items():
        assert rehearsal.inventory.blocks(tier) == truth[medium]
    assert rehearsal.inventory.counts["unknown_removes"] == 0


@given(
    fates=FATES,
    seed=st.integers(0, 2**32 - 1),
    ring=st.integers(0, 8),
    can_replay=st.booleans(),
)
def test_where_the_ring_has_passed_no_block_is_called_ready_that_the_engine_lacks(
    fates: list[str], seed: int, ring: int, can_replay: bool
) -> None:
    rehearsal = Rehearsal(seed, can_replay=can_replay, ring=ring)
    play(rehearsal, fates)  # checks the inventory against the engine after each delivery
    assert rehearsal.delivered == len(rehearsal.engine.published) - 1
    rehearsal.check_nothing_invented(rehearsal.delivered)
    lost = rehearsal.gate.given_up or rehearsal.gate.partial
    assert (rehearsal.inventory.state(TAP) is Knowledge.LIVE) or lost


def test_joining_late_asks_from_the_start_and_is_whole_when_the_ring_is() -> None:
    engine = SmallEngine(1)
    rehearsal = Rehearsal(1)
    rehearsal.engine = engine
    for _ in range(20):
        engine.step()
    rehearsal.arrive(rehearsal.publish())
    rehearsal.wait(5)
    assert rehearsal.gate.state is TapState.LIVE
    assert [sequence for _, sequence in rehearsal.deliveries] == list(range(21))
    gap = next(status for status in rehearsal.statuses if status.event is TapEvent.GAP)
    assert (gap.first_missing, gap.last_missing, gap.count) == (0, 19, 20)


def test_an_idle_engine_with_a_past_is_learnt_without_a_live_message() -> None:
    rehearsal = Rehearsal(2)
    rehearsal.gate = SequenceGate(TAP, can_replay=True)
    for _ in range(5):
        rehearsal.engine.step()
    rehearsal.gate.connected(rehearsal.now)
    rehearsal.settle()
    assert rehearsal.delivered == 4
    assert rehearsal.gate.state is TapState.LIVE


def test_while_something_is_missing_the_state_is_degraded_and_nothing_overtakes() -> None:
    rehearsal = Rehearsal(3, ring=0)
    rehearsal.arrive(rehearsal.publish())
    rehearsal.publish()
    rehearsal.arrive(rehearsal.publish())
    assert rehearsal.delivered == 0
    assert rehearsal.gate.state is TapState.DEGRADED
    assert rehearsal.inventory.state(TAP) is Knowledge.DEGRADED


def test_without_a_replay_endpoint_a_gap_drops_what_was_known_and_goes_on() -> None:
    rehearsal = Rehearsal(41, can_replay=False)
    for _ in range(5):
        rehearsal.arrive(rehearsal.publish())
    before = rehearsal.inventory.live_blocks(Tier.HBM)
    rehearsal.publish()
    rehearsal.arrive(rehearsal.publish())
    assert before
    assert rehearsal.inventory.counts["dropped_blocks"] >= before
    dropped = next(status for status in rehearsal.statuses if status.event is TapEvent.DROPPED)
    assert (dropped.first_missing, dropped.last_missing, dropped.count) == (5, 5, 1)
    assert rehearsal.delivered == 6
    assert rehearsal.gate.partial


def test_a_silent_replay_endpoint_is_asked_two_seconds_apart_and_at_most_twelve_times() -> None:
    rehearsal = Rehearsal(5)
    rehearsal.replay = lambda start: None  # type: ignore[method-assign]
    first_asks = len(rehearsal.asked)
    rehearsal.arrive(rehearsal.publish())
    rehearsal.publish()
    rehearsal.arrive(rehearsal.publish())
    rehearsal.wait(120)
    asked = rehearsal.asked
    assert len(asked) == MAX_ROUNDS_PER_HOUR
    assert all(b - a >= ROUND_APART_SECONDS for a, b in itertools.pairwise(asked))
    assert first_asks == 1
    assert rehearsal.gate.partial
    assert rehearsal.delivered == 2
    rehearsal.wait(3_600)
    assert len(rehearsal.asked) == MAX_ROUNDS_PER_HOUR, "nothing is open, so nothing is asked"


def test_rounds_asked_before_a_restart_of_the_sidecar_count() -> None:
    gate = SequenceGate(TAP, can_replay=True, asked_seconds=[50.0] * MAX_ROUNDS_PER_HOUR)
    gate.connected(100.0)
    assert not [action for action in gate.actions if isinstance(action, Ask)]
    assert gate.partial


def test_a_restart_under_a_higher_number_is_seen_by_its_last_known_message() -> None:
    rehearsal = Rehearsal(6)
    for _ in range(3):
        rehearsal.arrive(rehearsal.publish())
    rehearsal.engine = SmallEngine(60, rehearsal.engine.wall_seconds + 60)  # no one told us
    for _ in range(9):
        rehearsal.engine.step()
    rehearsal.arrive(rehearsal.publish())
    rehearsal.wait(6)
    assert rehearsal.gate.epoch == 1
    assert rehearsal.inventory.blocks(Tier.HBM) == rehearsal.engine.truths[-1]["GPU"]


def test_a_restart_unseen_by_numbers_is_seen_by_the_broken_connection() -> None:
    rehearsal = Rehearsal(7)
    for _ in range(3):
        rehearsal.arrive(rehearsal.publish())
    rehearsal.restart()
    assert rehearsal.inventory.state(TAP) is not Knowledge.LIVE or not rehearsal.inventory.blocks(
        Tier.HBM
    )
    for _ in range(3):
        rehearsal.engine.step()
    rehearsal.arrive(rehearsal.publish())  # number 3: just what would have come next
    rehearsal.wait(6)
    assert rehearsal.gate.epoch == 1
    assert rehearsal.inventory.blocks(Tier.HBM) == rehearsal.engine.truths[-1]["GPU"]


def test_a_broken_connection_to_the_same_engine_heals_without_forgetting() -> None:
    rehearsal = Rehearsal(8)
    for _ in range(5):
        rehearsal.arrive(rehearsal.publish())
    rehearsal.gate.disconnected(rehearsal.now)
    rehearsal.settle()
    assert rehearsal.inventory.state(TAP) is Knowledge.UNKNOWN
    rehearsal.engine.step()
    rehearsal.wait(3)
    rehearsal.gate.connected(rehearsal.now)
    rehearsal.settle()
    assert rehearsal.gate.epoch == 0
    assert rehearsal.gate.state is TapState.LIVE
    assert rehearsal.inventory.counts["dropped_blocks"] == 0
    assert rehearsal.inventory.blocks(Tier.HBM) == rehearsal.engine.truths[-1]["GPU"]


def test_a_clock_set_back_across_a_loss_heals_by_one_replay_and_is_no_restart() -> None:
    rehearsal = Rehearsal(10)
    for _ in range(5):
        rehearsal.arrive(rehearsal.publish())
    asked = len(rehearsal.asked)
    rehearsal.wait(3)
    rehearsal.publish()
    rehearsal.engine.set_clock(-5_000.0)
    rehearsal.publish()
    rehearsal.arrive(rehearsal.publish())
    rehearsal.wait(6)
    assert rehearsal.gate.epoch == 0
    assert len(rehearsal.asked) == asked + 1
    assert rehearsal.gate.state is TapState.LIVE
    assert rehearsal.inventory.blocks(Tier.HBM) == rehearsal.engine.truths[-1]["GPU"]


def test_a_clock_set_back_with_a_restart_is_still_found_out() -> None:
    rehearsal = Rehearsal(9, can_replay=False)
    for _ in range(30):
        rehearsal.arrive(rehearsal.publish())
    rehearsal.engine = SmallEngine(90, wall_seconds=1_000_000.0)
    for _ in range(12):
        rehearsal.arrive(rehearsal.publish())
    assert rehearsal.gate.epoch == 1
    assert rehearsal.delivered == 11


def test_more_held_back_than_fits_is_given_up_and_bounded() -> None:
    gate = SequenceGate(TAP, can_replay=True)
    gate.connected(0.0)
    gate.actions.clear()
    for sequence in range(1, MAX_HELD_MESSAGES + 10):
        mark = sequence.to_bytes(10)
        gate.live(sequence, b"", mark, 0.0)
    assert gate.partial
    delivered = [action for action in gate.actions if isinstance(action, Deliver)]
    assert [one.sequence for one in delivered] == sorted(one.sequence for one in delivered)
    assert delivered[0].sequence == 1
    assert KEPT_MARKS > MAX_HELD_MESSAGES


def test_many_holes_given_up_at_once_are_one_piece_of_news_and_quick_to_tell() -> None:
    gate = SequenceGate(TAP, can_replay=True)
    gate.connected(0.0)
    gate.actions.clear()
    for place in range(MAX_HELD_MESSAGES + 1):
        gate.live(2 * place + 1, b"", place.to_bytes(10), 1.0)
    gone = [one for one in gate.actions if getattr(one, "event", None) is TapEvent.DROPPED]
    [dropped] = gone
    assert isinstance(dropped, TapStatus)
    last = 2 * MAX_HELD_MESSAGES + 1
    assert (dropped.first_missing, dropped.last_missing) == (0, last - 1)
    assert dropped.count == gate.given_up == MAX_HELD_MESSAGES + 1
    assert [one.sequence for one in gate.actions if isinstance(one, Deliver)] == [last]
    assert gate.expected == last + 1


def test_what_was_lost_behind_the_tap_is_asked_for_again_and_known_again() -> None:
    rehearsal = Rehearsal(10)
    for _ in range(9):
        rehearsal.arrive(rehearsal.publish())
    rehearsal.now += ROUND_APART_SECONDS
    rehearsal.shed(rehearsal.publish())
    assert rehearsal.gate.state is TapState.LIVE
    assert rehearsal.inventory.state(TAP) is Knowledge.LIVE
    assert rehearsal.inventory.blocks(Tier.HBM) == rehearsal.engine.truths[-1]["GPU"]
    assert rehearsal.gate.gaps == 0, "nothing was missing from what the engine sent"


def test_what_was_lost_behind_the_tap_for_good_stays_in_doubt() -> None:
    rehearsal = Rehearsal(11, can_replay=False)
    rehearsal.arrive(rehearsal.publish())
    rehearsal.shed(rehearsal.publish())
    rehearsal.arrive(rehearsal.publish())
    assert rehearsal.gate.state is TapState.DEGRADED
    assert rehearsal.inventory.state(TAP) is Knowledge.DEGRADED
    assert rehearsal.gate.gaps == 0


@pytest.mark.parametrize("unordered", [True, False])
def test_going_back_is_a_restart_where_marks_do_not_tell_time(unordered: bool) -> None:
    gate = SequenceGate(TAP, can_replay=False, marks_in_time_order=not unordered)
    gate.connected(0.0)
    for sequence, mark in [(0, b"b"), (1, b"c"), (0, b"a")]:
        gate.live(sequence, b"", mark, 0.0)
    assert gate.epoch == int(unordered)
