"""The page's own script, style and icon. A name carries its content's digest: it may be kept."""

from __future__ import annotations

from hashlib import sha256
from importlib.resources import files

import msgspec

FOLDER = "static"
DIGEST_CHARACTERS = 16


class PageFile(msgspec.Struct, frozen=True):
    """One file as it is served. `path` is relative to the page."""

    path: str
    media_type: str
    content: bytes


def _file(name: str, ending: str, media_type: str) -> PageFile:
    content = (files(__package__) / FOLDER / f"{name}.{ending}").read_bytes()
    digest = sha256(content).hexdigest()[:DIGEST_CHARACTERS]
    return PageFile(f"{FOLDER}/{name}-{digest}.{ending}", media_type, content)


SCRIPT = _file("page", "js", "text/javascript; charset=utf-8")
STYLE = _file("page", "css", "text/css; charset=utf-8")
ICON = _file("icon", "svg", "image/svg+xml")
FILES = {file.path: file for file in (SCRIPT, STYLE, ICON)}
# Of all: a page in a browser learns from another one here that the sidecar was replaced.
ASSETS = sha256("".join(FILES).encode()).hexdigest()[:DIGEST_CHARACTERS]
