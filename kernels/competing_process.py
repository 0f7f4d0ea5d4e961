"""What a competing process runs: matrix products, each noted on a board shared with the parent.

`python -m kvready.kernels.competing_process FD PARENT`; see `competing`.
"""

from __future__ import annotations

import mmap
import os
import sys
import time

import numpy as np

from kvready.kernels.competing import BOARD_BYTES, HEADER_BYTES, KEPT_STEPS

SIDE = 256  # of a matrix: a step takes a fraction of a millisecond
WEIGHTS = 128  # matrices, 32 MiB in all


def main() -> None:
    """Multiply while the board says so; end with the parent."""
    board = mmap.mmap(int(sys.argv[1]), BOARD_BYTES)
    words = np.frombuffer(board, np.int64, HEADER_BYTES // 8)
    times = np.frombuffer(board, np.float64, offset=HEADER_BYTES)
    random = np.random.default_rng(1)
    weights = random.standard_normal((WEIGHTS, SIDE, SIDE), dtype=np.float32)
    activations = random.standard_normal((SIDE, SIDE), dtype=np.float32)
    product = np.empty_like(activations)
    parent = int(sys.argv[2])  # told, since it may be gone before this line runs
    count = 0
    while os.read(0, 1):  # nothing at all: the parent is gone
        while words[0] and os.getppid() == parent:
            started = time.monotonic()
            np.matmul(activations, weights[count % WEIGHTS], out=product)
            place = 2 * (count % KEPT_STEPS)
            times[place] = started
            times[place + 1] = time.monotonic()
            count += 1
            words[1] = count


if __name__ == "__main__":
    main()
