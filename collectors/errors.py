"""The exception tree. Each message names the fix.

KvreadyError
├── SettingsError       a setting is unknown, malformed or contradicts another
├── TapError            a tap's endpoint can never deliver
├── RecordingError      a file is no recording, or of a format this version cannot read
├── UnsupportedEngine   an engine or version outside what was tested; we refuse rather than guess
└── ServiceError        the sidecar cannot take its place (port in use, missing extra)
"""

from __future__ import annotations


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


class ServiceError(KvreadyError):
    """The sidecar cannot take its place."""
