"""What the gateway reads of a message: prompts as chains, heads, first tokens, costs, answers."""

from __future__ import annotations

import json
import random
from pathlib import Path

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import example, given
from prometheus_client.parser import text_string_to_metric_families

from kvready.advisor.contract import Question
from kvready.advisor.gateway import prompts
from kvready.advisor.gateway.costs import TOLD_SECONDS, Costs
from kvready.advisor.gateway.counts import CATALOGUE, Counts, Passed
from kvready.advisor.gateway.first_data import FirstData
from kvready.advisor.gateway.headers import end_to_end, passed_on, request_id, went_through
from kvready.advisor.gateway.holds import Release
from kvready.advisor.gateway.prompts import (
    MAX_PIECES,
    PIECE_BYTES,
    PIECE_TOKENS,
    Prompt,
    Unheld,
    chat_prompt,
    completion_prompt,
)
from kvready.advisor.gateway.questions import (
    common_tokens,
    cost_question,
    costs_in,
    resident_tokens_in,
    tokenize_question,
    tokens_in,
)
from kvready.advisor.pipeline import Pipeline
from kvready.advisor.service.metrics_page import MetricsPage

DOCUMENT = "".join(chr(97 + n % 26) for n in range(10 * PIECE_BYTES))


def completion(prompt: object, **more: object) -> bytes:
    return json.dumps({"model": "m", "prompt": prompt, **more}).encode()


def chat(*texts: str, **more: object) -> bytes:
    messages = [{"role": "user", "content": text} for text in texts]
    return json.dumps({"model": "m", "messages": messages, **more}).encode()


def pieces(found: Prompt | Unheld) -> tuple[int, ...]:
    assert isinstance(found, Prompt), found
    return found.pieces


@given(shared=st.integers(0, 10 * PIECE_BYTES), tails=st.tuples(st.text(), st.text()))
def test_prompts_have_equal_keys_as_far_as_they_begin_alike(shared: int, tails) -> None:
    one, other = (DOCUMENT[:shared] + tail + "\n" + DOCUMENT for tail in tails)
    as_bytes = [text.encode(errors="surrogatepass") for text in (one, other)]
    alike = next(
        (n for n, (a, b) in enumerate(zip(*as_bytes, strict=False)) if a != b),
        min(map(len, as_bytes)),
    )
    keys = [pieces(completion_prompt(completion(text))) for text in (one, other)]
    equal = sum(a == b for a, b in zip(*keys, strict=False))
    assert equal == alike // PIECE_BYTES
    assert keys[0][:equal] == keys[1][:equal]


@given(shared=st.integers(0, 200), lengths=st.tuples(st.integers(1, 90), st.integers(1, 90)))
def test_token_ids_likewise(shared: int, lengths) -> None:
    head = list(range(shared))
    one, other = (head + [1000 + n] * size for n, size in enumerate(lengths))
    found = [completion_prompt(completion(tokens)) for tokens in (one, [other])]
    keys = [one.pieces if isinstance(one, Prompt) else () for one in found]
    equal = sum(a == b for a, b in zip(*keys, strict=False))
    assert [len(k) for k in keys] == [len(one) // PIECE_TOKENS, len(other) // PIECE_TOKENS]
    assert equal == shared // PIECE_TOKENS


@pytest.mark.parametrize(
    "more",
    [{"model": "other"}, {"cache_salt": "s"}, {"tools": [{"type": "function"}]},
     {"chat_template": "x"}, {"reasoning_effort": "high"}],
    ids=str,
)  # fmt: skip
def test_whatever_else_shapes_a_prompt_sets_it_apart(more) -> None:
    plain, shaped = chat_prompt(chat(DOCUMENT)), chat_prompt(chat(DOCUMENT, **more))
    assert not set(pieces(plain)) & set(pieces(shaped))
    assert pieces(plain) == pieces(chat_prompt(chat(DOCUMENT, temperature=0.5, stream=True)))


def test_chats_share_the_messages_that_they_begin_with() -> None:
    one, other = chat(DOCUMENT, "a"), chat(DOCUMENT, "bcd", "e" * 999)
    assert pieces(chat_prompt(one))[:10] == pieces(chat_prompt(other))[:10]


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"", Unheld.UNPARSABLE),
        (b"{", Unheld.UNPARSABLE),
        (b"[" * 100_000, Unheld.UNPARSABLE),
        (b'{"prompt": "\xff"}', Unheld.UNPARSABLE),
        (b'{"prompt": 7}', Unheld.UNPARSABLE),
        (b"{}", Unheld.UNPARSABLE),
        (completion([]), Unheld.UNPARSABLE),
        (completion([-1] * 99), Unheld.UNPARSABLE),
        (completion([2**40] * 99), Unheld.UNPARSABLE),
        (completion([1, "a"] * 99), Unheld.UNPARSABLE),
        (completion(["a", "b"]), Unheld.SEVERAL_PROMPTS),
        (completion([[1], [2]]), Unheld.SEVERAL_PROMPTS),
        (completion(DOCUMENT, prompt_logprobs=1), Unheld.UNCACHED),
        (completion(DOCUMENT, echo=True, logprobs=1), Unheld.UNCACHED),
        (completion("short"), Unheld.SHORT),
        (completion([1, 2]), Unheld.SHORT),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_has_no_chain_says_why(body: bytes, why: Unheld) -> None:
    assert completion_prompt(body) is why
    if why is Unheld.UNPARSABLE:
        assert chat_prompt(body) is why


