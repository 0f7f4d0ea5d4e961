"""The rule file: what it alerts of and records, and the same text on a clock that runs faster."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

import yaml

RULES = Path(__file__).parent / "rules" / "kvready.rules.yaml"

# A window, an offset, or a key of the file; nothing else in it is a duration.
_DURATION = re.compile(
    r"(?P<before>\[|\boffset |^ +(?:for|interval): )(?P<count>\d+)(?P<unit>[smhd])(?=\]|\b)",
    re.MULTILINE,
)
_MILLISECONDS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


class Alert(NamedTuple):
    """One alert as the file has it."""

    name: str
    group: str
    interval: str
    expression: str
    holds_for: str
    severity: str
    annotations: dict[str, str]


def text() -> str:
    """The whole file."""
    return RULES.read_text(encoding="utf-8")


def groups(rules: str) -> list[dict[str, Any]]:
    """Its groups, as Prometheus reads them."""
    found: list[dict[str, Any]] = yaml.safe_load(rules)["groups"]
    return found


def alerts(rules: str) -> list[Alert]:
    """Every alert, in order."""
    return [
        Alert(
            rule["alert"],
            group["name"],
            group["interval"],
            rule["expr"],
            rule.get("for", "0s"),
            rule["labels"]["severity"],
            rule["annotations"],
        )
        for group in groups(rules)
        for rule in group["rules"]
        if "alert" in rule
    ]


def recorded(rules: str) -> set[str]:
    """Names of recorded series."""
    return {
        rule["record"] for group in groups(rules) for rule in group["rules"] if "record" in rule
    }


def hastened(rules: str, factor: float) -> str:
    """The same text with every duration divided by a factor, in milliseconds."""

    def shorten(found: re.Match[str]) -> str:
        milliseconds = int(found["count"]) * _MILLISECONDS[found["unit"]] / factor
        return f"{found['before']}{max(1, round(milliseconds))}ms"

    return _DURATION.sub(shorten, rules)
