"""The engine's own policy, rolled through the machinery that judges policies, saves nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec
import pytest
from test_shadow import job

from kvready.advisor import shadow as shadow_module
from kvready.advisor.block_account import BlockAccount
from kvready.advisor.draws import BatchDraws, Ran
from kvready.advisor.episode_roll import Arrival, EpisodeRoll, Start, as_it_was, as_policy
from kvready.advisor.jobs import Limits, Link
from kvready.advisor.pipeline import Pipeline
from kvready.advisor.playback import play
from kvready.advisor.requests import RequestState
from kvready.advisor.rollforward import UnderWay
from kvready.advisor.savings import MIN_EPISODES, Candidate, Difference, Savings, Verdict
from kvready.advisor.scheduler_state import SchedulerState
from kvready.advisor.shadow import Compared
from kvready.advisor.tape import Tape
from kvready.advisor.whatif.sim_engine.clock import Clock
from kvready.advisor.whatif.sim_engine.engine import SimEngine
from kvready.advisor.whatif.sim_engine.faults import Faults, parse_fault
from kvready.advisor.whatif.sim_engine.flags import Flags
from kvready.advisor.whatif.sim_engine.machine import vllm_like
from kvready.advisor.whatif.sim_engine.mix import mix
from kvready.advisor.whatif.sim_engine.recorded import RecordedSink
from kvready.collectors.recorder import Recorder
from kvready.collectors.records import BatchMember, BatchPlanned

RECORDINGS = Path(__file__).parents[1] / "examples" / "recordings"
MACHINE = vllm_like("llama-3.1-8b", "h200", hbm_gib=4, host_gib=16, page_tokens=32)
UNLIMITED = Limits(batch_tokens=512, batch_requests=16, free_blocks=None)


class Anywhere(Tape):
    """An episode begins at every pass with a choice, whether or not anybody decided otherwise."""

    def __init__(
        self,
        start: Start,
        batch: BatchPlanned,
        states: Mapping[str, RequestState],
        before_seconds: float | None,
    ) -> None:
        super().__init__(start, batch, states, before_seconds)
        self.differing.add(Candidate.PLACEBO)


@pytest.fixture
def placebos(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Difference]]:
    """What the placebo saved, episode by episode, wherever one can begin."""
    found: list[Difference] = []
    add = Savings.add

    def noted(self: Savings, candidate: Candidate, difference: Difference) -> None:
        if candidate is Candidate.PLACEBO:
            found.append(difference)
        add(self, candidate, difference)

    monkeypatch.setattr(Savings, "add", noted)
    monkeypatch.setattr(shadow_module, "Tape", Anywhere)
    yield found


def served(
    seed: int, rate: float, faults: tuple[str, ...] = (), seats_told: int | None = None
) -> Pipeline:
    """A simulated engine watched to its end; it may say that it has other seats than it has."""
    pipeline = Pipeline()
    broken = Faults(map(parse_fault, faults))
    engine = SimEngine(MACHINE, mix(rate, 300, seed), broken, Flags(), seed)
    if seats_told is not None:
        engine.described = msgspec.structs.replace(engine.described, batch_request_limit=seats_told)
    clock = Clock(1_000.0, 1.7e9, speed=1.0)
    recorder = Recorder(pipeline.ingest, started_seconds=1_000.0)
    assert engine.run(clock, RecordedSink(recorder, clock, engine.described.block_tokens))
    return pipeline


@pytest.mark.parametrize(
    ("seed", "rate", "faults"),
    [
        (1, 8.0, ()),
        (2, 12.0, ()),
        (3, 20.0, ()),
        (1, 8.0, ("slow_link@10:20",)),
        (2, 8.0, ("slow_compute@10:20", "stall@20:5")),
    ],
)
def test_a_simulated_engine_reads_zero_wherever_an_episode_begins(
    seed: int, rate: float, faults: tuple[str, ...], placebos: list[Difference]
) -> None:
    served(seed, rate, faults)
    assert len(placebos) > 20
    assert {(one.ttft_seconds, one.busy_seconds) for one in placebos} == {(0.0, 0.0)}


def test_an_engine_that_does_otherwise_than_we_think_does_not_read_zero() -> None:
    known = served(3, 12.0).shadow.savings.savings(0.1, 0, 1.0)[0]
    mistaken = served(3, 12.0, seats_told=4).shadow.savings.savings(0.1, 0, 1.0)[0]
    assert known.verdict is Verdict.SHOWN
    assert known.ttft.seconds == 0.0
    assert mistaken.verdict is Verdict.UNPROVEN
    assert mistaken.ttft.seconds < -mistaken.requests  # seconds that nobody waited


@pytest.mark.parametrize("name", ["vllm-0.32-cpu-kv-heavy", "vllm-0.32-cpu-kv-heavy-movers"])
def test_a_recorded_engine_reads_zero_wherever_an_episode_begins(
    name: str, placebos: list[Difference]
) -> None:
    play(RECORDINGS / f"{name}.kvr")
    assert len(placebos) > 50
    assert all(abs(one.ttft_seconds) < 1e-3 for one in placebos)
    assert all(abs(one.busy_seconds) < 1e-3 for one in placebos)


@pytest.mark.parametrize(("name", "alike"), [("", 0.95), ("-movers", 0.95), ("-disk", 0.8)])
def test_savings_of_a_recorded_engine_can_be_believed(name: str, alike: float) -> None:
    shadow = play(RECORDINGS / f"vllm-0.32-cpu-kv-heavy{name}.kvr").pipeline.shadow
    judged = shadow.compared[Compared.SAME] + shadow.compared[Compared.DIFFERENT]
    assert shadow.compared[Compared.SAME] / judged > alike
    placebo = shadow.savings.savings(0.1, 0, 1.0)[0]
    assert placebo.verdict is Verdict.SHOWN
    assert placebo.episodes >= MIN_EPISODES
    assert placebo.ttft.covers_zero
    assert placebo.busy.covers_zero
    # 30 ms of a request's waiting, where a step takes that long: next to nothing
    assert abs(placebo.ttft.seconds) < 0.03 * placebo.requests


# Parts -----------------------------------------------------------------------------------------


def a_second_a_token(members: object) -> float:
    assert isinstance(members, list | tuple)
    return float(sum(member.new_tokens for member in members))


def test_whose_load_is_done_is_asked_before_those_that_hold_nothing() -> None:
    limits = Limits(batch_tokens=10, batch_requests=8, free_blocks=5)
    loaded = job("loaded", 10, found=9, blocks=0)
    loaded.blocks_held = 1
    state = SchedulerState([job("large", 10, blocks=99), loaded], None, limits, Link(), None)
    # nobody overtakes the head of the queue but who is in already
    assert [member.request_id for member in state.plan(0.0)] == ["loaded"]


def test_a_fetch_is_ordered_by_the_pass_that_comes_to_it_and_its_load_by_a_later_one() -> None:
    start = Start([job("run", 5)], UNLIMITED, UnderWay(), Link())
    late = Arrival(2.0, job("cold", 10, found=9, load=3.0, fetch=4.0))
    side = as_policy(start, [late], a_second_a_token, 1e6, None)
    assert side is not None
    # came during the first step (0 to 5); fetched from the next pass on, a step of decoding each
    assert side.first_token_seconds["run"] == 5.0
    # ordered at 5, there at 9; loaded from 9 to 12; computed in a step of its own token
    assert side.first_token_seconds["cold"] == pytest.approx(13.0)


def test_batches_take_what_they_really_took_whoever_forms_them() -> None:
    both = [BatchMember("a", 4, 0, True), BatchMember("b", 6, 0, True)]
    decode = [BatchMember("a", 1, 4, False)]
    draws = BatchDraws([Ran(both, 0.0, 20.0), Ran(decode, 20.0, 3.0)], a_second_a_token)
    assert draws.factor(both, 0.0) == 2.0
    assert draws.factor(both[:1], 7.0) == 2.0  # its tokens, by the batch that computed them
    assert draws.factor(decode, 19.0) == 3.0
    assert draws.factor([BatchMember("c", 5, 0, True)], 30.0) == 2.0  # nobody did: of that kind


def test_the_same_decisions_take_the_same_time_with_drawn_costs() -> None:
    start = Start([job("a", 4), job("b", 6)], UNLIMITED, UnderWay(), Link())
    roll = EpisodeRoll(start, [], a_second_a_token)
    members = roll.plan()
    draws = BatchDraws([Ran(members, 1.0, 25.0)], a_second_a_token)
    side = as_policy(start, [], a_second_a_token, 1e6, None, draws)
    assert side is not None
    assert side.first_token_seconds == {"a": 26.0, "b": 26.0}  # it began at 1
    actual, _ = as_it_was(start, [], a_second_a_token, 1e6, [], draws)
    assert not actual.whole


def test_an_engine_that_takes_blocks_late_asks_whether_a_prompt_fits_and_spares_what_is_begun() -> (
    None
):
    limits = Limits(
        batch_tokens=64, batch_requests=8, free_blocks=10, block_tokens=4, reserves_output=False
    )
    account = BlockAccount(limits, [])
    loading = job("loading", 32, found=24, load=1.0, blocks=8)  # 6 blocks loaded, 2 computed
    assert account.fits(loading, 8, promised=0)
    account.take(loading, 8)
    promised = account.promised([], [loading], {})
    assert (account.free, promised) == (2, 2)
    # a prompt of 4 blocks fits in what the engine has not taken yet; a load of 4 does not
    assert account.fits(job("plain", 16, blocks=4), 4, promised)
    assert not account.fits(job("other", 20, found=16, load=1.0, blocks=5), 5, promised)
    loading.running, loading.context_tokens = True, 33
    account.grow(loading, 1)  # the first token of the answer begins a block
    assert account.free == 1
    account.give_back(loading)
    assert account.free == 10


def test_until_enough_placebos_are_known_every_pass_with_a_choice_begins_an_episode() -> None:
    savings = Savings()
    for _ in range(MIN_EPISODES):
        assert savings.needs_placebos
        savings.add(Candidate.PLACEBO, Difference(0.0, 0.0, 0.0, 0.0, 1))
    assert not savings.needs_placebos
    assert savings.savings(0.1, 0, 1.0)[0].verdict is Verdict.SHOWN
