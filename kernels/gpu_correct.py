"""Whether the GPU's movers bring the right bytes, held against torch and against each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from kvready.kernels.errors import KernelError
from kvready.kernels.pools import Direction, Move, Mover, Pools
from kvready.kernels.torch_device import TorchDevice

if TYPE_CHECKING:
    import torch

POISON = 0xA5
DEVICE_GAP_BYTES = 48  # after each page of a plane: engines interleave what is not ours
SEED = 1


@dataclass(frozen=True)
class Case:
    """Pools and a move between them."""

    name: str
    planes: int
    fragment_bytes: int
    pool_pages: int
    pages: int
    first_plane: int = 0
    window: int | None = None


CASES = (
    Case("GQA, 8 heads of 128, page 16", 16, 32 << 10, 48, 37),
    Case("GQA, 2 heads of 128, page 1", 16, 512, 700, 601),
    Case("GQA, 8 heads of 128, page 32, one layer", 16, 64 << 10, 24, 11, 6, 2),
    Case("MLA, 576 elements, page 1", 27, 1152, 300, 257),
    Case("MLA, 576 elements, page 64, two layers", 27, 64 * 1152, 12, 7, 25, 2),
    Case("one page", 64, 2 << 10, 3, 1),
    Case("fragments of 16 bytes", 5, 16, 900, 801),
    Case("fragments of 4 MiB", 2, 4 << 20, 5, 3),
)


@dataclass(frozen=True)
class Verdict:
    """One case by one mover; `wrong` is empty where all bytes are right."""

    case: Case
    direction: Direction
    mover: str
    wrong: str


class Memory(Protocol):
    """Where pools are made: tensors of bytes, of pinned memory and of the device."""

    device: TorchDevice

    def host_tensor(self, size: int) -> torch.Tensor:
        """Pinned."""
        ...

    def hbm_tensor(self, size: int) -> torch.Tensor:
        """Of the device."""
        ...

    def settle(self) -> None:
        """Wait for what torch has ordered on streams of its own."""
        ...


class CheckedPools:
    """The two pools of a case as torch tensors: the side to read at random, the other poisoned."""

    def __init__(self, case: Case, direction: Direction, memory: Memory) -> None:
        torch = memory.device.torch
        self.case, self.direction = case, direction
        stride = case.fragment_bytes + DEVICE_GAP_BYTES
        generator = torch.Generator().manual_seed(SEED)
        self.host = memory.host_tensor(case.pool_pages * case.planes * case.fragment_bytes)
        self.hbm = [memory.hbm_tensor(case.pool_pages * stride) for _ in range(case.planes)]
        read = [self.host] if direction is Direction.LOAD else self.hbm
        for tensor in read:
            noise = torch.randint(0, 256, tensor.shape, generator=generator, dtype=torch.uint8)
            tensor.copy_(noise)
        pairs = [torch.randperm(case.pool_pages, generator=generator) for _ in range(2)]
        host_pages, hbm_pages = (pair[: case.pages].tolist() for pair in pairs)
        self.move = Move(direction, host_pages, hbm_pages, case.first_plane, case.window)
        self.pools = Pools(
            host_address=self.host.data_ptr(),
            host_pages=case.pool_pages,
            host_page_stride_bytes=case.planes * case.fragment_bytes,
            plane_addresses=tuple(plane.data_ptr() for plane in self.hbm),
            hbm_pages=case.pool_pages,
            hbm_page_stride_bytes=stride,
            fragment_bytes=case.fragment_bytes,
        )

    def written(self) -> list[torch.Tensor]:
        """All of the side that a move writes to."""
        return self.hbm if self.direction is Direction.LOAD else [self.host]

    def poison(self) -> None:
        """Fill what is to be written with what must not remain, nor be touched beside it."""
        for tensor in self.written():
            tensor.fill_(POISON)

    def by_reference(self) -> list[torch.Tensor]:
        """What torch's own indexing leaves on the written side."""
        case, move = self.case, self.move
        host = self.host.cpu().clone().view(case.pool_pages, case.planes, case.fragment_bytes)
        planes = [plane.cpu().clone().view(case.pool_pages, -1) for plane in self.hbm]
        for number in move.plane_window(self.pools):
            inside = planes[number][:, : case.fragment_bytes]
            if self.direction is Direction.LOAD:
                inside[move.hbm_pages] = host[move.host_pages, number]
            else:
                host[move.host_pages, number] = inside[move.hbm_pages]
        result = planes if self.direction is Direction.LOAD else [host]
        return [tensor.flatten() for tensor in result]

    def snapshot(self) -> list[torch.Tensor]:
        """The written side as it is now."""
        return [tensor.cpu().clone().flatten() for tensor in self.written()]


def verdicts(
    cases: Sequence[Case], movers: Mapping[str, Mover], memory: Memory
) -> Iterator[Verdict]:
    """Every case in both directions by every mover, each bitwise beside the reference."""
    for case in cases:
        for direction in Direction:
            pools = CheckedPools(case, direction, memory)
            pools.poison()
            memory.settle()
            expected = pools.by_reference()
            for label, mover in movers.items():
                pools.poison()
                memory.settle()
                yield Verdict(case, direction, label, _wrong(mover, pools, expected))


def _wrong(mover: Mover, checked: CheckedPools, expected: list[torch.Tensor]) -> str:
    try:
        moved = mover.move(checked.pools, checked.move)
    except KernelError as error:
        return str(error)
    differing = sum(
        int((found != wanted).sum())
        for found, wanted in zip(checked.snapshot(), expected, strict=True)
    )
    if differing:
        return f"{differing} bytes differ from torch's"
    told = checked.move.fragments(checked.pools) * checked.case.fragment_bytes
    return "" if moved == told else f"{moved} bytes reported, {told} moved"
