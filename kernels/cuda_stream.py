"""A CUDA stream of a mover's own, with events around what runs on it.

`close` raises nothing of what the driver says: after a kernel's failure it refuses every call, and
that failure is what must be told, not the last of those that follow it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import byref, c_float, c_int, c_size_t, c_uint, c_uint64, c_void_p

from kvready.kernels.cuda_driver import CudaDriver

NON_BLOCKING = 1  # does not wait for the legacy stream
ANCHOR_TRIES = 5
CLOSE_SECONDS = 1e-4  # between the two clocks; ordering and waiting take a tenth of it


class CudaContext:
    """The context that torch uses on a device too. One holder of many; `close` gives it back."""

    def __init__(self, driver: CudaDriver, ordinal: int = 0) -> None:
        self.driver = driver
        self.ordinal = ordinal
        self._device = driver.device(ordinal)
        self._handle = c_void_p()
        driver.call("cuDevicePrimaryCtxRetain", byref(self._handle), c_int(self._device))

    @contextmanager
    def current(self) -> Iterator[None]:
        """Make it this thread's context for a while, and then the one before again."""
        self.driver.call("cuCtxPushCurrent_v2", self._handle)
        try:
            yield
        finally:
            self.driver.call("cuCtxPopCurrent_v2", byref(c_void_p()))

    def close(self) -> None:
        """Safe twice."""
        if self._handle.value:
            self._handle = c_void_p()
            self.driver.status("cuDevicePrimaryCtxRelease_v2", c_int(self._device))


class CudaEvent:
    """A mark in a stream. Its context must be current wherever it is used."""

    def __init__(self, driver: CudaDriver) -> None:
        self._driver = driver
        self._handle = c_void_p()
        driver.call("cuEventCreate", byref(self._handle), c_uint(0))

    def record(self, stream: int) -> None:
        """Mark what was ordered so far."""
        self._driver.call("cuEventRecord", self._handle, c_void_p(stream))

    def synchronize(self) -> None:
        """Wait until it is passed."""
        self._driver.call("cuEventSynchronize", self._handle)

    def seconds_since(self, earlier: CudaEvent) -> float:
        """Between two marks that were both passed, perhaps on different streams."""
        milliseconds = c_float()
        self._driver.call("cuEventElapsedTime", byref(milliseconds), earlier._handle, self._handle)
        return milliseconds.value / 1000

    def close(self) -> None:
        """Safe twice."""
        if self._handle.value:
            handle, self._handle = self._handle, c_void_p()
            self._driver.status("cuEventDestroy_v2", handle)


class CudaStream:
    """A stream that waits for no other. Its context must be current wherever it is used."""

    def __init__(self, context: CudaContext) -> None:
        self._driver = context.driver
        handle = c_void_p()
        self._driver.call("cuStreamCreate", byref(handle), c_uint(NON_BLOCKING))
        self.handle = handle.value or 0

    def synchronize(self) -> None:
        """Wait until all that was ordered is done. Raises `MoveError` where it failed."""
        self._driver.call("cuStreamSynchronize", c_void_p(self.handle))

    def drain(self) -> None:
        """Wait after a failure: what was ordered before it may still write. Raises nothing of it,
        since the failure itself is being told."""
        self._driver.status("cuStreamSynchronize", c_void_p(self.handle))

    def close(self) -> None:
        """Safe twice."""
        if self.handle:
            handle, self.handle = self.handle, 0
            self._driver.status("cuStreamDestroy_v2", c_void_p(handle))


def anchored(event: CudaEvent, stream: CudaStream) -> float:
    """Tie the device's clock to this host's: when an idle stream passed `event`.

    Seconds of CLOCK_MONOTONIC, read just after; once more where something else had the CPU then.
    """
    for _ in range(ANCHOR_TRIES):
        before_seconds = time.monotonic()
        event.record(stream.handle)
        stream.synchronize()
        after_seconds = time.monotonic()
        if after_seconds - before_seconds <= CLOSE_SECONDS:
            break
    return after_seconds


class CudaBuffer:
    """Memory of the device, or pinned memory of the host. Bytes."""

    def __init__(self, driver: CudaDriver, size: int, *, on_host: bool) -> None:
        self._driver = driver
        self._on_host = on_host
        self.size = size
        if on_host:
            place = c_void_p()
            driver.call("cuMemHostAlloc", byref(place), c_size_t(size), c_uint(0))
            self.address = place.value or 0
        else:
            address = c_uint64()
            driver.call("cuMemAlloc_v2", byref(address), c_size_t(size))
            self.address = address.value

    def close(self) -> None:
        """Safe twice."""
        address, self.address = self.address, 0
        if address and self._on_host:
            self._driver.status("cuMemFreeHost", c_void_p(address))
        elif address:
            self._driver.status("cuMemFree_v2", c_uint64(address))
