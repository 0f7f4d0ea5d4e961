"""The `kvready` command: exit code 0 done, 1 something was found, 2 it could not be done."""

from __future__ import annotations

import errno
import os
import sys
from contextlib import suppress

from kvready.collectors.errors import KvreadyError
from kvready.kernels.errors import KernelError

CANNOT = 2
DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
OUTPUT = "the standard output"
SIDECAR_MODULES = frozenset(
    {
        "fastapi",
        "h11",
        "httpx",
        "prometheus_client",
        "pydantic",
        "pydantic_settings",
        "rich",
        "starlette",
        "typer",
        "uvicorn",
    }
)


def main() -> None:
    """Run the command line; errors that a user can mend are one line, never a traceback."""
    try:
        # Here, since the base install lacks what the commands are made of.
        from kvready.advisor.commands.app import app

        try:
            app()
        finally:
            sys.stdout.flush()  # here, where a refusal can still be told
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in SIDECAR_MODULES:
            raise
        _fail(
            f"{error.name} is not installed; the sidecar needs more than the engine's side does: "
            "pip install 'kvready[sidecar]'"
        )
    except (KvreadyError, KernelError) as error:
        _fail(str(error))
    except OSError as error:
        if error.errno not in DISK_FULL:
            raise
        _fail(f"cannot write {error.filename or OUTPUT}: {error.strerror}; free some space")


def _fail(message: str) -> None:
    print(f"error: {message}", file=sys.stderr)
    with suppress(OSError):
        sys.stdout.flush()
        sys.exit(CANNOT)
    # What the output still holds back would be tried once more at the end, and refused once more.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(CANNOT)


if __name__ == "__main__":
    main()
