"""A seeded load that makes a small engine move blocks between its tiers.

Two kinds of traffic, by token ids: documents that are asked about again and again, sometimes by
several clients at once, and sessions whose every turn carries all turns before it. Together they
need more blocks than HBM has, so that prefixes go to host memory and come back. A few clients
hang up. A shape may have moods, in which both kinds come faster or slower and ask about other
documents. Prints what the clients saw as JSON.
"""

from __future__ import annotations

import argparse
import http.client
import json
import random
import statistics
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from typing import Any
from urllib.parse import urlsplit

CLIENTS = 64  # requests in flight at most
ANSWER_SECONDS = 120.0
VOCABULARY = 2048
GROUP_GAP_SECONDS = 0.005  # between clients that ask about one document at once


@dataclass(frozen=True)
class Mood:
    """How arrivals of the first kind go for a while."""

    name: str
    pace: float  # of the shape's rate
    seconds: float  # about; each time within a half of it
    stale_share: float
    together_share: float


@dataclass(frozen=True)
class LoadShape:
    """How much of what. The defaults suit 256 blocks of 32 tokens."""

    questions: int
    documents: int
    document_tokens: int
    sessions: int
    turns: int
    requests_per_second: float
    question_tokens: int = 48
    output_tokens: int = 8
    stale_share: float = 0.5  # of arrivals, about the document not asked about for longest
    together_share: float = 0.2  # of arrivals, asked by 2 or 3 clients at once
    abort_share: float = 0.02
    seed: int = 1
    moods: tuple[Mood, ...] = ()  # every one in turn, the order drawn anew each round
    renewed_documents: int = 0  # at the start of each mood, those not asked about for longest
    pause_seconds: float | None = None  # between turns, on average; None: half the load's span

    @property
    def requests(self) -> int:
        """All of them."""
        return self.questions + self.sessions * self.turns

    @property
    def mean_pause_seconds(self) -> float:
        """Between two turns of a session."""
        if self.pause_seconds is not None:
            return self.pause_seconds
        return self.questions / self.requests_per_second / (2 * self.turns)


# With the clients that come together, about three requests a second: what the engine just keeps up
# with, so that bursts leave queues which quiet minutes empty.
MOODS = (
    Mood("quiet", 0.12, 40.0, stale_share=0.5, together_share=0.1),
    Mood("steady", 0.75, 65.0, stale_share=0.5, together_share=0.2),
    Mood("busy", 1.0, 35.0, stale_share=0.55, together_share=0.2),
    Mood("burst", 2.5, 7.0, stale_share=0.3, together_share=0.5),
)
SHAPES = {
    "full": LoadShape(460, 18, 640, 10, 5, 3.0),
    # About eight minutes: what an evaluation needs. Documents come and go, so that misses go on.
    "long": LoadShape(
        1_440, 18, 640, 32, 5, 3.0, moods=MOODS, renewed_documents=3, pause_seconds=15.0
    ),
    "slow": LoadShape(260, 18, 640, 8, 4, 2.0),  # what a disk keeps up with
    "small": LoadShape(48, 14, 640, 3, 4, 3.0, abort_share=0.08),
}


@dataclass(frozen=True)
class Question:
    """One request of the first kind."""

    at_seconds: float
    name: str
    prompt: tuple[int, ...]
    abort_after_seconds: float | None = None


@dataclass(frozen=True)
class Session:
    """What a user says, turn by turn, and when the first turn comes."""

    at_seconds: float
    name: str
    turns: tuple[tuple[int, ...], ...]
    pauses_seconds: tuple[float, ...]


@dataclass(frozen=True)
class Answer:
    """What one client saw."""

    name: str
    prompt_tokens: int
    cached_tokens: int
    output: tuple[int, ...]
    ttft_seconds: float | None
    total_seconds: float
    aborted: bool = False
    error: str = ""


