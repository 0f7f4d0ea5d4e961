"""What the gateway asks others, and what it reads of their answers. Pure."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

import msgspec

from kvready.advisor.gateway.costs import ASKED_TOKENS

ASSUMED = "assumed"  # no outcome of this kind was seen yet: no ground for a hold
RECOMPUTE = "recompute"
COMPUTE_STAGE = "compute"
NOBODYS_BLOCK = secrets.randbits(64)  # whatever its length, nothing of such a prompt is anywhere
# What shapes a prompt, as the engine's `/tokenize` takes it too.
TOKENIZED = (
    "model", "prompt", "messages", "add_special_tokens", "add_generation_prompt", "tools",
    "chat_template", "chat_template_kwargs", "continue_final_message",
)  # fmt: skip


class _Way(msgspec.Struct):
    way: str
    stages_seconds: dict[str, float] = {}


class _Tokens(msgspec.Struct):
    hbm: int = 0


class _Answer(msgspec.Struct):
    evidence: str = ASSUMED
    degraded: bool = False
    ways: list[_Way] = []
    tokens: _Tokens | None = None


class _Answers(msgspec.Struct):
    answers: list[_Answer]


class _Tokenized(msgspec.Struct):
    tokens: list[int]


def cost_question() -> bytes:
    """What does computing so many tokens take?"""
    return msgspec.json.encode(
        {
            "candidates": [
                {"block_hashes": [NOBODYS_BLOCK], "prompt_tokens": tokens}
                for tokens in ASKED_TOKENS
            ]
        }
    )


def costs_in(answer: bytes) -> list[tuple[int, float]]:
    """Tokens and seconds, of those that rest on what was seen. Raises MsgspecError."""
    told = msgspec.json.decode(answer, type=_Answers).answers
    return [
        (tokens, way.stages_seconds[COMPUTE_STAGE])
        for tokens, one in zip(ASKED_TOKENS, told, strict=False)
        if one.evidence != ASSUMED
        for way in one.ways
        if way.way == RECOMPUTE and COMPUTE_STAGE in way.stages_seconds
    ]


def residency_question(prefixes: Sequence[Sequence[int]]) -> bytes:
    """Which of these tokens are in HBM?"""
    return msgspec.json.encode({"candidates": [{"token_ids": tokens} for tokens in prefixes]})


def resident_tokens_in(answer: bytes) -> list[int]:
    """Of each prefix, the tokens that are in HBM for certain. Raises MsgspecError."""
    told = msgspec.json.decode(answer, type=_Answers).answers
    return [one.tokens.hbm if one.tokens and not one.degraded else 0 for one in told]


def tokenize_question(body: bytes) -> bytes | list[int]:
    """The question for a request's tokens; or the tokens, where it brings them itself.

    Raises MsgspecError.
    """
    given = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    prompt = bytes(given.get("prompt", b""))
    if prompt.startswith(b"[") and not prompt.lstrip(b"[ \t\r\n")[:1].isdigit():
        (given["prompt"],) = msgspec.json.decode(prompt, type=tuple[msgspec.Raw])  # one text
    elif prompt.startswith(b"["):
        told = msgspec.json.decode(prompt, type=list[int | list[int]])
        return told[0] if isinstance(told[0], list) else [t for t in told if isinstance(t, int)]
    return msgspec.json.encode({name: given[name] for name in TOKENIZED if name in given})


def tokens_in(answer: bytes) -> list[int]:
    """What the tokenizer said. Raises MsgspecError."""
    return msgspec.json.decode(answer, type=_Tokenized).tokens


def common_tokens(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens both begin with."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
