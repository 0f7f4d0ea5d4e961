"""Keeps the README's demo output true: prints the README as it should be, or rewrites it.

`python .ci/readme.py KVREADY [--write]`
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

README = Path("README.md")
BEGIN, END = "<!-- demo -->\n", "<!-- /demo -->\n"
FIRST_LINE = "Predicted against actual"


def demo_output(kvready: str) -> str:
    """What `kvready demo` prints on a terminal of 80 columns, conditions left out."""
    done = subprocess.run(
        [kvready, "demo"],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "COLUMNS": "80"},
    )
    lines = [line.rstrip() for line in done.stdout.splitlines()]
    first = next(n for n, line in enumerate(lines) if line.startswith(FIRST_LINE))
    return "\n".join(lines[first:]).strip()


def with_output(readme: str, output: str) -> str:
    """The README with this output between its marks."""
    before, _, rest = readme.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}```\n{output}\n```\n{END}{after}"


def main() -> None:
    readme = README.read_text(encoding="utf-8")
    wanted = with_output(readme, demo_output(sys.argv[1]))
    if "--write" in sys.argv:
        README.write_text(wanted, encoding="utf-8")
    elif wanted != readme:
        sys.exit("README.md shows an older demo; run `make generate`")


if __name__ == "__main__":
    main()
