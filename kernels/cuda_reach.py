"""Whether a GPU's movers can reach the memory of two pools, asked of the driver."""

from __future__ import annotations

from kvready.kernels.cuda_driver import (
    DEVICE_MEMORY,
    DEVICE_ORDINAL,
    DEVICE_POINTER,
    HOST_MEMORY,
    MEMORY_TYPE,
    CudaDriver,
)
from kvready.kernels.errors import MoveError
from kvready.kernels.pools import Pools


def require_reachable(driver: CudaDriver, ordinal: int, pools: Pools) -> int:
    """Return the host pool's address as the device sees it, which may be another than the host's.

    Raises `MoveError` for host memory that is not pinned, or planes that are not on this device.
    """
    host_bytes = (pools.host_pages - 1) * pools.host_page_stride_bytes
    host_bytes += pools.planes * pools.fragment_bytes
    ends = (pools.host_address, pools.host_address + max(1, host_bytes) - 1)
    for address in ends:
        if driver.pointer_attribute(MEMORY_TYPE, address) != HOST_MEMORY:
            raise MoveError(
                f"host memory at {address:#x} is not pinned, so the GPU cannot reach it; allocate "
                "the pool with pin_memory=True or register it with cudaHostRegister"
            )
    for plane, address in enumerate(pools.plane_addresses):
        if driver.pointer_attribute(MEMORY_TYPE, address) != DEVICE_MEMORY:
            raise MoveError(f"plane {plane} at {address:#x} is no memory of a CUDA device")
        holder = driver.pointer_attribute(DEVICE_ORDINAL, address)
        if holder != ordinal:
            raise MoveError(
                f"plane {plane} lies on CUDA device {holder} and this mover runs on {ordinal}; "
                f"make a mover for device {holder}"
            )
    seen = driver.pointer_attribute(DEVICE_POINTER, pools.host_address)
    if seen is None:
        raise MoveError(
            "the host pool is pinned but not mapped into the device; register it with "
            "cudaHostRegisterMapped"
        )
    return seen
