"""Salting: make a recording safe to share by replacing what could be joined to real traffic.

Block hashes chain over prompts, so that whoever can guess a prompt can test for its hash; request
ids and sessions may be a client's own. A fresh random key per recording replaces all of them,
consistently within it, and is never written down. Wall clocks are set back by one random number of
seconds, since logs of the same requests may carry the true ones; a model's path is cut to its name.

What stays is told to whoever shares: when things happened, how large they were, what the engine is.
"""

from __future__ import annotations

import hashlib
import secrets
from typing import Any

import msgspec

from kvready.collectors.asked import AskedCandidate
from kvready.collectors.commanded import EVERYWHERE, RestoredPolicy
from kvready.collectors.errors import RecordingError
from kvready.collectors.records import (
    AnyRecord,
    BatchMember,
    BatchPlanned,
    BlocksRemoved,
    BlocksStored,
    CounterName,
    CountersScraped,
    EngineDescribed,
    FirstToken,
    KillSwitched,
    LoadDecided,
    PoliciesRestored,
    PolicyCommanded,
    ReadinessAsked,
    RequestArrived,
    RequestDeferred,
    RequestFinished,
    RequestPreempted,
    RequestReported,
    RequestScheduled,
    TapStatus,
)

MAX_REMEMBERED_IDS = 1 << 20
# Whole seconds and backwards, so that no difference between two readings is rounded anew.
MAX_SET_BACK_SECONDS = 10 * 365 * 86_400
WALL_SUFFIX = "_wall_seconds"
HASH_BYTES = 8
WITHHELD = "withheld"  # that a reason was given decides; what it said is nobody's business


class Salter:
    """Replaces hashes, ids, tenants, classes and sessions under one random key; shifts clocks."""

    def __init__(self, key: bytes | None = None) -> None:
        self._key = key if key is not None else secrets.token_bytes(32)
        self._ids: dict[str, str] = {}
        digest = hashlib.blake2b(b"wall clock", digest_size=8, key=self._key).digest()
        self._set_back_seconds = 1 + int.from_bytes(digest) % MAX_SET_BACK_SECONDS
        self._wall_fields: dict[type, tuple[str, ...]] = {}

    def __call__(self, record: AnyRecord) -> AnyRecord:
        """The record with everything that could identify traffic replaced.

        Raises RecordingError for a hash that kvready would never have written.
        """
        return self._replaced(self._set_back(record))

    def wall(self, seconds: float) -> float:
        """A reading of the wall clock as the shared recording tells it."""
        return seconds - self._set_back_seconds

    def _replaced(self, record: AnyRecord) -> AnyRecord:
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
                    request_class=(
                        self._identifier(record.request_class) if record.request_class else ""
                    ),
                )
            case BatchPlanned():
                return msgspec.structs.replace(
                    record,
                    members=tuple(self._member(member) for member in record.members),
                    waiting=tuple(self._identifier(name) for name in record.waiting),
                )
            case ReadinessAsked():
                candidates = tuple(self._candidate(one) for one in record.candidates)
                return msgspec.structs.replace(record, candidates=candidates)
            case PolicyCommanded() | KillSwitched() | PoliciesRestored():
                return self._control(record)
            case EngineDescribed():
                return msgspec.structs.replace(record, model=_model_name(record.model))
            case CountersScraped():
                started = record.values.get(CounterName.STARTED_WALL_SECONDS)
                if started is None:
                    return record
                moved = {CounterName.STARTED_WALL_SECONDS: self.wall(started)}
                return msgspec.structs.replace(record, values=record.values | moved)
            case TapStatus():
                return msgspec.structs.replace(record, detail="")
            case RequestReported():
                return msgspec.structs.replace(
                    record, request_id=self._identifier(record.request_id), traceparent=""
                )
            case (
                LoadDecided()
                | RequestDeferred()
                | RequestScheduled()
                | RequestPreempted()
                | FirstToken()
                | RequestFinished()
            ):
                return msgspec.structs.replace(
                    record, request_id=self._identifier(record.request_id)
                )
            case _:
                return record

    def _set_back(self, record: AnyRecord) -> AnyRecord:
        names = self._wall_fields.get(type(record))
        if names is None:
            fields = record.__struct_fields__
            names = tuple(name for name in fields if name.endswith(WALL_SUFFIX))
            self._wall_fields[type(record)] = names
        changes: dict[str, Any] = {
            name: self.wall(seconds)
            for name in names
            if (seconds := getattr(record, name)) is not None
        }
        return msgspec.structs.replace(record, **changes) if changes else record

    def _control(
        self, record: PolicyCommanded | KillSwitched | PoliciesRestored
    ) -> PolicyCommanded | KillSwitched | PoliciesRestored:
        """Who said why is withheld; that somebody gave a reason is not, since it decides."""
        if isinstance(record, PoliciesRestored):
            policies = tuple(
                msgspec.structs.replace(one, reason=_withheld(one.reason), **self._scope(one))
                for one in record.policies
            )
            return msgspec.structs.replace(record, policies=policies)
        said = {"actor": _withheld(record.actor), "reason": _withheld(record.reason)}
        if isinstance(record, KillSwitched):
            return msgspec.structs.replace(record, **said)
        return msgspec.structs.replace(record, **said, **self._scope(record))

    def _scope(self, record: PolicyCommanded | RestoredPolicy) -> dict[str, str]:
        names = {
            "engine": record.engine,
            "pool": record.pool,
            "request_class": record.request_class,
        }
        return {
            part: name if name == EVERYWHERE else self._identifier(name)
            for part, name in names.items()
        }

    def _member(self, member: BatchMember) -> BatchMember:
        return msgspec.structs.replace(member, request_id=self._identifier(member.request_id))

    def _candidate(self, asked: AskedCandidate) -> AskedCandidate:
        return msgspec.structs.replace(
            asked,
            request_id=self._identifier(asked.request_id) if asked.request_id else "",
            block_hashes=self._hashes(asked.block_hashes),
            content_keys=self._hashes(asked.content_keys),
        )

    def _hash(self, value: int) -> int:
        if not 0 <= value < 1 << 8 * HASH_BYTES:
            raise RecordingError(
                f"{value} is no unsigned 64-bit hash, so kvready did not write this recording; "
                "make one with `kvready record`"
            )
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


def _withheld(text: str) -> str:
    return WITHHELD if text.strip() else ""


def _model_name(model: str) -> str:
    """A path says who serves the model and where; `owner/model` is its public name."""
    is_path = model.startswith(("/", ".", "~")) or model.count("/") > 1 or "\\" in model
    return model.replace("\\", "/").rstrip("/").rpartition("/")[2] if is_path else model
