"""Which bytes a page of KV state is made of, and where they lie in either pool.

The host pool is page-first, `[page][layer][plane][token][head][element]`: all of a page is one
range, which suits disks and networks. The device pool is layer-first,
`[layer][plane][page][token][head][element]`: all of a layer is one range, which suits attention.
Between the two a page falls into one fragment per plane of each layer (Strata, OSDI 2026, section
4.2).
"""

from __future__ import annotations

from dataclasses import dataclass

from kvready.kernels.errors import LayoutError

KEY_AND_VALUE = 2
LATENT = 1  # MLA keeps one compressed plane for keys and values


@dataclass(frozen=True)
class KvLayout:
    """The KV state of a model, as one of `tensor_parallel` ranks holds it."""

    layers: int
    planes_per_layer: int  # KEY_AND_VALUE, or LATENT
    kv_heads: int  # of the whole model
    head_dim: int  # elements; MLA: latent and rope together
    dtype_bytes: int
    page_tokens: int
    tensor_parallel: int = 1

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value < 1:
                raise LayoutError(f"{name}={value}: a KV layout needs at least 1")
        if self.planes_per_layer not in (KEY_AND_VALUE, LATENT):
            raise LayoutError(
                f"planes_per_layer={self.planes_per_layer}: say {KEY_AND_VALUE} for keys and "
                f"values, {LATENT} for MLA's latent"
            )
        if self.kv_heads % self.tensor_parallel and self.tensor_parallel % self.kv_heads:
            raise LayoutError(
                f"{self.kv_heads} KV heads cannot be shared evenly by {self.tensor_parallel} "
                "ranks; choose a tensor_parallel that divides them, or a multiple of them"
            )

    @property
    def rank_kv_heads(self) -> int:
        """KV heads that one rank holds; where there are more ranks than heads, they are copied."""
        return max(1, self.kv_heads // self.tensor_parallel)

    @property
    def planes(self) -> int:
        """Fragments that a page falls into between the two pools."""
        return self.layers * self.planes_per_layer

    @property
    def fragment_bytes(self) -> int:
        """Contiguous bytes of one page in one plane, on one rank."""
        return self.page_tokens * self.rank_kv_heads * self.head_dim * self.dtype_bytes

    @property
    def page_bytes(self) -> int:
        """All of a page on one rank."""
        return self.planes * self.fragment_bytes

    @property
    def kv_bytes_per_token(self) -> int:
        """Of the whole model, each head counted once."""
        return self.planes * self.kv_heads * self.head_dim * self.dtype_bytes

    @property
    def rank_bytes_per_token(self) -> int:
        """What one rank holds, and moves, for a token."""
        return self.page_bytes // self.page_tokens

    def pages(self, tokens: int) -> int:
        """Pages that hold so many tokens, the last one perhaps in part."""
        return -(-tokens // self.page_tokens)

    def host_offset(self, page: int, plane: int) -> int:
        """Bytes from the start of the page-first pool to a fragment."""
        return page * self.page_bytes + plane * self.fragment_bytes

    def hbm_offset(self, page: int, plane: int, pool_pages: int) -> int:
        """Bytes from the start of a layer-first pool of `pool_pages` to a fragment."""
        return (plane * pool_pages + page) * self.fragment_bytes
