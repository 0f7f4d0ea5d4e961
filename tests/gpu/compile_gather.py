"""Compile the gather for GPUs that are not here and print, as JSON, what became of it."""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from kvready.kernels import gather_kernel

ACCESS = re.compile(r"\b((?:ld|st)\.global[\w.:]*)")


def compiled(capability: int, load: bool, fragment_bytes: int, timed: bool) -> dict[str, Any]:
    """One variant. No argument carries a hint: what the launcher may not know is not needed."""
    kernel = gather_kernel.kernel
    tile = gather_kernel.tile_for(fragment_bytes)
    signature = {
        parameter.name: "constexpr"
        if parameter.is_constexpr
        else parameter.annotation_type or "*i64"
        for parameter in kernel.params
    }
    constants = {"LOAD": load, "ROWS": tile.rows, "COLUMNS": tile.columns, "TIMED": timed}
    result = triton.compile(
        ASTSource(kernel, signature, constants, {}),
        target=GPUTarget("cuda", capability, 32),
        options={"num_warps": gather_kernel.WARPS},
    )
    text = result.asm["ptx"]
    return {
        "capability": capability,
        "load": load,
        "fragment_bytes": fragment_bytes,
        "timed": timed,
        "cubin_bytes": len(result.asm["cubin"]),
        "accesses": Counter(ACCESS.findall(text)),
        "clock": "%globaltimer" in text,
    }


if __name__ == "__main__":
    print(json.dumps([compiled(*variant) for variant in json.loads(sys.argv[1])]))