@given(st.binary(max_size=300) | st.builds(json.dumps, st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(
        st.sampled_from(["prompt", "messages", "model", "tools"]) | st.text(), inner),
)).map(str.encode))  # fmt: skip
def test_no_body_breaks_it(body: bytes) -> None:
    for read in (completion_prompt, chat_prompt):
        assert isinstance(read(body), Prompt | Unheld)


def test_a_long_prompt_is_told_apart_so_far_and_no_further() -> None:
    found = completion_prompt(completion("a" * (2 * MAX_PIECES * PIECE_BYTES)))
    assert len(pieces(found)) == MAX_PIECES
    assert isinstance(found, Prompt)
    assert found.tokens == 2 * MAX_PIECES * PIECE_BYTES // prompts.BYTES_PER_TOKEN


# Heads ---------------------------------------------------------------------------------------


def test_what_belongs_to_one_connection_ends_there() -> None:
    headers = [(b"Connection", b"close, X-Mine"), (b"x-mine", b"1"), (b"TE", b"trailers"),
               (b"Transfer-Encoding", b"chunked"), (b"X-Kept", b"2"), (b"x-kept", b"3"),
               (b"Upgrade", b"h2c"), (b"Keep-Alive", b"5")]  # fmt: skip
    assert end_to_end(headers) == [(b"X-Kept", b"2"), (b"x-kept", b"3")]


def test_a_request_says_through_whom_it_went() -> None:
    came = [(b"host", b"gateway"), (b"via", b"1.1 a"), (b"expect", b"100-continue"), (b"x", b"1")]
    sent = passed_on(came, b"engine:80", b"us")
    assert sent == [(b"host", b"engine:80"), (b"x", b"1"), (b"via", b"1.1 a, 1.1 us")]
    assert went_through(sent, b"us")
    assert not went_through(came, b"us")


def test_a_request_keeps_its_name_unless_that_is_too_long() -> None:
    assert request_id([(b"x-request-id", b"a-1")]) == b"a-1"
    assert request_id([(b"x-request-id", b"a" * 201)]) == request_id([]) == b""


# First tokens --------------------------------------------------------------------------------

STREAMS = [
    (b"data: {}\n\n", 5), (b": ping\n\ndata: x\n", 13), (b"event: a\r\ndata: b\r\n\r\n", 15),
    (b": data: no\n\n", None), (b"dat: data:\n", None), (b"\n\n\n", None), (b"", None),
    (b"id: 1\rdata:", 11),
]  # fmt: skip


@pytest.mark.parametrize(("stream", "at"), STREAMS)
@given(seed=st.integers(0, 2**32))
@example(seed=0)
def test_the_first_token_is_seen_however_the_stream_is_cut(stream, at, seed: int) -> None:
    numbers, watch, place = random.Random(seed), FirstData(), 0
    while place < len(stream):
        end = min(len(stream), place + numbers.randint(1, 4))
        is_seen = watch.seen_in(stream[place:end])
        assert is_seen == (at is not None and place < at <= end)
        if is_seen:
            return
        place = end
    assert at is None


# Costs and answers ---------------------------------------------------------------------------


