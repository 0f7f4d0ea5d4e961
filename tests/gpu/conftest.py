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

# Read once, when triton is first imported by any test of the session.
os.environ["TRITON_INTERPRET"] = "1"


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
def interpreted() -> ModuleType:
    """The kernel's module, in which Triton runs it on this CPU."""
    require_triton()
    module = importlib.import_module("kvready.kernels.gather_kernel")
    assert module.INTERPRETED
    return module
