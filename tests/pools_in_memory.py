"""Two pools in this process's memory, and what a move between them must leave there."""

from __future__ import annotations

import ctypes
import random
from dataclasses import dataclass, field

from hypothesis import strategies as st

from kvready.kernels.pools import Direction, Move, Pools

POISON = 0xA5
GUARD_BYTES = 128  # on either side of a pool
MAX_PAGES = 10


@dataclass(frozen=True)
class Shape:
    """What the two pools look like, in bytes; the device pool's planes are apart and shuffled."""

    planes: int
    fragment_bytes: int
    host_pages: int
    hbm_pages: int
    host_gap: int = 0  # after a page
    hbm_gap: int = 0
    plane_gap: int = 0  # after a plane
    host_shift: int = 0  # of the first byte from an address that 64 divides
    hbm_shift: int = 0
    order_seed: int = 0  # of the planes in memory

    @property
    def host_stride(self) -> int:
        """Between neighbouring host pages."""
        return self.planes * self.fragment_bytes + self.host_gap

    @property
    def hbm_stride(self) -> int:
        """Between neighbouring pages of a plane."""
        return self.fragment_bytes + self.hbm_gap


# More than what wakes other threads, at addresses that no vector divides.
SHARED = Shape(64, 2048 + 8, 20, 24, host_shift=24, hbm_shift=8, host_gap=8)


@dataclass
class Memory:
    """Both pools: the one a move reads holds anything but poison, the other nothing else."""

    shape: Shape
    direction: Direction
    seed: int = 0
    host: ctypes.Array[ctypes.c_char] = field(init=False)
    hbm: ctypes.Array[ctypes.c_char] = field(init=False)

    def __post_init__(self) -> None:
        shape = self.shape
        self._plane_bytes = shape.hbm_pages * shape.hbm_stride + shape.plane_gap
        self._places = random.Random(shape.order_seed).sample(range(shape.planes), shape.planes)
        self.host = self._filled(shape.host_pages * shape.host_stride, Direction.LOAD)
        self.hbm = self._filled(shape.planes * self._plane_bytes, Direction.STORE)
        self._host_start = _start(self.host, shape.host_shift)
        self._hbm_start = _start(self.hbm, shape.hbm_shift)

    def _filled(self, length: int, read_in: Direction) -> ctypes.Array[ctypes.c_char]:
        length += 2 * GUARD_BYTES
        content = bytes([POISON]) * length
        if self.direction is read_in:
            content = random.Random(self.seed).randbytes(length).replace(bytes([POISON]), b"\0")
        return ctypes.create_string_buffer(content, length)

    @property
    def pools(self) -> Pools:
        """As a mover is told of them."""
        shape = self.shape
        first_plane = ctypes.addressof(self.hbm) + self._hbm_start
        return Pools(
            ctypes.addressof(self.host) + self._host_start,
            shape.host_pages,
            shape.host_stride,
            tuple(first_plane + place * self._plane_bytes for place in self._places),
            shape.hbm_pages,
            shape.hbm_stride,
            shape.fragment_bytes,
        )

    def content(self) -> tuple[bytes, bytes]:
        """All of both, guards included."""
        return self.host.raw, self.hbm.raw

    def expected(self, move: Move) -> tuple[bytes, bytes]:
        """Both after the move, written down byte range by byte range."""
        shape = self.shape
        host, hbm = bytearray(self.host.raw), bytearray(self.hbm.raw)
        for host_page, hbm_page in zip(move.host_pages, move.hbm_pages, strict=True):
            for plane in move.plane_window(self.pools):
                in_host = self._host_start + host_page * shape.host_stride
                in_host += plane * shape.fragment_bytes
                in_hbm = self._hbm_start + self._places[plane] * self._plane_bytes
                in_hbm += hbm_page * shape.hbm_stride
                host_range = slice(in_host, in_host + shape.fragment_bytes)
                hbm_range = slice(in_hbm, in_hbm + shape.fragment_bytes)
                if move.direction is Direction.LOAD:
                    hbm[hbm_range] = host[host_range]
                else:
                    host[host_range] = hbm[hbm_range]
        return bytes(host), bytes(hbm)


def _start(buffer: ctypes.Array[ctypes.c_char], shift: int) -> int:
    """Where the pool begins in its buffer: so many bytes after a multiple of 64."""
    return -ctypes.addressof(buffer) % 64 + shift


@st.composite
def shapes(draw: st.DrawFn) -> Shape:
    """Pools of all sorts: fragments from a byte on, gaps, bases that nothing divides."""
    gaps = st.sampled_from((0, 0, 1, 16, 48))
    shifts = st.one_of(st.just(0), st.integers(0, 63))
    around = st.sampled_from((16, 64, 128, 256, 512, 1024))
    return Shape(
        planes=draw(st.integers(1, 6)),
        fragment_bytes=draw(
            st.one_of(
                st.integers(1, 130), around, st.builds(int.__add__, around, st.integers(-3, 3))
            )
        ),
        host_pages=draw(st.integers(1, MAX_PAGES)),
        hbm_pages=draw(st.integers(1, MAX_PAGES)),
        host_gap=draw(gaps),
        hbm_gap=draw(gaps),
        plane_gap=draw(gaps),
        host_shift=draw(shifts),
        hbm_shift=draw(shifts),
        order_seed=draw(st.integers(0, 3)),
    )


@st.composite
def moves(draw: st.DrawFn, shape: Shape) -> Move:
    """Good moves: a page may be read twice, never written twice."""
    direction = draw(st.sampled_from(Direction))
    read_pages, written_pages = shape.host_pages, shape.hbm_pages
    if direction is Direction.STORE:
        read_pages, written_pages = written_pages, read_pages
    written = draw(st.lists(st.integers(0, written_pages - 1), unique=True))
    read = draw(
        st.lists(st.integers(0, read_pages - 1), min_size=len(written), max_size=len(written))
    )
    first = draw(st.integers(0, shape.planes - 1))
    planes = draw(st.one_of(st.none(), st.integers(1, shape.planes - first)))
    if direction is Direction.LOAD:
        return Move(direction, read, written, first, planes)
    return Move(direction, written, read, first, planes)
