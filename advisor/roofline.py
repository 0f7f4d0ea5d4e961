"""What a batch costs on a GPU by its data sheet: where the compute model starts. Pure formulas.

`t = fixed + max(F / (ranks * mfu * peak flops), bytes / (ranks * HBM bandwidth))`, with
`F = 2 N n + 4 L heads head_dim (n p + n (n+1) / 2) + 2 hidden vocab` for `n` new tokens after `p`.
Peak rates are vendors' figures for dense 16-bit arithmetic. The share of them that prefill attains
and the fixed time are assumptions, not measurements: evidence from batches replaces them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

from kvready.advisor.compute import ComputePrior
from kvready.kernels.model_shape import ModelShape

ASSUMED_MFU = 0.5  # of the peak, where matrices are large
ASSUMED_FIXED_SECONDS = 4e-3
WEIGHT_BYTES = 2  # 16-bit weights


class Gpu(NamedTuple):
    """Of one device: dense 16-bit peak, and bandwidth of its memory."""

    flops: float
    hbm_bytes_per_second: float


GPUS = {
    "a100-40gb": Gpu(312e12, 1.555e12),
    "a100-80gb": Gpu(312e12, 2.039e12),
    "b200": Gpu(2_250e12, 8.0e12),
    "gb200": Gpu(2_500e12, 8.0e12),
    "gh200": Gpu(989e12, 4.0e12),
    "h100-pcie": Gpu(756e12, 2.0e12),
    "h100": Gpu(989e12, 3.35e12),
    "h20": Gpu(148e12, 4.0e12),
    "h200": Gpu(989e12, 4.8e12),
    "l40s": Gpu(362e12, 0.864e12),
    "mi300x": Gpu(1_307e12, 5.3e12),
}


class Chunk(NamedTuple):
    """One request's share of a batch: so many new tokens after a context."""

    new_tokens: int
    context_tokens: int


class Roofline:
    """One model on so many ranks of one device."""

    def __init__(
        self,
        shape: ModelShape,
        device: Gpu,
        tensor_parallel: int = 1,
        mfu: float = ASSUMED_MFU,
        fixed_seconds: float = ASSUMED_FIXED_SECONDS,
    ) -> None:
        self.shape = shape
        self.fixed_seconds = fixed_seconds
        self.flops_per_second = tensor_parallel * mfu * device.flops
        self.bytes_per_second = tensor_parallel * device.hbm_bytes_per_second

    @cached_property
    def weight_bytes(self) -> int:
        """All weights, read once a batch."""
        return self.shape.total_parameters * WEIGHT_BYTES

    @cached_property
    def pair_flops(self) -> int:
        """Of a new token attending to one token: its scores and its weighted values."""
        shape, latent = self.shape, self.shape.latent
        if latent is None:
            return 4 * shape.layers * shape.q_heads * shape.head_dim
        widths = latent.nope_dim + latent.rope_dim + latent.value_dim
        return 2 * shape.layers * shape.q_heads * widths

    def flops(self, chunk: Chunk) -> float:
        """F of one request's share of a batch."""
        new, context = chunk
        pairs = new * context + new * (new + 1) // 2
        head = 2 * self.shape.hidden * self.shape.vocab
        return self._token_flops * new + self.pair_flops * pairs + head

    def batch_seconds(self, chunks: Sequence[Chunk]) -> float:
        """A batch of prefills, or of decodes as chunks of one token."""
        kv_tokens = sum(chunk.new_tokens + chunk.context_tokens for chunk in chunks)
        return self.seconds(sum(map(self.flops, chunks)), kv_tokens)

    def seconds(self, flops: float, kv_tokens: int) -> float:
        """A batch that computes so much and touches the KV of so many tokens."""
        moved = self.weight_bytes + kv_tokens * self.kv_bytes
        return self.fixed_seconds + max(
            flops / self.flops_per_second, moved / self.bytes_per_second
        )

    def prior(self, name: str) -> ComputePrior:
        """As coefficients. The fit is linear: it adds what the roofline takes the larger of, so
        that batches bound by neither alone start out too slow, by a factor of two at most."""
        batch = self.fixed_seconds + self.weight_bytes / self.bytes_per_second
        token = self._token_flops / self.flops_per_second
        pair = self.pair_flops / self.flops_per_second
        context = self.kv_bytes / self.bytes_per_second
        return ComputePrior(
            f"roofline:{name.replace(' ', '_')}",
            f"roofline of {name}: data sheet, MFU {ASSUMED_MFU} and "
            f"{ASSUMED_FIXED_SECONDS * 1e3:g} ms a batch assumed",
            (batch, token, pair, token, context),
            (batch, token, context),
        )

    @cached_property
    def _token_flops(self) -> float:
        return 2.0 * self.shape.active_linear_parameters

    @cached_property
    def kv_bytes(self) -> int:
        """Of a token, on all ranks together."""
        return self.shape.layout(page_tokens=1).kv_bytes_per_token
