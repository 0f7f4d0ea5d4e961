"""Salting: make a recording safe to share by replacing what could be joined to real traffic.

Block hashes chain over prompts, so that whoever can guess a prompt can test for its hash; request
ids and sessions may be a client's own. A fresh random key per recording replaces all of them,
consistently within it, and is never written down.
"""

from __future__ import annotations

import hashlib
import secrets

import msgspec

from kvready.collectors.records import (
    AnyRecord,
    BatchMember,
    BatchPlanned,
    BlocksRemoved,
    BlocksStored,
    FirstToken,
    LoadDecided,
    RequestArrived,
    RequestDeferred,
    RequestFinished,
    RequestPreempted,
    RequestReported,
    RequestScheduled,
    TapStatus,
)

MAX_REMEMBERED_IDS = 1 << 20


class Salter:
    """Replaces hashes, ids, tenants and sessions under one random key."""

    def __init__(self, key: bytes | None = None) -> None:
        self._key = key if key is not None else secrets.token_bytes(32)
        self._ids: dict[str, str] = {}

    def __call__(self, record: AnyRecord) -> AnyRecord:
        """The record with everything that could identify traffic replaced."""
        match record:
            case BlocksStored():
                return msgspec.structs.replace(
                    record,
                    block_hashes=self._hashes(record.block_hashes),
                    parent_hash=self._maybe_hash(record.parent_hash),
                    extra_key_hashes=self._hashes(record.extra_key_hashes),
                    content_keys=self._hashes(record.content_keys),
                    session_hash=self._maybe_hash(record.session_hash),
                    adapter=self._identifier(record.adapter) if record.adapter else None,
                )
            case BlocksRemoved():
                return msgspec.structs.replace(
                    record, block_hashes=self._hashes(record.block_hashes)
                )
            case RequestArrived():
                return msgspec.structs.replace(
                    record,
                    request_id=self._identifier(record.request_id),
                    block_hashes=self._hashes(record.block_hashes),
                    tenant=self._identifier(record.tenant) if record.tenant else "",
                )
            case BatchPlanned():
                return msgspec.structs.replace(
                    record,
                    members=tuple(self._member(member) for member in record.members),
                    waiting=tuple(self._identifier(name) for name in record.waiting),
                )
            case TapStatus():
                return msgspec.structs.replace(record, detail="")
            case (
                LoadDecided()
                | RequestDeferred()
                | RequestScheduled()
                | RequestPreempted()
                | FirstToken()
                | RequestFinished()
                | RequestReported()
            ):
                return msgspec.structs.replace(
                    record, request_id=self._identifier(record.request_id)
                )
            case _:
                return record

    def _member(self, member: BatchMember) -> BatchMember:
        return msgspec.structs.replace(member, request_id=self._identifier(member.request_id))

    def _hash(self, value: int) -> int:
        digest = hashlib.blake2b(value.to_bytes(8, "big"), digest_size=8, key=self._key)
        return int.from_bytes(digest.digest(), "big")

    def _maybe_hash(self, value: int | None) -> int | None:
        return None if value is None else self._hash(value)

    def _hashes(self, values: tuple[int, ...]) -> tuple[int, ...]:
        # 0 stands for "no extra key" and must stay recognisable.
        return tuple(self._hash(value) if value else 0 for value in values)

    def _identifier(self, name: str) -> str:
        known = self._ids.get(name)
        if known is None:
            if len(self._ids) >= MAX_REMEMBERED_IDS:
                self._ids.clear()
            digest = hashlib.blake2b(name.encode(), digest_size=6, key=self._key)
            known = self._ids[name] = digest.hexdigest()
        return known
