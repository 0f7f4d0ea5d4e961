"""A link profile: how fast this machine moves KV pages, with the samples that say so. JSON.

The file is an envelope `{"schema_version", "checksum", "profile"}`; the checksum is the SHA-256 of
the profile's canonical JSON. A file that differs from what was written by one byte is refused.
"""

from __future__ import annotations

import hashlib
import os
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from kvready.kernels.errors import ProfileError
from kvready.kernels.workers import usual_workers

SCHEMA_VERSION = 1
MAX_PROFILE_BYTES = 64 << 20
CONTIGUOUS = "contiguous"  # the mover of a copy in one piece, which others are held against

# What no figure of a machine exceeds: beyond these a file is nonsense, whatever its checksum says.
Count = Annotated[int, Meta(ge=0, le=1 << 32)]
Positive = Annotated[int, Meta(ge=1, le=1 << 40)]
Seconds = Annotated[float, Meta(ge=0, le=1e6)]
SomeSeconds = Annotated[float, Meta(gt=0, le=1e6)]
Rate = Annotated[float, Meta(gt=0, le=1e15)]
Ratio = Annotated[float, Meta(gt=0, le=1e6)]
Scatter = Annotated[float, Meta(ge=0, le=1e6)]


class Provenance(StrEnum):
    """Whose figures these are."""

    MEASURED = "measured"  # here, by `kvready calibrate`
    PUBLISHED = "published"  # someone else's


class Sample(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """One timed move. Isolated, contended, waiting and inflicted times are separate figures."""

    fragment_bytes: Positive
    fragments: Positive
    round: Count  # of the sweep; the same shape comes once per round
    move_seconds: SomeSeconds  # from the mover's start until every byte is usable
    wait_seconds: Seconds = 0.0  # from the order until the mover started
    compute_slowdown: Ratio | None = None  # step beside the move over quiet step; contended only


class Cost(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`overhead + fragments * fragment_seconds + bytes / bytes_per_second`, in seconds."""

    overhead_seconds: Seconds
    fragment_seconds: Seconds
    bytes_per_second: Rate

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
    workers: Positive  # SMs, threads, or reads in flight
    contended: bool  # beside a competing compute load
    samples: tuple[Sample, ...] = ()
    cost: Cost | None = None  # published curves only

    def __post_init__(self) -> None:
        if bool(self.samples) == (self.cost is not None):
            raise ValueError(
                f"the {self.mover} curve from {self.source} to {self.destination} needs either "
                "samples or a cost"
            )


class Machine(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """What was measured, as far as the figures depend on it. No host name."""

    cpu: str
    cpus: Count
    operating_system: str
    gpu: str = ""  # empty: none
    gpu_driver: str = ""
    disk: str = ""  # file system and device of the disk tier


class Claim(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A published figure beside ours: `input` fixed a constant, `prediction` follows from them."""

    name: str
    kind: str  # input | prediction
    published: float
    ours: float
    unit: str
    source: str
    reading: str = ""  # what the difference says, and under which conditions


class LinkProfile(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """All curves of one machine."""

    name: str
    provenance: Provenance
    machine: Machine
    curves: tuple[Curve, ...]
    made_wall_seconds: Annotated[float, Meta(ge=0, le=1e11)] = 0.0
    software: dict[str, str] = {}  # kvready, python, torch, triton, driver ABI: name to version
    conditions: dict[str, str] = {}  # pressure, thread counts, sizes: what to know beside a figure
    repeat_scatter: Scatter | None = None  # median over shapes of (p90 - p10) / median of repeats
    claims: tuple[Claim, ...] = ()

    @property
    def calibration_id(self) -> str:
        """Short name of exactly these figures."""
        return checksum(self)[:12]

    def curve(
        self, source: str, destination: str, mover: str, *, contended: bool = False
    ) -> Curve | None:
        """The curve of this path with about as many workers as usual, or None."""
        found = [
            c
            for c in self.curves
            if (c.source, c.destination, c.mover, c.contended)
            == (source, destination, mover, contended)
        ]
        return min(found, key=_from_usual_workers, default=None)


def _from_usual_workers(curve: Curve) -> tuple[int, int]:
    return abs(curve.workers - usual_workers(curve.mover, curve.backend)), curve.workers


class _Envelope(msgspec.Struct, frozen=True):
    schema_version: int
    checksum: str = ""
    profile: msgspec.Raw = msgspec.Raw(b"null")  # a later version may lay it out otherwise


def checksum(profile: LinkProfile) -> str:
    """SHA-256 of the canonical JSON, hexadecimal."""
    return _digest(_canonical(profile))


def write_profile(profile: LinkProfile, path: Path) -> None:
    """Write it whole or not at all.

    Raises `ProfileError` where the disk refuses, and for figures that no machine has.
    """
    body = _canonical(profile)
    _decoded(body, f"the profile for {path}")
    unfinished = path.with_name(f"{path.name}.{os.getpid()}.part")  # two may write at a time
    try:
        try:
            with unfinished.open("wb") as file:
                file.write(_sealed(body))
                file.flush()
                os.fsync(file.fileno())
            unfinished.replace(path)
        except BaseException:
            unfinished.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise ProfileError(
            f"cannot write the link profile {path}: {error.strerror}; free some space there, or "
            "name another file"
        ) from error


def read_profile(path: Path) -> LinkProfile:
    """Read it back. Raises `ProfileError` for a file that is absent, damaged, foreign or newer."""
    data = _bytes_of(path)
    try:
        envelope = msgspec.json.decode(data, type=_Envelope)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ProfileError(
            f"{path} is no link profile ({error}); make one with `kvready calibrate --out FILE`"
        ) from error
    if envelope.schema_version != SCHEMA_VERSION:
        raise ProfileError(
            f"{path} has schema version {envelope.schema_version}, this kvready reads "
            f"{SCHEMA_VERSION}; run `kvready calibrate` again or upgrade kvready"
        )
    body = bytes(envelope.profile)
    if data != _sealed(body):
        raise ProfileError(
            f"{path} was damaged or edited (it is not as `kvready calibrate` left it); run "
            "`kvready calibrate` again"
        )
    return _decoded(body, str(path))


def _bytes_of(path: Path) -> bytes:
    try:
        if path.exists() and not path.is_file():  # a pipe would never end
            raise ProfileError(f"{path} is no file; name the link profile itself")
        with path.open("rb") as file:
            data = file.read(MAX_PROFILE_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ProfileError(
            f"cannot read the link profile {path}: {reason}; "
            "make one with `kvready calibrate --out FILE`"
        ) from error
    if len(data) > MAX_PROFILE_BYTES:
        raise ProfileError(f"{path} is larger than any link profile; name the right file")
    return data


def _decoded(body: bytes, name: str) -> LinkProfile:
    try:
        return msgspec.json.decode(body, type=LinkProfile)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ProfileError(
            f"{name} does not hold a link profile ({error}); run `kvready calibrate` again"
        ) from error


def _canonical(profile: LinkProfile) -> bytes:
    return msgspec.json.encode(profile, order="deterministic")


def _sealed(body: bytes) -> bytes:
    """The whole file around a profile."""
    return msgspec.json.encode(_Envelope(SCHEMA_VERSION, _digest(body), msgspec.Raw(body))) + b"\n"


def _digest(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()
