"""The host tier's memory, page-first: all tensors of a block lie in one range."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from kvready.kernels.engine.pages import TensorPage
from kvready.kernels.pools import Pools

ALIGNMENT_BYTES = 64  # of pages: one cache line, which vector stores want


class HbmTensor(NamedTuple):
    """One of the engine's cache tensors: rows of bytes, one per block."""

    rows: torch.Tensor  # int8, [block][byte]
    page_bytes: int  # of a row, padding included


class HostPool:
    """Chunks of `slots` pages each. A page holds every tensor's part of one block, in order."""

    def __init__(
        self,
        memory: torch.Tensor,  # int8, flat
        chunks: int,
        slots: int,
        tensor_bytes: Sequence[int],
        first_byte: int = 0,
        chunk_stride_bytes: int | None = None,
        page_stride_bytes: int | None = None,
        release: Callable[[], None] | None = None,
    ) -> None:
        self._memory = memory
        self._release = release  # to be called when nothing here refers to the memory any more
        self._chunks = chunks
        self._slots = slots
        self._first_byte = first_byte
        self._page_stride = page_stride_bytes or sum(tensor_bytes)
        self._chunk_stride = chunk_stride_bytes or slots * self._page_stride
        self.tensors: list[torch.Tensor] = []  # int8, [chunk][slot][byte]
        offset = first_byte
        for width in tensor_bytes:
            shape = (chunks, slots, width)
            strides = (self._chunk_stride, self._page_stride, 1)
            self.tensors.append(torch.as_strided(memory, shape, strides, offset))
            offset += width

    @classmethod
    def allocate(cls, chunks: int, slots: int, tensor_bytes: Sequence[int]) -> HostPool:
        """A pool of its own memory. Zeros touch it now, so that no copy pays for page faults."""
        page_stride = -(-sum(tensor_bytes) // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        memory = torch.zeros(chunks * slots * page_stride, dtype=torch.int8)
        return cls(memory, chunks, slots, tensor_bytes, page_stride_bytes=page_stride)

    def close(self) -> None:
        """Let go of the memory. Safe twice; no copy may be under way."""
        self.tensors.clear()
        self._memory = torch.empty(0, dtype=torch.int8)
        release, self._release = self._release, None
        if release is not None:
            release()

    def pools(
        self, hbm: Sequence[HbmTensor], tensors_by_group: Sequence[Sequence[TensorPage]]
    ) -> Pools | str:
        """Both pools as a gather wants them, or why it cannot be used."""
        if len(tensors_by_group) != 1:
            return f"the cache has {len(tensors_by_group)} groups of blocks"
        [tensors] = tensors_by_group
        if [page.tensor for page in tensors] != list(range(len(self.tensors))):
            return "some cache tensors are shared between layers"
        if len({page.page_bytes for page in tensors}) != 1 or len({h.page_bytes for h in hbm}) != 1:
            return "pages of different layers differ in size"
        if self._slots > 1 and self._chunk_stride != self._slots * self._page_stride:
            return "pages are not evenly spaced in the host pool"
        if any(entry.rows.stride() != (entry.page_bytes, 1) for entry in hbm):
            return "a cache tensor's blocks are not contiguous"
        if len({entry.rows.shape[0] for entry in hbm}) != 1:
            return "cache tensors differ in blocks"
        stride = self._page_stride if self._slots > 1 else self._chunk_stride
        return Pools(
            host_address=self._memory.data_ptr() + self._first_byte,
            host_pages=self._chunks * self._slots,
            host_page_stride_bytes=stride,
            plane_addresses=tuple(entry.rows.data_ptr() for entry in hbm),
            hbm_pages=hbm[0].rows.shape[0],
            hbm_page_stride_bytes=hbm[0].page_bytes,
            fragment_bytes=tensors[0].page_bytes,
        )


def tensor_bytes(tensors: int, tensors_by_group: Sequence[Sequence[TensorPage]]) -> list[int]:
    """How much of each cache tensor's page a host page has to hold."""
    widths = [0] * tensors
    for group in tensors_by_group:
        for page in group:
            widths[page.tensor] = max(widths[page.tensor], page.page_bytes)
    return widths
