"""The exception tree. Each message names the fix.

KvreadyError
├── SettingsError       a setting is unknown, malformed or contradicts another
├── TapError            a tap's endpoint can never deliver
├── RecordingError      a file is no recording, or of a format this version cannot read
├── UnsupportedEngine   an engine or version outside what was tested; we refuse rather than guess
├── WorkloadError       a trace cannot be read, or no workload can be made of what was asked
├── QuestionError       a question about readiness cannot be answered as it was put
├── ServiceError        the sidecar cannot take its place (port in use, missing extra)
└── UpstreamError       the server behind the gateway cannot be reached, or breaks off
"""

from __future__ import annotations

from enum import StrEnum


class KvreadyError(Exception):
    """Root of all errors that kvready raises on purpose."""


class SettingsError(KvreadyError):
    """A setting is unknown, malformed or contradicts another."""


class TapError(KvreadyError):
    """A tap's endpoint can never deliver."""


class RecordingError(KvreadyError):
    """A file is no recording, or of a format this version cannot read."""


class UnsupportedEngine(KvreadyError):
    """An engine or version outside what was tested."""


class WorkloadError(KvreadyError):
    """A trace cannot be read, or no workload can be made of what was asked."""


class QuestionFault(StrEnum):
    """What is wrong with a question."""

    MALFORMED = "malformed"
    TOO_LARGE = "too-large"
    CONTENT_KEYS_OFF = "content-keys-off"
    NOT_YET = "not-yet"  # the same question may be answered later


class QuestionError(KvreadyError):
    """A question about readiness cannot be answered as it was put."""

    def __init__(self, fault: QuestionFault, message: str) -> None:
        super().__init__(message)
        self.fault = fault


class ServiceError(KvreadyError):
    """The sidecar cannot take its place."""


class UpstreamError(KvreadyError):
    """The server behind the gateway cannot be reached, or breaks off."""

    def __init__(self, status: int, message: str, *, is_unreachable: bool = False) -> None:
        """`status`: of the answer that a client gets where none has begun."""
        super().__init__(message)
        self.status = status
        self.is_unreachable = is_unreachable  # no connection could be made
