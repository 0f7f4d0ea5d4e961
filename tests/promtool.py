"""Debian's Prometheus packages: found, or skipped, and never skipped where CI runs."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

PACKAGES = {"promtool": "prometheus", "prometheus": "prometheus",
            "prometheus-alertmanager": "prometheus-alertmanager",
            "amtool": "prometheus-alertmanager"}  # fmt: skip


def needed(*binaries: str) -> None:
    """Skip the test that lacks one of them; in CI it fails instead."""
    missing = sorted({PACKAGES[one] for one in binaries if shutil.which(one) is None})
    if not missing:
        return
    said = f"{', '.join(missing)} is missing; on Debian: apt-get install {' '.join(missing)}"
    if os.environ.get("CI"):
        pytest.fail(said)
    pytest.skip(said)


def promtool(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run it to its end."""
    return _run("promtool", *arguments)


def amtool(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run it to its end."""
    return _run("amtool", *arguments)


def _run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        list(map(str, command)),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
