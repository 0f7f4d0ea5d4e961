"""The version of kvready that runs."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

try:
    VERSION = version("kvready")
except PackageNotFoundError:
    # Run from a checkout that is on the path but not installed.
    VERSION = "0+unknown"
