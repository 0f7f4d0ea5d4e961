"""A CUDA driver that is none, and Triton's kernel in its interpreter."""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from fake_cuda import SOURCE, FakeCuda, give_up, require_triton


@pytest.fixture(scope="session")
def fake_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc")
    if compiler is None:
        give_up("a C compiler is missing; on Debian: apt-get install gcc")
    path = tmp_path_factory.mktemp("cuda") / "libfake.so"
    subprocess.run(
        [str(compiler), "-O1", "-Wall", "-Werror", "-shared", "-fPIC", "-fvisibility=hidden"]
        + ["-o", str(path), str(SOURCE), "-lpthread"],
        check=True,
    )
    return path


@pytest.fixture
def cuda(fake_library: Path, tmp_path: Path) -> Iterator[FakeCuda]:
    """A driver of its own for each test; it must be told of no legacy stream."""
    own = tmp_path / "libcuda.so"
    shutil.copyfile(fake_library, own)
    fake = FakeCuda(own)
    yield fake
    assert fake.told("legacy_orders") == 0
    assert fake.told("without_context") == 0


@pytest.fixture(scope="session")
def interpreted() -> Iterator[ModuleType]:
    """The kernel's module, in which Triton runs it on this CPU. The variable is read at import."""
    before = os.environ.get("TRITON_INTERPRET")
    os.environ["TRITON_INTERPRET"] = "1"
    require_triton()
    yield importlib.import_module("kvready.kernels.gather_kernel")
    if before is None:
        del os.environ["TRITON_INTERPRET"]
    else:
        os.environ["TRITON_INTERPRET"] = before