def arrivals(chance: random.Random, shape: LoadShape) -> Iterator[tuple[float, Mood, bool]]:
    """When clients of the first kind come, in which mood, and whether it has just begun."""
    at = 0.0
    if not shape.moods:
        always = Mood("always", 1.0, 0.0, shape.stale_share, shape.together_share)
        while True:
            at += chance.expovariate(shape.requests_per_second)
            yield at, always, False
    while True:
        for mood in chance.sample(shape.moods, len(shape.moods)):
            over = at + mood.seconds * chance.uniform(0.5, 1.5)
            rate = shape.requests_per_second * mood.pace * chance.uniform(0.75, 1.25)
            begins = True
            # What is left of a gap when a mood ends is drawn anew: the gaps have no memory.
            while (arrival := at + chance.expovariate(rate)) < over:
                at = arrival
                yield at, mood, begins
                begins = False
            at = over


def questions(shape: LoadShape) -> list[Question]:
    """The first kind of traffic: Poisson arrivals over documents."""
    chance = random.Random(shape.seed)
    documents = [
        _tokens(chance, _around(chance, shape.document_tokens)) for _ in range(shape.documents)
    ]
    # Least recently asked first. Asking those again is what reaches past HBM into host memory.
    order = list(range(shape.documents))
    found: list[Question] = []
    for at, mood, begins in arrivals(chance, shape):
        if len(found) == shape.questions:
            break
        for stale in order[: shape.renewed_documents] if begins else ():
            documents[stale] = _tokens(chance, _around(chance, shape.document_tokens))
        asked = order[0] if chance.random() < mood.stale_share else chance.choice(order)
        order.remove(asked)
        order.append(asked)
        clients = chance.choice((2, 3)) if chance.random() < mood.together_share else 1
        for client in range(min(clients, shape.questions - len(found))):
            hangs_up = chance.random() < shape.abort_share
            found.append(
                Question(
                    at + client * GROUP_GAP_SECONDS,
                    f"load-q{len(found)}",
                    documents[asked] + _tokens(chance, _around(chance, shape.question_tokens)),
                    chance.uniform(0.01, 0.3) if hangs_up else None,
                )
            )
    return found


def sessions(shape: LoadShape) -> list[Session]:
    """The second kind: each session starts so that it ends about when the questions do."""
    chance = random.Random(shape.seed + 1)
    pause = shape.mean_pause_seconds
    last_start = shape.questions / shape.requests_per_second - shape.turns * pause
    return [
        Session(
            chance.uniform(0.0, last_start),
            f"load-s{number}",
            tuple(_tokens(chance, 2 * shape.question_tokens) for _ in range(shape.turns)),
            tuple(chance.expovariate(1 / pause) for _ in range(shape.turns)),
        )
        for number in range(shape.sessions)
    ]


def run(url: str, model: str, shape: LoadShape) -> list[Answer]:
    """Send the load and wait for every answer."""
    answers: list[Answer] = []
    began = time.monotonic()

    def one(question: Question) -> None:
        _sleep_until(began + question.at_seconds)
        answers.append(
            ask(
                url,
                model,
                question.name,
                question.prompt,
                shape.output_tokens,
                question.abort_after_seconds,
            )
        )

    def talk(session: Session) -> None:
        _sleep_until(began + session.at_seconds)
        said: tuple[int, ...] = ()
        for number, turn in enumerate(session.turns):
            said += turn
            answer = ask(url, model, f"{session.name}-{number}", said, shape.output_tokens)
            answers.append(answer)
            said += answer.output
            time.sleep(session.pauses_seconds[number])

    talkers = [threading.Thread(target=talk, args=(session,)) for session in sessions(shape)]
    for talker in talkers:
        talker.start()
    with ThreadPoolExecutor(CLIENTS) as clients:
        list(clients.map(one, questions(shape)))
    for talker in talkers:
        talker.join()
    return answers


