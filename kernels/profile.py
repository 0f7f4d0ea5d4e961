"""A link profile: how fast this machine moves KV pages, with the samples that say so. JSON.

The file is an envelope `{"schema_version", "checksum", "profile"}`; the checksum is the SHA-256 of
the profile's canonical JSON, so that a damaged or edited file is refused.
"""

from __future__ import annotations

import hashlib
import os
from enum import StrEnum
from pathlib import Path

import msgspec

from kvready.kernels.errors import ProfileError

SCHEMA_VERSION = 1
MAX_PROFILE_BYTES = 64 << 20


class Provenance(StrEnum):
    """Whose figures these are."""

    MEASURED = "measured"  # here, by `kvready calibrate`
    PUBLISHED = "published"  # someone else's


class Sample(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """One timed move. Isolated, contended, waiting and inflicted times are separate figures."""

    fragment_bytes: int
    fragments: int
    round: int  # of the sweep; the same shape comes once per round
    move_seconds: float  # from the mover's start until every byte is usable
    wait_seconds: float = 0.0  # from the order until the mover started
    compute_slowdown: float | None = None  # step beside the move over quiet step; contended only


class Cost(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`overhead + fragments * fragment_seconds + bytes / bytes_per_second`, in seconds."""

    overhead_seconds: float
    fragment_seconds: float
    bytes_per_second: float

    def seconds(self, payload_bytes: int, fragments: int) -> float:
        """What a move costs."""
        return (
            self.overhead_seconds
            + fragments * self.fragment_seconds
            + payload_bytes / self.bytes_per_second
        )


class Curve(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """One mover on one path under one condition: measured samples, or a published cost."""

    source: str  # hbm | host | disk | remote
    destination: str
    mover: str  # dma_per_page | dma_batch | gather | contiguous | read
    backend: str
    workers: int  # SMs, threads, or reads in flight
    contended: bool  # beside a competing compute load
    samples: tuple[Sample, ...] = ()
    cost: Cost | None = None  # published curves only


class Machine(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """What was measured, as far as the figures depend on it. No host name."""

    cpu: str
    cpus: int
    operating_system: str
    gpu: str = ""  # empty: none
    gpu_driver: str = ""
    disk: str = ""  # file system and device of the disk tier


class Claim(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A published figure beside ours: `input` fixed a constant, `prediction` follows from them."""

    name: str
    kind: str  # input | prediction
    published: float
    ours: float
    unit: str
    source: str


class LinkProfile(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """All curves of one machine."""

    name: str
    provenance: Provenance
    machine: Machine
    curves: tuple[Curve, ...]
    made_wall_seconds: float = 0.0
    software: dict[str, str] = {}  # kvready, python, torch, triton, driver ABI: name to version
    conditions: dict[str, str] = {}  # pressure, thread counts, sizes: what to know beside a figure
    repeat_scatter: float | None = None  # median over shapes of (p90 - p10) / median of repeats
    claims: tuple[Claim, ...] = ()

    @property
    def calibration_id(self) -> str:
        """Short name of exactly these figures."""
        return checksum(self)[:12]

    def curve(
        self, source: str, destination: str, mover: str, *, contended: bool = False
    ) -> Curve | None:
        """The curve with the most workers for this path, or None."""
        found = [
            c
            for c in self.curves
            if (c.source, c.destination, c.mover, c.contended)
            == (source, destination, mover, contended)
        ]
        return max(found, key=lambda c: c.workers, default=None)


class _Envelope(msgspec.Struct, frozen=True):
    schema_version: int
    checksum: str = ""
    profile: msgspec.Raw = msgspec.Raw(b"null")  # a later version may lay it out otherwise


def checksum(profile: LinkProfile) -> str:
    """SHA-256 of the canonical JSON, hexadecimal."""
    return _digest(msgspec.json.encode(profile, order="deterministic"))


def write_profile(profile: LinkProfile, path: Path) -> None:
    """Write it whole or not at all. Raises `OSError` where the disk refuses."""
    body = msgspec.json.encode(profile, order="deterministic")
    envelope = _Envelope(SCHEMA_VERSION, _digest(body), msgspec.Raw(body))
    unfinished = path.with_name(path.name + ".part")
    try:
        with unfinished.open("wb") as file:
            file.write(msgspec.json.encode(envelope) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    except OSError:
        unfinished.unlink(missing_ok=True)
        raise


def read_profile(path: Path) -> LinkProfile:
    """Read it back. Raises `ProfileError` for a file that is absent, damaged, foreign or newer."""
    try:
        if path.stat().st_size > MAX_PROFILE_BYTES:
            raise ProfileError(f"{path} is larger than any link profile; name the right file")
        data = path.read_bytes()
    except OSError as error:
        raise ProfileError(
            f"cannot read the link profile {path}: {error.strerror}; "
            f"make one with `kvready calibrate --out {path}`"
        ) from error
    try:
        envelope = msgspec.json.decode(data, type=_Envelope)
    except msgspec.MsgspecError as error:
        raise ProfileError(
            f"{path} is no link profile ({error}); make one with `kvready calibrate --out {path}`"
        ) from error
    if envelope.schema_version != SCHEMA_VERSION:
        raise ProfileError(
            f"{path} has schema version {envelope.schema_version}, this kvready reads "
            f"{SCHEMA_VERSION}; run `kvready calibrate` again or upgrade kvready"
        )
    body = bytes(envelope.profile)
    if _digest(body) != envelope.checksum:
        raise ProfileError(
            f"{path} was damaged or edited (its checksum does not match); run `kvready calibrate` "
            "again"
        )
    try:
        return msgspec.json.decode(body, type=LinkProfile)
    except msgspec.MsgspecError as error:
        raise ProfileError(f"{path} does not hold a link profile ({error})") from error


def _digest(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()
