"""A CUDA driver that is none: its device is this process's memory."""

from __future__ import annotations

import ctypes
import importlib.util
import os
from pathlib import Path

import pytest

from kvready.kernels.cuda_driver import DEVICE_MEMORY, HOST_MEMORY, CudaDriver
from kvready.kernels.pools import Pools

SOURCE = Path(__file__).parent / "gpu" / "fake_cuda.c"


def give_up(missing: str) -> None:
    """Skip here, fail where everything must be there."""
    (pytest.fail if os.environ.get("CI") else pytest.skip)(missing)


def require_triton() -> None:
    """torch and triton, or no test. Imports neither: triton reads its environment only once."""
    for name in ("torch", "triton"):
        if importlib.util.find_spec(name) is None:
            give_up(f"{name} is missing; pip install 'kvready[gpu]'")


class FakeCuda:
    """The fake driver's library: what it was told, and how it is to behave."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self._library = ctypes.CDLL(self.path)
        self.kept: list[object] = []  # memory that it was told of lives as long as it does

    def driver(self) -> CudaDriver:
        """Opened as the real one is."""
        return CudaDriver(self.path)

    def told(self, name: str) -> int:
        """A counter of the library."""
        return ctypes.c_long.in_dll(self._library, f"fake_{name}").value

    def setting(self, name: str) -> int:
        """The same for plain integers."""
        return ctypes.c_int.in_dll(self._library, f"fake_{name}").value

    def set(self, name: str, value: float) -> None:
        """Change how it behaves."""
        kinds = {"fail_copy": ctypes.c_long, "ahead_seconds": ctypes.c_double}
        kind = kinds.get(name, ctypes.c_int)
        kind.in_dll(self._library, f"fake_{name}").value = value

    def batch_sizes(self) -> list[int]:
        """Copies in each batch so far."""
        kind = ctypes.c_long * 64
        return list(kind.in_dll(self._library, "fake_batch_sizes"))[: self.told("batches")]

    def register(self, address: int, size: int, kind: int = HOST_MEMORY, device: int = 0) -> None:
        """Let memory be pinned, or the device's."""
        self._library.fake_register(
            ctypes.c_size_t(address),
            ctypes.c_size_t(size),
            ctypes.c_int(kind),
            ctypes.c_int(device),
        )

    def register_pools(self, pools: Pools) -> None:
        """Both pools, each where it belongs."""
        self.register(pools.host_address, pools.host_pages * pools.host_page_stride_bytes)
        for address in pools.plane_addresses:
            self.register(address, pools.hbm_pages * pools.hbm_page_stride_bytes, DEVICE_MEMORY)

    def assert_nothing_is_left(self) -> None:
        """No order, stream, event, context or memory outlives its mover."""
        for name in ("pending", "streams", "events", "retained", "pushed", "allocated"):
            assert self.told(name) == 0, name
