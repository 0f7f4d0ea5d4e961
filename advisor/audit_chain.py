"""The audit's lines: each names the hash of the one before it, so that none can be changed. Pure.

A line is JSON that begins with its own hash; the hash is taken over the bytes that follow it, so
that nothing needs to be written the same way twice to be checked.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator

import msgspec

from kvready.advisor.policies import PolicyState

FORMAT = 1
GENESIS = "0" * 64  # what the first line of all names as the one before it
MAX_LINE_BYTES = 65_536
_OPENS, _HASH_CHARACTERS = b'{"hash":"', 64


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One event. Written in this order; `event`: started, moved, killed, rotated or mended."""

    sequence: int
    previous: str
    event: str
    wall_seconds: float
    actor: str = ""
    kind: str = ""
    trigger: str = ""
    reason: str = ""
    policy: str = ""
    scope: dict[str, str] = {}
    before: PolicyState | None = None
    after: PolicyState | None = None
    forced: bool = False
    report_id: str = ""
    evidence_hash: str = ""  # of the gate report as the store keeps it
    ingest: int = -1
    seconds: float = 0.0
    config_digest: str = ""
    versions: dict[str, str] = {}
    draw: dict[str, str | int] = {}  # whom it treats: fixed here, before anybody is treated


class Chain(msgspec.Struct, frozen=True, kw_only=True):
    """What a run of lines comes to: how far it holds, and why not further."""

    entries: int = 0
    first_sequence: int = 0  # 0: no line at all
    last_sequence: int = 0
    head: str = GENESIS
    good_bytes: int = 0  # of the last file looked at
    torn_bytes: int = 0  # after those: the start of a line that was never finished
    problem: str = ""  # other than a torn tail


def line_of(entry: AuditEntry) -> tuple[bytes, str]:
    """The line, its end included, and its hash."""
    rest = msgspec.json.encode(entry)[1:]
    digest = hashlib.sha256(rest).hexdigest()
    return _OPENS + digest.encode() + b'",' + rest + b"\n", digest


def read_line(line: bytes) -> tuple[AuditEntry, str]:
    """A whole line and its hash. Raises ValueError that says what is wrong with it."""
    start = len(_OPENS) + _HASH_CHARACTERS
    if not line.startswith(_OPENS) or line[start : start + 2] != b'",':
        raise ValueError("it is no line of an audit")
    digest, rest = line[len(_OPENS) : start], line[start + 2 :]
    if hashlib.sha256(rest).hexdigest().encode() != digest:
        raise ValueError("its content was changed: the hash is another")
    try:
        entry = msgspec.json.decode(b"{" + rest, type=AuditEntry)
    except msgspec.MsgspecError as error:
        raise ValueError(f"it is of another format than {FORMAT}: {error}") from None
    return entry, digest.decode()


def follow(lines: Iterable[bytes], after: Chain | None = None) -> Chain:
    """Check lines as a file holds them, ends included; `after`: the chain of the file before."""
    chain = msgspec.structs.replace(after, good_bytes=0, torn_bytes=0) if after else Chain()
    for line in lines:
        if chain.problem:
            break
        if chain.torn_bytes:
            return _broken(chain, "it follows a line that was never finished")
        try:
            entry, digest = read_line(line.removesuffix(b"\n"))
        except ValueError as error:
            if line.endswith(b"\n"):
                return _broken(chain, str(error))
            chain = msgspec.structs.replace(chain, torn_bytes=len(line))
            continue
        chain = _linked(chain, entry, digest, len(line))
    return chain


def entries_of(lines: Iterable[bytes]) -> Iterator[AuditEntry]:
    """The entries of lines that can be read; for showing, after `follow` has judged them."""
    for line in lines:
        try:
            yield read_line(line.removesuffix(b"\n"))[0]
        except ValueError:
            continue  # `follow` names it


def _linked(chain: Chain, entry: AuditEntry, digest: str, length: int) -> Chain:
    if chain.first_sequence:
        if entry.sequence != chain.last_sequence + 1 or entry.previous != chain.head:
            return _broken(chain, "it does not follow the line before it")
    elif entry.sequence == 1 and entry.previous != GENESIS:
        return _broken(chain, "the first line of all names one before it")
    return Chain(
        entries=chain.entries + 1,
        first_sequence=chain.first_sequence or entry.sequence,
        last_sequence=entry.sequence,
        head=digest,
        good_bytes=chain.good_bytes + length,
    )


def _broken(chain: Chain, why: str) -> Chain:
    where = f"the line after entry {chain.last_sequence}" if chain.entries else "the first line"
    return msgspec.structs.replace(chain, problem=f"{where} is bad: {why}")
