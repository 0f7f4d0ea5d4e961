"""The `kvready` command: exit code 0 done, 1 something was found, 2 it could not be done."""

from __future__ import annotations

import sys

from kvready.collectors.errors import KvreadyError

CANNOT = 2
SIDECAR_MODULES = frozenset(
    {
        "fastapi",
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

        app()
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in SIDECAR_MODULES:
            raise
        _fail(
            f"{error.name} is not installed; the sidecar needs more than the engine's side does: "
            "pip install 'kvready[sidecar]'"
        )
    except KvreadyError as error:
        _fail(str(error))


def _fail(message: str) -> None:
    print(f"error: {message}", file=sys.stderr)
    sys.exit(CANNOT)


if __name__ == "__main__":
    main()
