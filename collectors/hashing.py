"""Hashes that let records speak of prompts without holding any: all unsigned 64-bit.

A content key names a block by what is in it and in front of it, whatever engine holds it:

    key(n) = BLAKE2b-64(tokens of block n as packed little-endian u32,
                        salt = key(n - 1) || extra_key_hash(n), both little-endian u64)

with key(-1) = 0. BLAKE2b is in the standard library, keeps its distribution whatever the tokens,
and takes the parent in its parameter block, so that a block of 32 tokens costs one compression.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from hashlib import blake2b
from struct import unpack

import msgspec

TOKEN_BYTES = 4
KEY_BYTES = 8
NO_EXTRA_KEY = 0
NO_PARENT_KEY = 0

_encode = msgspec.msgpack.encode


def unsigned_block_hash(block_hash: int | bytes) -> int:
    """An engine's block hash as u64: the digest's last 8 bytes, big-endian, as vLLM itself cuts."""
    if isinstance(block_hash, bytes):
        return int.from_bytes(block_hash[-8:], "big")
    return block_hash


def text_hash(text: str) -> int:
    """A 64-bit stand-in for a name that must not be kept, such as a session id."""
    return int.from_bytes(blake2b(text.encode(), digest_size=KEY_BYTES).digest(), "little")


def extra_key_hash(extra_keys: object) -> int:
    """What sets equal tokens apart (LoRA name, media, salt, in that order), 0 for nothing."""
    if not extra_keys:
        return NO_EXTRA_KEY
    return int.from_bytes(blake2b(_encode(extra_keys), digest_size=KEY_BYTES).digest(), "little")


def content_keys(
    token_ids: Sequence[int],
    block_tokens: int,
    extra_key_hashes: Sequence[int] = (),
    parent_key: int = NO_PARENT_KEY,
) -> tuple[int, ...]:
    """Keys of the whole blocks in `token_ids`, chained after `parent_key`.

    Raises OverflowError for a token id outside u32, and ValueError for a block of no tokens.
    """
    packed = array("I", token_ids)
    if sys.byteorder == "big":
        packed.byteswap()
    data = packed.tobytes()
    step = block_tokens * TOKEN_BYTES
    if step <= 0:
        raise ValueError("a block must hold at least one token")
    key = parent_key.to_bytes(KEY_BYTES, "little")
    keys = []
    ends = range(step, len(data) + 1, step)
    if any(extra_key_hashes):
        for end, extra in zip(ends, extra_key_hashes, strict=False):
            salt = key + extra.to_bytes(KEY_BYTES, "little")
            key = blake2b(data[end - step : end], digest_size=KEY_BYTES, salt=salt).digest()
            keys.append(key)
    else:  # a salt of half the length is filled up with zeros: the hash of no extra key
        for end in ends:
            key = blake2b(data[end - step : end], digest_size=KEY_BYTES, salt=key).digest()
            keys.append(key)
    return unpack(f"<{len(keys)}Q", b"".join(keys))
