"""What a request asks the engine to read, as a chain of keys: no text is kept. Pure.

A text's pieces are PIECE_BYTES of it (of a chat: of its messages as they were sent, JSON and all),
each key chained over the one before, so that prompts that begin alike have equal keys as far as
they do.
Whatever else shapes the prompt (model, tools, template, salt, ...) is the root of the chain. Token
ids, where a prompt brings them, make pieces of PIECE_TOKENS. Two chains that meet by mistake cost a
hold that was for nothing, never a wrong answer.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from hashlib import blake2b
from struct import unpack

import msgspec

from kvready.collectors.hashing import content_keys

PIECE_BYTES = 256
BYTES_PER_TOKEN = 4  # of English; other scripts have less, so that their tokens are underestimated
PIECE_TOKENS = 32
MAX_PIECES = 1_024  # prompts are told apart no further
KEY_BYTES = 8


class Unheld(StrEnum):
    """Why a body has no chain of keys."""

    UNPARSABLE = "unparsable"
    SEVERAL_PROMPTS = "several_prompts"
    UNCACHED = "uncached"  # asks for logprobs of its prompt: engines reuse nothing then
    SHORT = "short"  # less than a piece


class Prompt(msgspec.Struct, frozen=True):
    """A request's prompt, as far as holding needs it."""

    pieces: tuple[int, ...]
    piece_tokens: int
    tokens: int  # of the whole, estimated where it is text
    is_exact: bool  # its tokens were given

    @property
    def group(self) -> int:
        """The key of its first piece, which all share that could wait for each other."""
        return self.pieces[0]


_Raw = msgspec.Raw
_NONE = msgspec.Raw()


class _Shaped(msgspec.Struct):
    """What shapes a prompt beside its text; all of it as it was sent."""

    model: _Raw = _NONE
    cache_salt: _Raw = _NONE
    add_special_tokens: _Raw = _NONE
    tools: _Raw = _NONE
    tool_choice: _Raw = _NONE
    functions: _Raw = _NONE
    documents: _Raw = _NONE
    chat_template: _Raw = _NONE
    chat_template_kwargs: _Raw = _NONE
    reasoning_effort: _Raw = _NONE
    mm_processor_kwargs: _Raw = _NONE
    lora_path: _Raw = _NONE


class _Completion(_Shaped):
    prompt: str | list[int | str | list[int]] | None = None
    echo: bool | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None


class _Chat(_Shaped):
    messages: list[_Raw] = []
    prompt_logprobs: int | None = None


_completion = msgspec.json.Decoder(_Completion)
_chat = msgspec.json.Decoder(_Chat)


def completion_prompt(body: bytes) -> Prompt | Unheld:
    """The prompt of `POST /v1/completions`."""
    try:
        asked = _completion.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return Unheld.UNPARSABLE
    if asked.prompt_logprobs is not None or (asked.echo and asked.logprobs is not None):
        return Unheld.UNCACHED
    prompt: object = asked.prompt
    if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
        if len(prompt) > 1:
            return Unheld.SEVERAL_PROMPTS
        prompt = prompt[0]
    if isinstance(prompt, str) and prompt:
        return _text((prompt.encode(errors="surrogatepass"),), _root(b"completion", asked))
    if isinstance(prompt, list) and prompt:
        return _tokens(prompt, _root(b"tokens", asked))
    return Unheld.UNPARSABLE


def chat_prompt(body: bytes) -> Prompt | Unheld:
    """The prompt of `POST /v1/chat/completions`."""
    try:
        asked = _chat.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return Unheld.UNPARSABLE
    if asked.prompt_logprobs is not None:
        return Unheld.UNCACHED
    if not asked.messages:
        return Unheld.UNPARSABLE
    return _text(map(bytes, asked.messages), _root(b"chat", asked))


def _root(kind: bytes, asked: _Shaped) -> int:
    digest = blake2b(kind, digest_size=KEY_BYTES)
    for name in _Shaped.__struct_fields__:
        part = bytes(getattr(asked, name))
        digest.update(len(part).to_bytes(KEY_BYTES, "little"))
        digest.update(part)
    return int.from_bytes(digest.digest(), "little")


def _text(parts: Iterable[bytes], root: int) -> Prompt | Unheld:
    text = b"\x00".join(parts)
    key = root.to_bytes(KEY_BYTES, "little")
    keys = []
    last = min(len(text), MAX_PIECES * PIECE_BYTES)
    for end in range(PIECE_BYTES, last + 1, PIECE_BYTES):
        key = blake2b(text[end - PIECE_BYTES : end], digest_size=KEY_BYTES, salt=key).digest()
        keys.append(key)
    if not keys:
        return Unheld.SHORT
    pieces = unpack(f"<{len(keys)}Q", b"".join(keys))
    piece_tokens = PIECE_BYTES // BYTES_PER_TOKEN
    return Prompt(pieces, piece_tokens, len(text) // BYTES_PER_TOKEN, is_exact=False)


def _tokens(tokens: list[int], root: int) -> Prompt | Unheld:
    try:
        first = tokens[: MAX_PIECES * PIECE_TOKENS]
        pieces = content_keys(first, PIECE_TOKENS, parent_key=root)
    except (OverflowError, TypeError):
        return Unheld.UNPARSABLE  # ids that no engine has
    if not pieces:
        return Unheld.SHORT
    return Prompt(pieces, PIECE_TOKENS, len(tokens), is_exact=True)