def ask(
    url: str,
    model: str,
    name: str,
    prompt: Iterable[int],
    output_tokens: int,
    abort_after_seconds: float | None = None,
) -> Answer:
    """One streamed completion; a client that hangs up closes its connection."""
    prompt = tuple(prompt)
    place = urlsplit(url)
    assert place.hostname is not None
    connection = http.client.HTTPConnection(place.hostname, place.port, timeout=ANSWER_SECONDS)
    began = time.monotonic()
    blank = Answer(name, len(prompt), 0, (), None, 0.0)
    hang_up = None
    try:
        connection.request(
            "POST",
            "/v1/completions",
            body=json.dumps(_body(model, prompt, output_tokens)),
            headers={"Content-Type": "application/json", "X-Request-Id": name},
        )
        if abort_after_seconds is not None:
            hang_up = time.monotonic() + abort_after_seconds
            connection.sock.settimeout(abort_after_seconds)
        answer = _read(connection, blank, began, hang_up)
    except TimeoutError:
        answer = replace(blank, aborted=hang_up is not None, error="" if hang_up else "timed out")
    except (OSError, http.client.HTTPException, ValueError) as error:
        answer = replace(blank, error=f"{type(error).__name__}: {error}")
    finally:
        connection.close()
    return replace(answer, total_seconds=time.monotonic() - began)


def summary(answers: list[Answer], seconds: float) -> dict[str, object]:
    """Counts and medians over what the clients saw."""
    good = [answer for answer in answers if answer.ttft_seconds is not None and not answer.aborted]
    return {
        "requests": len(answers),
        "aborted": sum(answer.aborted for answer in answers),
        "errors": sum(bool(answer.error) for answer in answers),
        "first_error": next((answer.error for answer in answers if answer.error), ""),
        "seconds": round(seconds, 1),
        "prompt_tokens": sum(answer.prompt_tokens for answer in good),
        "cached_tokens": sum(answer.cached_tokens for answer in good),
        "median_ttft_seconds": round(
            statistics.median([answer.ttft_seconds or 0.0 for answer in good] or [0.0]), 4
        ),
    }


def _read(
    connection: http.client.HTTPConnection, blank: Answer, began: float, hang_up: float | None
) -> Answer:
    response = connection.getresponse()
    if response.status != 200:
        raise ValueError(f"status {response.status}: {response.read(300)!r}")
    output: list[int] = []
    ttft = None
    cached = 0
    for event in _events(response):
        if event.get("usage"):
            cached = (event["usage"].get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        for choice in event.get("choices", ()):
            if choice.get("token_ids"):
                ttft = ttft if ttft is not None else time.monotonic() - began
                output += choice["token_ids"]
        if hang_up is not None and time.monotonic() > hang_up:
            return replace(blank, ttft_seconds=ttft, output=tuple(output), aborted=True)
    return replace(blank, ttft_seconds=ttft, output=tuple(output), cached_tokens=cached)


def _events(response: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
    for line in response:
        text = line.strip()
        if text.startswith(b"data: ") and text != b"data: [DONE]":
            yield json.loads(text[len(b"data: ") :])


def _body(model: str, prompt: tuple[int, ...], output_tokens: int) -> dict[str, object]:
    return {
        "model": model,
        "prompt": list(prompt),
        "max_tokens": output_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_token_ids": True,
    }


def _around(chance: random.Random, mean: int) -> int:
    """A length between half and one and a half times the mean."""
    return chance.randrange(mean // 2, mean * 3 // 2)


def _tokens(chance: random.Random, count: int) -> tuple[int, ...]:
    return tuple(chance.randrange(VOCABULARY) for _ in range(count))


def _sleep_until(seconds: float) -> None:
    time.sleep(max(0.0, seconds - time.monotonic()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("url")
    parser.add_argument("--model", default="kv-heavy")
    parser.add_argument("--shape", choices=sorted(SHAPES), default="full")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--answers", help="file for one JSON line per answer")
    options = parser.parse_args()
    began = time.monotonic()
    answers = run(options.url, options.model, replace(SHAPES[options.shape], seed=options.seed))
    print(json.dumps(summary(answers, time.monotonic() - began)))
    if options.answers:
        with open(options.answers, "w", encoding="utf-8") as file:
            for answer in answers:
                file.write(json.dumps(asdict(answer)) + "\n")


if __name__ == "__main__":
    main()
