"""Answers from a pipeline's state: where parts are, what is on its way, and that replays agree."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from story import BLOCK_TOKENS, ENGINE, Story, prefill

from kvready.advisor import engine_estimates, rollforward
from kvready.advisor.contract import Answer, Candidate, InTime, Question, Resource, ResourceKind
from kvready.advisor.decision import Decision, Reason, Tolerates
from kvready.advisor.engine_estimates import MAX_LEADERS, ROLLS_APART
from kvready.advisor.ledger import Target
from kvready.advisor.load_priors import GENERIC, READ, LoadPriors, Path, Prior, PriorKind
from kvready.advisor.lookahead import EXTRAPOLATED, Lookahead
from kvready.advisor.model_cards import model_cards
from kvready.advisor.pipeline import Pipeline
from kvready.advisor.ways import Stage, WayName
from kvready.collectors.asked import AskedCandidate
from kvready.collectors.errors import QuestionError, QuestionFault, ServiceError
from kvready.collectors.hashing import content_keys, extra_key_hash
from kvready.collectors.records import (
    BlocksStored,
    ReadinessAsked,
    TapEvent,
    TapState,
    TapStatus,
    Tier,
)
from kvready.collectors.salting import Salter

CHAIN = tuple(range(1_000, 1_006))  # on the host tier at the end of the told story


def ask(story: Story, *candidates: Candidate) -> list[Answer]:
    pipeline = story.pipeline
    return list(pipeline.readiness.ask(Question(candidates), pipeline.moment).answers)


def tokens_of(answer: Answer) -> dict[str, int]:
    assert answer.tokens is not None
    found = msgspec.structs.asdict(answer.tokens)
    return {tier: count for tier, count in found.items() if count}


@pytest.fixture
def learned(told_story: Story) -> Story:
    """An engine that has been watched for a while, told again so that each test may go on."""
    story = Story()
    for item in told_story.told[2:]:
        story.tell(item.received_seconds, item.record, item.tap)
    return story


def test_tokens_are_told_by_tier_and_sum_to_the_prompt(learned: Story) -> None:
    now = learned.pipeline.moment[1]
    learned.stored(now, CHAIN[:2])
    (answer,) = ask(learned, Candidate(block_hashes=CHAIN, prompt_tokens=6 * BLOCK_TOKENS + 8))
    assert tokens_of(answer) == {"hbm": 2 * BLOCK_TOKENS, "host": 4 * BLOCK_TOKENS, "missing": 8}


@given(
    places=st.lists(st.sampled_from([Tier.HBM, Tier.HOST, Tier.DISK, None]), max_size=40),
    tail=st.integers(0, 100),
)
def test_tokens_sum_to_the_prompt_whatever_is_where(places: list[Tier | None], tail: int) -> None:
    story = Story()
    hashes = tuple(range(1, len(places) + 1))
    for block_hash, tier in zip(hashes, places, strict=True):
        if tier is not None:
            story.stored(1.0, (block_hash,), tier=tier)
    prompt = len(hashes) * BLOCK_TOKENS + tail
    if not hashes:
        return
    (answer,) = ask(story, Candidate(block_hashes=hashes, prompt_tokens=prompt))
    if answer.reason is Reason.UNKNOWN_RESIDENCY and answer.tokens is None:
        return  # nothing was ever stored: not even the size of a block is known
    assert sum(tokens_of(answer).values()) == prompt


def test_what_another_request_computes_is_in_flight_until_it_is_here(learned: Story) -> None:
    now = learned.pipeline.moment[1]
    chain = tuple(range(9_000, 9_020))
    learned.arrives(now, "leader", chain)
    learned.scheduled(now + 0.001, "leader")
    (answer,) = ask(learned, Candidate(block_hashes=chain[:10]))
    assert tokens_of(answer) == {"in_flight": 10 * BLOCK_TOKENS}
    wait = next(way for way in answer.ways if way.way is WayName.WAIT)
    assert wait.compute_tokens == 0
    recompute = next(way for way in answer.ways if way.way is WayName.RECOMPUTE)
    assert 0.0 < wait.ready_seconds.p50 < recompute.ready_seconds.p50
    learned.stored(now + 0.1, chain)
    learned.first_token(now + 0.1, "leader")
    (answer,) = ask(learned, Candidate(block_hashes=chain[:10]))
    assert (answer.decision, answer.reason) == (Decision.USE, Reason.READY)
    assert answer.ready_seconds is not None
    assert answer.ready_seconds.high == 0.0


@pytest.mark.parametrize("prompt", [6 * BLOCK_TOKENS + 8, 6 * BLOCK_TOKENS + 300])
def test_a_request_is_answered_as_it_was_forecast_at_its_arrival(
    learned: Story, prompt: int
) -> None:
    now = learned.pipeline.moment[1] + 1.0
    learned.arrives(now, "subject", CHAIN, prompt=prompt)
    (answer,) = ask(learned, Candidate(request_id="subject"))
    learned.first_token(now + 1.0, "subject")
    forecast = next(learned.pipeline.ledger.recent(Target.TTFT, 1)).forecast
    assert forecast.subject == "subject"
    load = next(way for way in answer.ways if way.way is WayName.LOAD)
    assert load.ready_seconds.p50 == pytest.approx(forecast.p50_seconds, rel=0.15)
    assert load.ready_seconds.low <= forecast.p50_seconds <= load.ready_seconds.high
    assert tokens_of(answer)["host"] == 6 * BLOCK_TOKENS


def test_a_running_request_has_what_it_computed_and_a_served_one_is_ready(learned: Story) -> None:
    now = learned.pipeline.moment[1] + 1.0
    chain = tuple(range(9_000, 9_040))
    learned.arrives(now, "subject", chain)
    learned.scheduled(now, "subject")
    learned.batch(now, now + 0.06, prefill("subject", 512))
    (answer,) = ask(learned, Candidate(request_id="subject"))
    assert tokens_of(answer) == {"hbm": 512, "missing": 40 * BLOCK_TOKENS + 8 - 512}
    learned.first_token(now + 0.2, "subject")
    (answer,) = ask(learned, Candidate(request_id="subject"))
    assert answer.decision is Decision.USE
    learned.finished(now + 0.3, "subject")
    (answer,) = ask(learned, Candidate(request_id="subject"))
    assert (answer.decision, answer.reason) == (Decision.NONE, Reason.UNKNOWN_REQUEST)


def test_many_requests_are_answered_as_each_alone_for_a_bounded_number_of_rolls(
    learned: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = learned.pipeline.moment[1] + 1.0
    names = [f"subject{number}" for number in range(30)]
    for number, name in enumerate(names):
        learned.arrives(now, name, range(20_000 + 50 * number, 20_020 + 50 * number))
    moment = learned.pipeline.moment
    rolls: list[str] = []
    roll, at_once = Lookahead.roll, Lookahead.first_tokens
    monkeypatch.setattr(Lookahead, "roll", lambda *a, **k: rolls.append("one") or roll(*a, **k))
    monkeypatch.setattr(Lookahead, "first_tokens", lambda *a: rolls.append("all") or at_once(*a))
    together = ask(learned, *[Candidate(request_id=name) for name in names])
    assert rolls == ["one"] * ROLLS_APART + ["all"]
    for name, answer in zip(names, together, strict=True):
        learned.pipeline.readiness._desks_aside.clear()
        question = Question((Candidate(request_id=name),))
        assert learned.pipeline.readiness.ask(question, moment).answers == (answer,)


def test_prefixes_of_many_leaders_are_foreseen_with_one_roll(
    learned: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = learned.pipeline.moment[1] + 1.0
    chains = [tuple(range(20_000 + 50 * n, 20_020 + 50 * n)) for n in range(MAX_LEADERS)]
    for number, chain in enumerate(chains):
        learned.arrives(now, f"leader{number}", chain)
    rolls: list[str] = []
    roll, at_once = Lookahead.roll, Lookahead.first_tokens
    monkeypatch.setattr(Lookahead, "roll", lambda *a, **k: rolls.append("one") or roll(*a, **k))
    monkeypatch.setattr(Lookahead, "first_tokens", lambda *a: rolls.append("all") or at_once(*a))
    candidates = [Candidate(block_hashes=chain[: 3 + n % 7]) for n, chain in enumerate(chains)]
    answers = ask(learned, *candidates)
    assert sorted(rolls) == ["all", "one"], "the other is the newcomer's own"
    for number, (candidate, answer) in enumerate(zip(candidates, answers, strict=True)):
        assert WayName.WAIT in {way.way for way in answer.ways}, number
        learned.pipeline.readiness._desks_aside.clear()
        assert ask(learned, candidate) == [answer]


def test_an_answer_rests_on_the_weakest_of_its_copies(told_story: Story) -> None:
    curve = GENERIC.quiet
    paths = {Path("disk", "host", READ): Prior(PriorKind.PUBLISHED, curve, curve)}
    story = Story()
    story.pipeline = Pipeline(
        priors=LoadPriors(PriorKind.PUBLISHED, "another machine", "0123", paths)
    )
    for item in told_story.told:
        story.pipeline.ingest(item)
    on_disk, on_host = (70_001, 70_002), CHAIN
    story.told = list(told_story.told)
    story._sequence = told_story._sequence
    story.stored(story.pipeline.moment[1], on_disk, tier=Tier.DISK)
    host, disk = ask(story, Candidate(block_hashes=on_host), Candidate(block_hashes=on_disk))
    assert (tokens_of(host), tokens_of(disk)) == (
        {"host": 6 * BLOCK_TOKENS},
        {"disk": 2 * BLOCK_TOKENS},
    )
    assert WayName.LOAD in {way.way for way in disk.ways}
    assert (host.evidence, disk.evidence) == ("measured", "published")


def test_a_request_is_no_other_work_that_could_run_under_its_own_load(learned: Story) -> None:
    now = learned.pipeline.moment[1] + 1.0
    learned.arrives(now, "subject", CHAIN)
    (alone,) = ask(learned, Candidate(request_id="subject"))
    (newcomer,) = ask(learned, Candidate(block_hashes=CHAIN))
    learned.arrives(now, "other", range(9_000, 9_004))
    (beside,) = ask(learned, Candidate(request_id="subject"))
    ways = [{way.way for way in answer.ways} for answer in (alone, newcomer, beside)]
    assert WayName.LOAD in ways[0]
    assert [WayName.RUN_OTHER in offered for offered in ways] == [False, True, True]


def test_a_copy_that_was_ordered_for_a_request_is_on_its_way(learned: Story) -> None:
    now = learned.pipeline.moment[1] + 1.0
    learned.arrives(now, "subject", CHAIN)
    learned.loads(900, "subject", decided=now, blocks=6)
    (answer,) = ask(learned, Candidate(request_id="subject"))
    assert tokens_of(answer) == {"in_flight": 6 * BLOCK_TOKENS, "missing": 8}
    assert WayName.LOAD not in {way.way for way in answer.ways}, "it is being loaded already"
    assert WayName.WAIT in {way.way for way in answer.ways}


def test_without_a_live_tap_of_blocks_nothing_is_called_missing() -> None:
    story = Story(kv_tap=False)
    (answer,) = ask(story, Candidate(block_hashes=CHAIN))
    assert tokens_of(answer) == {"unknown": 6 * BLOCK_TOKENS}
    assert (answer.decision, answer.reason) == (Decision.ENGINES_WAY, Reason.UNKNOWN_RESIDENCY)
    assert answer.ready_seconds is not None
    assert answer.ready_seconds.low < answer.ready_seconds.p50 / 2, "it may well be there"


def test_a_tap_that_lost_something_lowers_the_claim(learned: Story) -> None:
    candidate = Candidate(block_hashes=CHAIN, prompt_tokens=6 * BLOCK_TOKENS + 64)
    (before,) = ask(learned, candidate)
    now = learned.pipeline.moment[1]
    learned.tell(now, TapStatus("e", 0, TapEvent.GAP, TapState.DEGRADED), tap="e")
    (after,) = ask(learned, candidate)
    assert not before.degraded
    assert after.degraded
    assert tokens_of(after) == {"host": 6 * BLOCK_TOKENS, "unknown": 64}
    for sure, unsure in zip(before.ways, after.ways, strict=True):
        assert unsure.ready_seconds.high >= sure.ready_seconds.high


def test_an_engine_of_which_nothing_is_known_gets_no_seconds() -> None:
    pipeline = Pipeline()
    pipeline.inventory.apply(TapStatus("e", 0, TapEvent.CONNECTED, TapState.LIVE))
    pipeline.inventory.apply(BlocksStored("e", 0, 0, 0.0, Tier.HOST, (7,), None, 32))
    question = Question((Candidate(block_hashes=(7,)), Candidate(request_id="r")))
    prefix, request = pipeline.readiness.ask(question, pipeline.moment).answers
    assert (prefix.decision, prefix.reason) == (Decision.NONE, Reason.UNKNOWN_ENGINE)
    assert prefix.ready_seconds is None
    assert request.reason is Reason.UNKNOWN_REQUEST


def test_kv_state_of_another_kind_is_unsupported_and_never_a_number() -> None:
    story = Story()
    story.stored(1.0, CHAIN, tier=Tier.HOST)
    story.tell(1.0, msgspec.structs.replace(ENGINE, supported_kv_state=False))
    (answer,) = ask(story, Candidate(block_hashes=CHAIN))
    assert (answer.decision, answer.reason) == (Decision.NONE, Reason.UNSUPPORTED)
    assert answer.ready_seconds is answer.tokens is answer.break_even is None
    assert answer.ways == ()


def test_a_tier_from_which_nothing_was_ever_brought_gets_no_load(learned: Story) -> None:
    now = learned.pipeline.moment[1]
    learned.stored(now, (77,), tier=Tier.REMOTE)
    (answer,) = ask(learned, Candidate(block_hashes=(77,)))
    assert (answer.decision, answer.reason) == (Decision.ENGINES_WAY, Reason.UNKNOWN_LINK)
    assert tokens_of(answer) == {"remote": BLOCK_TOKENS}


def test_a_rank_that_was_never_heard_of_is_unknown(learned: Story) -> None:
    (answer,) = ask(learned, Candidate(block_hashes=CHAIN, rank=3))
    assert (answer.decision, answer.reason) == (Decision.NONE, Reason.UNKNOWN_RESIDENCY)


def test_a_deadline_is_answered_by_the_whole_interval(learned: Story) -> None:
    (plain,) = ask(learned, Candidate(block_hashes=CHAIN))
    assert plain.in_time is None
    assert plain.ready_seconds is not None
    low, middle, high = (
        plain.ready_seconds.low, plain.ready_seconds.p50, plain.ready_seconds.high
    )  # fmt: skip
    expected = [(low / 2, InTime.NO), (middle, InTime.UNSURE), (high, InTime.YES)]
    answers = ask(
        learned, *(Candidate(block_hashes=CHAIN, deadline_seconds=late) for late, _ in expected)
    )
    assert [answer.in_time for answer in answers] == [in_time for _, in_time in expected]


def test_what_the_caller_tolerates_comes_with_the_candidate(learned: Story) -> None:
    strict = Candidate(block_hashes=CHAIN, tolerates=Tolerates(decode_slowdown=1.1))  # type: ignore[arg-type]
    (answer,) = ask(learned, strict)
    assert answer.tolerated is None, "not measured is not within the bound"


# Tokens


def stored_with_keys(
    story: Story, tokens: Sequence[int], hashes: Sequence[int], extra: Sequence[int] = ()
) -> None:
    keys = content_keys(tokens, BLOCK_TOKENS, extra)
    record = BlocksStored(
        "e", 0, 0, 0.0, Tier.HOST, tuple(hashes), None, BLOCK_TOKENS, content_keys=keys
    )
    story.tell(story.pipeline.moment[1], record, tap="e")


def test_a_prompt_is_found_by_its_tokens(learned: Story) -> None:
    tokens = tuple(range(3 * BLOCK_TOKENS + 5))
    stored_with_keys(learned, tokens, (501, 502, 503))
    adapted = [extra_key_hash(["sql"])] * 3
    stored_with_keys(learned, tokens, (601, 602, 603), adapted)
    salted = [extra_key_hash(["sql", "s"]), *adapted[1:]]
    stored_with_keys(learned, tokens, (701,), salted)
    plain, other, lora, both = ask(
        learned,
        Candidate(token_ids=tokens),
        Candidate(token_ids=(9, *tokens[1:])),
        Candidate(token_ids=tokens, adapter="sql"),
        Candidate(token_ids=tokens, adapter="sql", cache_salt="s"),
    )
    assert tokens_of(plain) == {"host": 3 * BLOCK_TOKENS, "missing": 5}
    assert tokens_of(other) == {"missing": len(tokens)}
    assert tokens_of(lora) == tokens_of(plain)
    assert tokens_of(both) == {"host": BLOCK_TOKENS, "missing": len(tokens) - BLOCK_TOKENS}
    learned.removed(learned.pipeline.moment[1], (501, 502, 503), tier=Tier.HOST)
    (gone,) = ask(learned, Candidate(token_ids=tokens))
    assert tokens_of(gone) == {"missing": len(tokens)}


def test_keys_of_blocks_long_gone_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvready.advisor.content_index.SLACK_KEYS", 100)
    story = Story()
    content = story.pipeline.readiness.content
    for turn in range(40):
        hashes = tuple(range(turn * 50 + 1, turn * 50 + 51))
        record = BlocksStored(
            "e", 0, 0, 0.0, Tier.HBM, hashes, None, BLOCK_TOKENS, content_keys=hashes
        )
        story.tell(1.0 + turn, record, tap="e")
        assert content.block_hashes(hashes, 0) == hashes
        story.removed(1.0 + turn, hashes)
    assert content.block_hashes((1,), 0) == (), "the oldest was forgotten"


@pytest.mark.parametrize(
    ("candidate", "fault", "fix"),
    [
        (Candidate(), QuestionFault.MALFORMED, "exactly one of"),
        (Candidate(request_id="r", block_hashes=(1,)), QuestionFault.MALFORMED, "exactly one"),
        (Candidate(request_id=""), QuestionFault.MALFORMED, "name a request"),
        (Candidate(block_hashes=()), QuestionFault.MALFORMED, "in order"),
        (Candidate(block_hashes=(-1,)), QuestionFault.MALFORMED, "unsigned 64-bit"),
        (Candidate(block_hashes=(1 << 64,)), QuestionFault.MALFORMED, "unsigned 64-bit"),
        (Candidate(token_ids=()), QuestionFault.MALFORMED, "token ids"),
        (Candidate(token_ids=(1,)), QuestionFault.CONTENT_KEYS_OFF, "taps.content_keys"),
        (
            Candidate(resource=Resource(ResourceKind.WEIGHTS, {})),
            QuestionFault.MALFORMED,
            "payload_bytes",
        ),
    ],
)
def test_a_question_that_cannot_be_answered_names_the_fix(
    learned: Story, candidate: Candidate, fault: QuestionFault, fix: str
) -> None:
    with pytest.raises(QuestionError, match=fix) as raised:
        ask(learned, candidate)
    assert raised.value.fault is fault


def test_too_much_at_once_is_refused(learned: Story) -> None:
    many = [Candidate(block_hashes=tuple(range(40_000)))] * 4
    for candidates in (many, [Candidate(request_id="r")] * 1_001, []):
        with pytest.raises(QuestionError) as raised:
            ask(learned, *candidates)
        assert raised.value.fault is QuestionFault.TOO_LARGE


# Other resources


def test_an_adapter_takes_the_path_that_kv_takes_with_the_interval_of_ignorance(
    learned: Story,
) -> None:
    sizes = {Tier.HOST: 50 << 20}
    lora = Candidate(resource=Resource(ResourceKind.LORA_ADAPTER, sizes, fragments=448))
    larger = Candidate(
        resource=Resource(ResourceKind.LORA_ADAPTER, {Tier.HOST: 100 << 20}, fragments=448)
    )
    small, large = ask(learned, lora, larger)
    assert (small.decision, small.reason) == (Decision.LOAD, Reason.ONLY_LOADING)
    assert small.evidence == "assumed"
    assert small.ready_seconds is not None
    assert large.ready_seconds is not None
    assert small.ready_seconds.high >= 4 * small.ready_seconds.p50
    assert small.ready_seconds.p50 < large.ready_seconds.p50
    assert small.ways[0].stages_seconds[Stage.COMPUTE] == 0.0


def test_a_resource_in_hbm_is_ready_and_one_that_lacks_bytes_is_not_resident(
    learned: Story,
) -> None:
    ready, lacking = ask(
        learned,
        Candidate(resource=Resource(ResourceKind.WEIGHTS, {Tier.HBM: 5})),
        Candidate(resource=Resource(ResourceKind.WEIGHTS, {Tier.HOST: 5}, total_bytes=9)),
    )
    assert ready.decision is Decision.USE
    assert (lacking.decision, lacking.reason) == (Decision.NONE, Reason.NOT_RESIDENT)
    assert lacking.ready_seconds is None


# Sameness


def test_asking_changes_nothing_and_a_question_asked_again_has_the_same_answer(
    learned: Story,
) -> None:
    question = Question((Candidate(block_hashes=CHAIN), Candidate(block_hashes=CHAIN[:3])))
    pipeline = learned.pipeline
    first = pipeline.readiness.ask(question, pipeline.moment)
    pairs = len(learned.pairs)
    assert pipeline.readiness.ask(question, pipeline.moment) == first
    assert len(learned.pairs) == pairs


def test_a_memory_of_prefixes_never_outlives_what_it_saw(learned: Story) -> None:
    candidate = Candidate(block_hashes=CHAIN)
    now = learned.pipeline.moment[1]
    assert tokens_of(ask(learned, candidate)[0]) == {"host": 6 * BLOCK_TOKENS}
    learned.removed(now, CHAIN[3:], tier=Tier.HOST)
    assert tokens_of(ask(learned, candidate)[0])["host"] == 3 * BLOCK_TOKENS
    forged = Candidate(block_hashes=(1, 2, 3, 4, 5, CHAIN[5]))
    ask(learned, forged)
    assert tokens_of(ask(learned, candidate)[0])["host"] == 3 * BLOCK_TOKENS


def test_a_replay_gives_the_same_answers_byte_by_byte(learned: Story) -> None:
    asked = ReadinessAsked(
        (
            AskedCandidate(block_hashes=CHAIN, prompt_tokens=300, deadline_seconds=0.1),
            AskedCandidate(request_id="r3"),
        )
    )
    now = learned.pipeline.moment[1]
    learned.arrives(now, "waiting", CHAIN)
    given = []
    for later in (0.0, 0.01, 0.5):
        learned.tell(now + later, asked, tap="api")
        given.append(msgspec.json.encode(learned.pipeline.readiness.latest))
    again = Pipeline()
    repeated = []
    decode = msgspec.json.Decoder(type(learned.told[0])).decode
    for item in learned.told:
        again.ingest(decode(msgspec.json.encode(item)))
        if isinstance(item.record, ReadinessAsked):
            repeated.append(msgspec.json.encode(again.readiness.latest))
    assert repeated == given
    assert len(set(given)) > 1, "time has passed between them"


def replayed(story: Story) -> list[bytes]:
    """What a replay answers to the questions of a story."""
    again = Pipeline()
    answers = []
    for item in story.told:
        again.ingest(item)
        if isinstance(item.record, ReadinessAsked):
            answers.append(msgspec.json.encode(again.readiness.latest))
    return answers


def test_a_question_that_no_recording_holds_changes_no_answer_that_one_holds(
    learned: Story,
) -> None:
    asked = ReadinessAsked((AskedCandidate(block_hashes=CHAIN, prompt_tokens=300),))
    pipeline = learned.pipeline
    now = pipeline.moment[1]
    learned.arrives(now, "waiting", CHAIN)
    given = []
    for later in (0.001, 0.015, 0.03, 0.041, 0.06):
        # Aside, a moment before: close enough that the recorded one could lean on it.
        pipeline.readiness.ask(
            Question((Candidate(block_hashes=CHAIN, prompt_tokens=300),)),
            (pipeline.moment[0], now + later - 0.005),
        )
        learned.tell(now + later, asked, tap="api")
        given.append(msgspec.json.encode(pipeline.readiness.latest))
    assert replayed(learned) == given


def test_asking_makes_no_model_of_what_was_never_seen(learned: Story) -> None:
    rank = learned.pipeline.ranks[0]
    cards = model_cards([rank], learned.pipeline.ledger)
    now = learned.pipeline.moment[1]
    learned.stored(now, (1, 2, 3), tier=Tier.DISK)
    ask(learned, Candidate(block_hashes=(1, 2, 3), prompt_tokens=128))
    assert model_cards([rank], learned.pipeline.ledger) == cards


def test_in_process_a_recorded_question_is_answered_in_its_place(learned: Story) -> None:
    pipeline = learned.pipeline
    now = pipeline.moment[1]
    learned.arrives(now, "waiting", CHAIN)
    question = Question((Candidate(block_hashes=CHAIN, prompt_tokens=300, id="mine"),))
    answers = pipeline.readiness.ask(
        question, pipeline.moment, lambda asked: learned.tell(now + 0.1, asked, tap="api")
    )
    assert answers.ingest == pipeline.last_ingest
    assert [one.id for one in answers.answers] == ["mine"]
    assert replayed(learned) == [msgspec.json.encode(pipeline.readiness.latest)]
    with pytest.raises(ServiceError, match="was not ingested"):
        pipeline.readiness.ask(question, pipeline.moment, lambda asked: None)


def test_an_answer_that_leans_on_a_queue_beyond_what_is_rolled_says_so(
    learned: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    candidate = Candidate(block_hashes=CHAIN, prompt_tokens=300)
    assert not ask(learned, candidate)[0].model_version.endswith(EXTRAPOLATED)
    now = learned.pipeline.moment[1]
    for number in range(30):
        learned.arrives(now, f"queued-{number}", range(100 * number, 100 * number + 9))
    assert not ask(learned, candidate)[0].model_version.endswith(EXTRAPOLATED)
    monkeypatch.setattr(rollforward, "MAX_WORK", 30)
    learned.arrives(now, "one-more", range(9_000, 9_009))
    (answer,) = ask(learned, candidate)
    assert answer.model_version.endswith(EXTRAPOLATED)
    assert "queue" not in answer.not_included


def test_a_part_in_flight_of_which_nothing_can_be_told_is_said_to_be_left_out(
    learned: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = learned.pipeline.moment[1]
    prompts = [tuple(range(5_000 + 100 * n, 5_008 + 100 * n)) for n in range(3)]
    for number, prompt in enumerate(prompts):
        learned.arrives(now, f"leader-{number}", prompt)
    monkeypatch.setattr(engine_estimates, "MAX_LEADERS", 2)
    candidates = [
        Candidate(block_hashes=prompt, prompt_tokens=8 * BLOCK_TOKENS) for prompt in prompts
    ]
    answers = ask(learned, *candidates)
    assert [WayName.WAIT in {way.way for way in one.ways} for one in answers] == [True, True, False]
    assert [one.not_included for one in answers] == [(), (), ("in_flight",)]


def test_a_salted_recording_still_answers_alike(learned: Story) -> None:
    asked = ReadinessAsked((AskedCandidate(block_hashes=CHAIN, prompt_tokens=300),))
    learned.tell(learned.pipeline.moment[1], asked, tap="api")
    salt = Salter()
    salted = Pipeline()
    for item in learned.told:
        salted.ingest(msgspec.structs.replace(item, record=salt(item.record)))
    assert salted.readiness.latest == learned.pipeline.readiness.latest
