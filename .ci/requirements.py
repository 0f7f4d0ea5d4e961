"""Print the requirements of the base install and of the extras that are named."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path


def main() -> None:
    project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    wanted = project["dependencies"] + [line for name in sys.argv[1:] for line in extras[name]]
    print("\n".join(wanted))


if __name__ == "__main__":
    main()