def test_costs_lie_on_a_line_through_what_was_told_and_grow_old() -> None:
    costs = Costs()
    assert costs.seconds(100, 0.0) is None
    costs.told([(1000, 1.0), (100, 0.25), (3000, 4.0), (9, float("nan"))], 10.0)
    assert [costs.seconds(n, 10.0) for n in (1, 100, 550, 1000, 2000, 5000)] == pytest.approx(
        [0.25, 0.25, 0.625, 1.0, 2.5, 7.0]
    )
    assert costs.seconds(100, 10.0 + TOLD_SECONDS) is None
    assert costs.seconds(100, 9.0) is None
    costs.told([], 50.0)
    assert costs.seconds(100, 50.0) is None


def test_the_costs_are_those_that_a_sidecar_tells(told_story) -> None:
    pipeline: Pipeline = told_story.pipeline
    asked = msgspec.json.decode(cost_question(), type=Question)
    answer = msgspec.json.encode(pipeline.readiness.ask(asked, pipeline.moment))
    points = costs_in(answer)
    assert [tokens for tokens, _ in points] == [128, 512, 2048, 8192, 32768]
    seconds = [cost for _, cost in points]
    assert seconds == sorted(seconds)
    assert seconds[0] > 0.0


def test_what_rests_on_nothing_seen_is_no_cost() -> None:
    pipeline = Pipeline()
    asked = msgspec.json.decode(cost_question(), type=Question)
    assert costs_in(msgspec.json.encode(pipeline.readiness.ask(asked, pipeline.moment))) == []


def test_what_a_degraded_tap_tells_is_not_resident() -> None:
    def answer(hbm: int, degraded: bool) -> dict[str, object]:
        return {"evidence": "measured", "degraded": degraded, "ways": [], "tokens": {"hbm": hbm}}

    told = [answer(64, False), answer(64, True), {"tokens": None}]
    assert resident_tokens_in(json.dumps({"answers": told}).encode()) == [64, 0, 0]
    with pytest.raises(msgspec.MsgspecError):
        resident_tokens_in(b'{"answers": 3}')


@pytest.mark.parametrize(
    ("body", "asked"),
    [
        (completion([1, 2, 3]), [1, 2, 3]),
        (completion([[4, 5]]), [4, 5]),
        (completion(["a"], max_tokens=3), {"model": "m", "prompt": "a"}),
        (completion("a", stream=True), {"model": "m", "prompt": "a"}),
        (chat("a", tools=[1]), {"model": "m", "messages": [{"role": "user", "content": "a"}],
                                "tools": [1]}),
    ],
)  # fmt: skip
def test_the_tokenizer_is_asked_for_what_shapes_the_prompt(body: bytes, asked) -> None:
    question = tokenize_question(body)
    assert (question if isinstance(question, list) else json.loads(question)) == asked


def test_tokens_that_two_prompts_begin_with() -> None:
    for shared in range(20):
        one, other = [*range(shared), 99, 1], [*range(shared), 98, 1, 2]
        assert common_tokens(one, other) == shared
    assert common_tokens([1, 2], [1, 2]) == 2
    assert common_tokens([], [1]) == 0
    assert tokens_in(b'{"tokens": [1, 2], "count": 2}') == [1, 2]


# Figures -------------------------------------------------------------------------------------


def test_every_figure_and_reason_is_exported_from_zero_on_and_documented() -> None:
    text = Path("docs/gateway.md").read_text(encoding="utf-8")
    counts = Counts()
    counts.held(0.3)
    counts.held(99.0)
    values = counts.values(held=0, leading=0, acting=False, dropped=0)
    body, _ = MetricsPage(lambda: counts.families(values)).render("")
    families = {family.name: family for family in text_string_to_metric_families(body.decode())}
    for metric in CATALOGUE:
        assert f"`{metric.name}`" in text
        family = families[metric.name.removesuffix("_total")]
        if metric.labels:
            (label,) = metric.labels
            assert [sample.labels[label.name] for sample in family.samples] == list(label.values)
    for reason in (*Passed, *Release):
        assert f"`{reason}`" in text, reason
    held = families["kvready_gateway_held_seconds"].samples
    assert [s.value for s in held if s.labels.get("le") in ("0.25", "0.5", "+Inf")] == [0, 1, 2]
