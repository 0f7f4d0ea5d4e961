"""The gather compiled for GPUs that are not here: it compiles, and its accesses are wide."""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fake_cuda import require_triton

CAPABILITIES = (80, 90, 100)
FRAGMENTS = {"GQA page 16": 32 << 10, "MLA page 1": 1152}
# One tile is 32 KiB: of 256 threads each moves eight times 16 bytes.
WIDE = re.compile(r"\.v2\.b64$|\.v4\.b32$")


@pytest.fixture(scope="module")
def variants(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """All variants, compiled in a process that does not interpret."""
    require_triton()
    wanted = list(itertools.product(CAPABILITIES, (True, False), FRAGMENTS.values(), (True,)))
    wanted += [(90, load, FRAGMENTS["MLA page 1"], False) for load in (True, False)]
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path_factory.mktemp("triton"))
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("compile_gather.py")), json.dumps(wanted)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found: list[dict[str, Any]] = json.loads(done.stdout)
    assert len(found) == len(wanted)
    return found


def test_every_variant_becomes_machine_code(variants: list[dict[str, Any]]) -> None:
    assert all(variant["cubin_bytes"] > 1_000 for variant in variants)


def test_payload_is_read_and_written_16_bytes_at_a_time(variants: list[dict[str, Any]]) -> None:
    for variant in variants:
        accesses = variant["accesses"]
        reads = sum(n for name, n in accesses.items() if name[:2] == "ld" and WIDE.search(name))
        writes = sum(n for name, n in accesses.items() if name[:2] == "st" and WIDE.search(name))
        assert (reads, writes) == (8, 8), variant


def test_what_is_not_wide_is_page_numbers_and_the_clock(variants: list[dict[str, Any]]) -> None:
    """Three numbers per row that a thread touches, at most one row per access."""
    for variant in variants:
        narrow = {k: n for k, n in variant["accesses"].items() if not WIDE.search(k)}
        assert set(narrow) <= {"ld.global.b64", "st.global.b64"}, variant
        assert narrow["ld.global.b64"] <= 3 * 8, variant
        assert narrow.get("st.global.b64", 0) == variant["timed"], variant


def test_payload_is_marked_as_used_once(variants: list[dict[str, Any]]) -> None:
    for variant in variants:
        wide = {name for name in variant["accesses"] if WIDE.search(name)}
        assert {"evict_first" in name for name in wide if name[:2] == "ld"} == {True}, variant
        assert {".cs." in name for name in wide if name[:2] == "st"} == {True}, variant


def test_only_a_timed_kernel_reads_the_clock(variants: list[dict[str, Any]]) -> None:
    assert all(variant["clock"] == variant["timed"] for variant in variants)
