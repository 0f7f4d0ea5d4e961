"""`make gpu-check`: are the GPU's movers right, how fast are they, and a link profile that says so.

Under four minutes on a GPU. Without one it says "not run", with the reason, and ends with 0.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from kvready.kernels.errors import KernelError, MoverUnavailable

SWEEP_SECONDS = 120.0
UNTRIED = (
    "The GPU's movers were never run on hardware: the gather equals its reference in Triton's\n"
    "interpreter and compiles for sm_80, sm_90 and sm_100; the copies were ordered of a stand-in\n"
    "for the driver. Run this on a machine with a GPU before relying on them."
)
DEFAULT_OUT = Path("build/gpu-link-profile.json")


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line. 0: right, or not run; 1: wrong bytes or a failure."""
    parser = argparse.ArgumentParser(prog="make gpu-check", description=__doc__)
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT, help="where the profile goes")
    parser.add_argument("--seconds", type=float, default=SWEEP_SECONDS, help="of the sweep, about")
    parser.add_argument("--device", type=int, default=0, help="CUDA device")
    options = parser.parse_args(arguments)
    try:
        session = importlib.import_module("kvready.kernels.gpu_session")
        with closing(session.GpuSession(options.device)) as opened:
            return int(session.check(opened, options.out, options.seconds))
    except ImportError as error:
        print(f"not run: {error}; pip install 'kvready[gpu]'")
    except MoverUnavailable as error:
        print(f"not run: {error}")
    except KernelError as error:
        print(f"FAILED: {error}", file=sys.stderr)
        return 1
    print(UNTRIED)
    return 0


if __name__ == "__main__":
    sys.exit(main())
