"""torch on one of our streams: its import, its device, and why it may not do."""

from __future__ import annotations

import importlib
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from kvready.kernels.errors import MoverUnavailable

if TYPE_CHECKING:
    import torch

OLDEST_CAPABILITY = (8, 0)


class TorchDevice:
    """torch and a CUDA device of it; or a CPU, where an interpreter stands in for the GPU."""

    def __init__(self, ordinal: int, *, interpreted: bool = False) -> None:
        try:
            self.torch = importlib.import_module("torch")
        except ImportError as error:
            raise MoverUnavailable(
                f"this needs torch ({error}); pip install 'kvready[gpu]'"
            ) from error
        if not interpreted:
            self._require_cuda(ordinal)
        self.device: torch.device = (
            self.torch.device("cpu") if interpreted else self.torch.device("cuda", ordinal)
        )

    def on_stream(self, handle: int) -> AbstractContextManager[Any]:
        """Let torch order its work on a stream of the driver's for a while."""
        if self.device.type == "cpu":
            return nullcontext()
        stream = self.torch.cuda.ExternalStream(handle, device=self.device)
        return self.torch.cuda.stream(stream)  # type: ignore[no-any-return]

    def _require_cuda(self, ordinal: int) -> None:
        if not self.torch.cuda.is_available():
            raise MoverUnavailable(
                f"torch {self.torch.__version__} cannot use CUDA here; install a CUDA build of "
                "torch whose CUDA this driver supports"
            )
        capability = self.torch.cuda.get_device_capability(ordinal)
        if capability < OLDEST_CAPABILITY:
            raise MoverUnavailable(
                f"CUDA device {ordinal} has compute capability {capability[0]}.{capability[1]}, "
                f"needed is {OLDEST_CAPABILITY[0]}.{OLDEST_CAPABILITY[1]}; use dma_batch"
            )
