"""Prometheus text as samples: only what begins with a wanted prefix, bounded, nothing decided.

Plain Python, since collectors load with the base install; the reference parser is the oracle of
its tests. Lines of other metrics cost one comparison.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import NamedTuple

MAX_SAMPLES = 100_000

SAMPLE = re.compile(
    r"([A-Za-z_:][A-Za-z0-9_:]*)"
    r'(?:\{((?:[^"}]|"(?:[^"\\]|\\.)*")*)\})?'
    r"[ \t]+([^ \t]+)(?:[ \t]|$)"
)
LABEL = re.compile(r'([A-Za-z_][A-Za-z0-9_]*)[ \t]*=[ \t]*"((?:[^"\\]|\\.)*)"')
ESCAPE = re.compile(r'\\(["\\n])')


class Sample(NamedTuple):
    """One line of a page."""

    name: str
    labels: dict[str, str]
    value: float


class Samples(NamedTuple):
    """What a page holds of the wanted names. `malformed` counts lines that could not be read."""

    samples: list[Sample]
    malformed: int
    truncated: bool


def read_samples(text: str, prefixes: tuple[str, ...]) -> Samples:
    """The samples whose names begin with one of the prefixes, in the page's order."""
    found: list[Sample] = []
    malformed = 0
    for line in _lines(text, prefixes):
        if len(found) >= MAX_SAMPLES:
            return Samples(found, malformed, truncated=True)
        sample = _sample(line)
        if sample is None:
            malformed += 1
        else:
            found.append(sample)
    return Samples(found, malformed, truncated=False)


def _lines(text: str, prefixes: tuple[str, ...]) -> Iterator[str]:
    for line in text.split("\n"):
        if line.startswith(prefixes):
            yield line


def _sample(line: str) -> Sample | None:
    match = SAMPLE.match(line)
    if match is None:
        return None
    name, labels, value = match.groups()
    try:
        number = float(value)
    except ValueError:
        return None
    if not math.isfinite(number):  # no count and no recording can hold it
        return None
    pairs = LABEL.findall(labels) if labels else ()
    return Sample(name, {key: _unescaped(text) for key, text in pairs}, number)


def _unescaped(text: str) -> str:
    if "\\" not in text:
        return text
    return ESCAPE.sub(lambda match: {"n": "\n"}.get(match[1], match[1]), text)
