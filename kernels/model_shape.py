"""The numbers of a model that decide what its KV state weighs and what its prefill costs.

Parameters are counted from the shape, so that a wrong shape shows: the sum must close with what
the model's publisher says (tests/test_presets.py).
"""

from __future__ import annotations

from dataclasses import dataclass

from kvready.kernels.errors import LayoutError
from kvready.kernels.layout import KEY_AND_VALUE, LATENT, KvLayout

GATED_FFN_MATRICES = 3  # gate, up, down


@dataclass(frozen=True)
class LatentAttention:
    """MLA: keys and values are kept as one compressed vector and a rotary key."""

    kv_rank: int
    rope_dim: int
    nope_dim: int
    value_dim: int
    query_rank: int | None = None  # None: queries are not compressed

    def parameters(self, hidden: int, q_heads: int) -> int:
        """Of the projections of one layer."""
        queries = q_heads * (self.nope_dim + self.rope_dim)
        query = (
            hidden * queries if self.query_rank is None else self.query_rank * (hidden + queries)
        )
        latent = hidden * (self.kv_rank + self.rope_dim)
        unpacked = self.kv_rank * q_heads * (self.nope_dim + self.value_dim)
        return query + latent + unpacked + q_heads * self.value_dim * hidden


@dataclass(frozen=True)
class Experts:
    """A mixture of experts in place of the dense feed-forward part, after the first layers."""

    count: int
    per_token: int
    ffn: int
    shared: int = 0  # taken by every token, of the same size
    dense_layers: int = 0  # the first ones have none


@dataclass(frozen=True)
class ModelShape:
    """A decoder with dense attention in one group. Lengths in elements."""

    name: str
    layers: int
    hidden: int
    q_heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    kv_dtype_bytes: int = 2
    tied_embeddings: bool = False
    qkv_bias: bool = False
    latent: LatentAttention | None = None
    experts: Experts | None = None

    def layout(self, page_tokens: int, tensor_parallel: int = 1) -> KvLayout:
        """Its KV state in pages. Raises `LayoutError` where ranks cannot share the heads."""
        latent = self.latent
        return KvLayout(
            layers=self.layers,
            planes_per_layer=KEY_AND_VALUE if latent is None else LATENT,
            kv_heads=self.kv_heads if latent is None else 1,
            head_dim=self.head_dim if latent is None else latent.kv_rank + latent.rope_dim,
            dtype_bytes=self.kv_dtype_bytes,
            page_tokens=page_tokens,
            tensor_parallel=tensor_parallel,
        )

    @property
    def linear_parameters(self) -> int:
        """N_lin: all matrices between the embeddings."""
        return self._linear(every_expert=True)

    @property
    def active_linear_parameters(self) -> int:
        """Of those, what one token is multiplied with; fewer only with experts."""
        return self._linear(every_expert=False)

    @property
    def total_parameters(self) -> int:
        """N_total: with embeddings, norms, and biases of queries, keys and values."""
        embeddings = self.vocab * self.hidden * (1 if self.tied_embeddings else 2)
        return self.linear_parameters + embeddings + self._vectors()

    def check(self) -> ModelShape:
        """Itself. Raises `LayoutError` for numbers that contradict each other."""
        if self.q_heads % self.kv_heads:
            raise LayoutError(
                f"{self.q_heads} attention heads cannot share {self.kv_heads} KV heads evenly; "
                "correct num_attention_heads or num_key_value_heads"
            )
        experts = self.experts
        if experts is not None and (
            experts.per_token > experts.count or experts.dense_layers > self.layers
        ):
            raise LayoutError(
                f"{experts.per_token} of {experts.count} experts after {experts.dense_layers} of "
                f"{self.layers} layers cannot be; correct the numbers of experts"
            )
        return self

    def _linear(self, *, every_expert: bool) -> int:
        experts = self.experts
        dense_layers = self.layers if experts is None else experts.dense_layers
        parameters = self.layers * self._attention()
        parameters += dense_layers * GATED_FFN_MATRICES * self.hidden * self.ffn
        if experts is not None:
            taken = (experts.count if every_expert else experts.per_token) + experts.shared
            router = self.hidden * experts.count
            one = GATED_FFN_MATRICES * self.hidden * experts.ffn
            parameters += (self.layers - dense_layers) * (taken * one + router)
        return parameters

    def _attention(self) -> int:
        if self.latent is not None:
            return self.latent.parameters(self.hidden, self.q_heads)
        return 2 * self.hidden * self.head_dim * (self.q_heads + self.kv_heads)

    def _vectors(self) -> int:
        """Norms before attention, before the feed-forward part and at the end; biases."""
        vectors = (2 * self.layers + 1) * self.hidden
        if self.latent is not None:
            vectors += self.layers * (self.latent.kv_rank + (self.latent.query_rank or 0))
        if self.qkv_bias:
            vectors += self.layers * self.head_dim * (self.q_heads + 2 * self.kv_heads)
        return vectors
