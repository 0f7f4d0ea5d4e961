"""The headers that a collector wants, from a file that nothing else shows: they hold secrets."""

from __future__ import annotations

import re
from pathlib import Path

from kvready.advisor.service.access import read_secret
from kvready.collectors.errors import SettingsError

MAX_FILE_BYTES = 65_536
NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+\Z")
VALUE = re.compile(r"[\x21-\x7e](?:[\x20-\x7e\t]*[\x21-\x7e])?\Z")
SETTING = "telemetry.export_headers_file"


def read_headers(path: Path | None) -> dict[str, str]:
    """Its headers. Raises `SettingsError` that names a line, never what stands in it."""
    if path is None:
        return {}
    content = read_secret(path, SETTING, MAX_FILE_BYTES + 1)
    if len(content) > MAX_FILE_BYTES:
        raise SettingsError(f"{path} has over {MAX_FILE_BYTES} bytes; check {SETTING}")
    headers: dict[str, str] = {}
    for number, line in enumerate(content.decode("latin-1").splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, colon, value = line.partition(":")
        if not (colon and NAME.match(name.strip()) and VALUE.match(value.strip())):
            raise SettingsError(
                f"line {number} of {path} is no header; write `name: value`, or `#` and a remark"
            )
        headers[name.strip()] = value.strip()
    return headers
