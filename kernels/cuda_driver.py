"""The CUDA driver through ctypes: nothing to compile, and no torch for copies.

`cuMemcpyBatchAsync` is asked of the driver by name and version at run time. Its arguments changed
with 13.0, where the header gives the plain name to the new form; asking for 12.8 gives the form
with nine arguments on every driver since.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import byref, c_char_p, c_int, c_size_t, c_uint, c_uint64, c_void_p

from kvready.kernels.errors import MoveError, MoverUnavailable

LIBRARY = "libcuda.so.1"
BATCH_COPY_VERSION = 12080
LEGACY_STREAMS = (0, 1)  # the NULL stream and its name; both wait for every other stream
INVALID_VALUE = 1
NAME_BYTES = 256
MULTIPROCESSOR_COUNT = 16  # CUdevice_attribute

SOURCE_IN_STREAM_ORDER = 1  # the source may still be written by what the stream holds
SOURCE_AT_ANY_TIME = 3  # the source is stable
OVERLAP_WITH_COMPUTE = 1

MEMORY_TYPE, DEVICE_POINTER, DEVICE_ORDINAL = 2, 3, 9  # CUpointer_attribute
HOST_MEMORY, DEVICE_MEMORY = 1, 2  # CUmemorytype


class _Location(ctypes.Structure):
    _fields_ = [("type", c_int), ("id", c_int)]


class CopyAttributes(ctypes.Structure):
    """CUmemcpyAttributes: 24 bytes; the location hints matter to managed memory only."""

    _fields_ = [
        ("source_access_order", c_int),
        ("source_location", _Location),
        ("destination_location", _Location),
        ("flags", c_uint),
    ]


_BATCH_COPY = ctypes.CFUNCTYPE(
    c_int,
    c_void_p,  # destinations
    c_void_p,  # sources
    c_void_p,  # sizes
    c_size_t,  # count
    c_void_p,  # attributes
    c_void_p,  # first copy of each attribute
    c_size_t,  # attributes
    c_void_p,  # index of the copy that failed
    c_void_p,  # stream
)


class CudaDriver:
    """libcuda of this machine. Raises `MoverUnavailable` where there is none, or no device."""

    def __init__(self, library: str = LIBRARY) -> None:
        try:
            self._library = ctypes.CDLL(library)
        except OSError as error:
            raise MoverUnavailable(
                f"no CUDA device: {error}; run on a machine with an NVIDIA GPU, or use a CPU mover"
            ) from error
        version, devices = c_int(), c_int()
        for name, arguments in (
            ("cuInit", (c_uint(0),)),
            ("cuDriverGetVersion", (byref(version),)),
            ("cuDeviceGetCount", (byref(devices),)),
        ):
            failed = self.status(name, *arguments)
            if failed:
                raise MoverUnavailable(
                    f"no CUDA device: {self.described(name, failed)}; check `nvidia-smi`, "
                    "CUDA_VISIBLE_DEVICES and the container's GPU access"
                )
        if not devices.value:
            raise MoverUnavailable(
                "no CUDA device: the driver sees none; check `nvidia-smi` and CUDA_VISIBLE_DEVICES"
            )
        self.version = version.value
        self.devices = devices.value
        self._batch_copy: Callable[..., int] | None = None

    @property
    def version_text(self) -> str:
        """As `nvidia-smi` names it, 12.8 for 12080."""
        return _version_text(self.version)

    def status(self, name: str, *arguments: object) -> int:
        """Call a function of the driver and return its code. Raises where it has none so named."""
        try:
            function = self._library[name]
        except AttributeError as error:
            raise MoverUnavailable(
                f"the CUDA driver lacks {name}; update it to {_version_text(BATCH_COPY_VERSION)} "
                "or newer"
            ) from error
        return int(function(*arguments))

    def call(self, name: str, *arguments: object) -> None:
        """Call a function of the driver. Raises `MoveError` with the name of its error."""
        failed = self.status(name, *arguments)
        if failed:
            raise MoveError(self.described(name, failed))

    def described(self, name: str, code: int) -> str:
        """An error of the driver in its own words."""
        label, text = c_char_p(), c_char_p()
        self.status("cuGetErrorName", c_int(code), byref(label))
        self.status("cuGetErrorString", c_int(code), byref(text))
        words = (text.value or b"no description").decode(errors="replace")
        error = (label.value or b"unknown error").decode(errors="replace")
        return f"{name}: {error} ({code}), {words}"

    def device(self, ordinal: int) -> int:
        """The driver's handle of a device. Raises `MoverUnavailable` for one that is not there."""
        if not 0 <= ordinal < self.devices:
            raise MoverUnavailable(
                f"CUDA device {ordinal} of {self.devices}; name one that CUDA_VISIBLE_DEVICES shows"
            )
        device = c_int()
        self.call("cuDeviceGet", byref(device), c_int(ordinal))
        return device.value

    def device_name(self, ordinal: int) -> str:
        """What the maker calls it; a MIG instance says so."""
        name = ctypes.create_string_buffer(NAME_BYTES)
        self.call("cuDeviceGetName", name, c_int(NAME_BYTES), c_int(self.device(ordinal)))
        return name.value.decode(errors="replace")

    def multiprocessors(self, ordinal: int) -> int:
        """SMs that this process can use; of a MIG instance, only its own."""
        count = c_int()
        device = c_int(self.device(ordinal))
        self.call("cuDeviceGetAttribute", byref(count), c_int(MULTIPROCESSOR_COUNT), device)
        return count.value

    def pointer_attribute(self, attribute: int, address: int) -> int | None:
        """What the driver knows of an address; None where it was never given to it."""
        value = c_uint64()
        failed = self.status(
            "cuPointerGetAttribute", byref(value), c_int(attribute), c_uint64(address)
        )
        if failed == INVALID_VALUE:
            return None
        if failed:
            raise MoveError(self.described("cuPointerGetAttribute", failed))
        return value.value

    def require_batch_copy(self) -> None:
        """Look up the batch copy. Raises `MoverUnavailable` for a driver that is too old."""
        wanted = _version_text(BATCH_COPY_VERSION)
        if self.version < BATCH_COPY_VERSION:
            raise MoverUnavailable(
                f"the CUDA driver speaks {self.version_text} and copies in batches need {wanted}; "
                "update the driver (570 or newer), or use dma_per_page"
            )
        entry, found = c_void_p(), c_int()
        failed = self.status(
            "cuGetProcAddress_v2",
            c_char_p(b"cuMemcpyBatchAsync"),
            byref(entry),
            c_int(BATCH_COPY_VERSION),
            c_uint64(0),
            byref(found),
        )
        if failed or not entry.value:
            raise MoverUnavailable(
                f"the CUDA driver says {self.version_text} but has no cuMemcpyBatchAsync of "
                f"{wanted}; repair the driver's installation, or use dma_per_page"
            )
        self._batch_copy = _BATCH_COPY(entry.value)

    def copy(self, destination: int, source: int, size: int, stream: int) -> None:
        """Order one copy between any two places. Bytes."""
        refuse_legacy_stream(stream)
        self.call(
            "cuMemcpyAsync",
            c_uint64(destination),
            c_uint64(source),
            c_size_t(size),
            c_void_p(stream),
        )

    def copy_batch(
        self,
        destinations: int,
        sources: int,
        sizes: int,
        count: int,
        attributes: CopyAttributes,
        stream: int,
    ) -> None:
        """Order `count` copies, described by three arrays, in no order of their own."""
        refuse_legacy_stream(stream)
        if self._batch_copy is None:
            self.require_batch_copy()
        assert self._batch_copy is not None
        first_copy, failed_copy = c_size_t(0), c_size_t(count)
        failed = self._batch_copy(
            destinations,
            sources,
            sizes,
            count,
            byref(attributes),
            byref(first_copy),
            1,
            byref(failed_copy),
            stream,
        )
        if failed:
            where = f", copy {failed_copy.value} of {count}" if failed_copy.value < count else ""
            raise MoveError(self.described("cuMemcpyBatchAsync", failed) + where)


def refuse_legacy_stream(stream: int) -> None:
    """Raise `MoveError` for the stream that all others wait for; batch copies refuse it too."""
    if stream in LEGACY_STREAMS:
        raise MoveError(
            "copies on CUDA's legacy NULL stream would stop every other stream; "
            "give a stream of their own"
        )


def _version_text(version: int) -> str:
    return f"{version // 1000}.{version % 1000 // 10}"
