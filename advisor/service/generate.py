"""Writes what is generated from code: docs/*.md and the OpenAPI snapshot.

`python -m kvready.advisor.service.generate --docs docs --golden tests/golden`
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer.main

from kvready.advisor import contract_schema
from kvready.advisor.commands.app import app as command_line
from kvready.advisor.engine_hazards import ENGINE_HAZARDS
from kvready.advisor.hooks.compatibility import compatibility_page
from kvready.advisor.pipeline import Pipeline
from kvready.advisor.service import policy_document
from kvready.advisor.service.app import create_app
from kvready.advisor.service.catalogue import CATALOGUE, FAMILIES, MAX_SERIES
from kvready.advisor.service.gate_document import gates_page
from kvready.advisor.service.metric import (
    BOUNDED,
    CONFIGURED,
    IDENTITY,
    Label,
    Metric,
)
from kvready.advisor.service.metric_questions import QUESTIONS
from kvready.advisor.service.sidecar import Sidecar
from kvready.advisor.service.tally import PairTally
from kvready.advisor.service.tap_labels import MAX_SHOWN_TAPS
from kvready.advisor.settings import (
    FOREIGN_PREFIXES,
    FOREIGN_VARIABLES,
    Settings,
    environment_name,
    flag_name,
    setting_names,
)
from kvready.collectors.counter_hazards import COUNTER_HAZARDS, span

NOTE = "<!-- Generated from the code by `make generate`; edit the code instead. -->\n"
SNAPSHOT_VERSION = "snapshot"  # so that a release alone does not change the file


def documents() -> dict[str, str]:
    """Every generated page, and the contract's schema, by file name."""
    return {
        "metrics.md": metrics(),
        "settings.md": settings(),
        "cli.md": commands(),
        "gates.md": NOTE + "\n" + gates_page(),
        "policies.md": NOTE + "\n" + policy_document.policies(),
        "compatibility.md": NOTE + "\n" + compatibility_page(),
        "vllm-counters.md": vllm_counters(),
        "readiness.schema.json": json.dumps(contract_schema.document(), indent=1) + "\n",
    }


def metrics() -> str:
    """The catalogue of metrics."""
    lines = [
        NOTE,
        "# Metrics",
        "",
        "`GET /metrics` answers in Prometheus text, or in OpenMetrics where the scraper asks for "
        "it. Counters start at zero for every label value. A metric of a level that no tap reaches "
        "is absent, since unknown is not zero; level `-` is the sidecar's own and always there: "
        "`kvready_level_reached` and `kvready_coverage_ratio` tell what is. A page has at most "
        f"{MAX_SERIES:,} series: what would be more is left out, and counted. OpenMetrics carries "
        "an example of each bucket of a histogram of requests: the latest request that fell in it.",
    ]
    for family in FAMILIES:
        lines += ["", f"## {family.capitalize()}", ""]
        lines += ["| metric | type | unit | level | labels | meaning |", "|---" * 6 + "|"]
        lines += [_metric_row(metric) for metric in CATALOGUE if metric.family is family]
    lines += ["", "## Questions", "", "| question | query |", "|---|---|"]
    lines += [f"| {one.question} | `{_cell(one.query)}` |" for one in QUESTIONS]
    return "\n".join(lines) + "\n"


def _cell(code: str) -> str:
    """Code in a cell of a table."""
    return code.replace("|", "\\|")


def _metric_row(metric: Metric) -> str:
    labels = "<br>".join(_label(label) for label in metric.labels) or "-"
    level = metric.level.value if metric.level else "-"
    return (
        f"| `{metric.name}` | {metric.kind} | {metric.unit or '-'} | {level} | {labels} "
        f"| {metric.help} |"
    )


def _label(label: Label) -> str:
    if label.source == CONFIGURED:
        return f"`{label.name}`: each configured tap, `overflow` for those after {MAX_SHOWN_TAPS}"
    if label.source == BOUNDED:
        named = ", ".join(label.values)
        return f"`{label.name}`: {named}, and the first few that come"
    if label.source == IDENTITY:
        return f"`{label.name}`: one value"
    return f"`{label.name}`: {', '.join(label.values)}"


def settings() -> str:
    """Every setting, its variable and its flag."""
    lines = [
        NOTE,
        "# Settings",
        "",
        "Layers, weakest first: defaults, a TOML file (`--config FILE` or `KVREADY_CONFIG`), "
        "variables, flags. A key, variable or flag that nothing reads is an error. "
        "`kvready settings` prints each effective value with its origin.",
        "",
        "| setting | default | variable | flag | meaning |",
        "|---|---|---|---|---|",
    ]
    defaults = Settings().model_dump(mode="json")
    for name in setting_names():
        section, key = name.split(".")
        model = type(getattr(Settings(), section))
        lines.append(
            f"| `{name}` | `{json.dumps(defaults[section][key])}` | `{environment_name(name)}` "
            f"| `--{flag_name(name)}` | {model.model_fields[key].description} |"
        )
    others = sorted(FOREIGN_VARIABLES) + [f"{prefix}*" for prefix in FOREIGN_PREFIXES]
    lines += ["", "Variables of the same prefix that are not settings: "
              + ", ".join(f"`{name}`" for name in others) + "."]  # fmt: skip
    return "\n".join(lines) + "\n"


def commands() -> str:
    """Every command with its arguments and options."""
    group: Any = typer.main.get_command(command_line)
    lines = [NOTE, "# Commands", "", str(group.help), ""]
    lines.append("Exit codes: 0 done, 1 something was found, 2 it could not be done.")
    for name, command in _named(group, "kvready"):
        lines += ["", f"## {name}", "", str(command.help).strip(), ""]
        lines += ["| parameter | meaning |", "|---|---|"]
        lines += [f"| {_parameter(p)} | {getattr(p, 'help', None) or ''} |" for p in command.params]
    return "\n".join(lines) + "\n"


def _named(group: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    """Commands by what is typed to run them; those of a group follow the group."""
    for name, command in group.commands.items():
        yield f"{prefix} {name}", command
        if hasattr(command, "commands"):
            yield from _named(command, f"{prefix} {name}")


def _parameter(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return f"`{parameter.name.upper()}`" + ("" if parameter.required else " (optional)")
    return ", ".join(f"`{spelling}`" for spelling in [*parameter.opts, *parameter.secondary_opts])


def vllm_counters() -> str:
    """Counters of vLLM that are wrong, and what goes wrong in its versions."""
    lines = [
        NOTE,
        "# vLLM by version: counters and hazards",
        "",
        "What `/metrics` counts wrongly, by version, and what kvready does about it. Where the "
        "version is not known (`GET /version`), every counter that some version got wrong is "
        "refused.",
        "",
        "| counter | versions | it was or is | kvready | use instead | source |",
        "|---" * 6 + "|",
    ]
    lines += [
        f"| {'<br>'.join(f'`{name}`' for name in one.metrics)} | {span(one)} | {one.wrong} "
        f"| {one.action} | {one.instead} | {', '.join(one.sources)} |"
        for one in COUNTER_HAZARDS
    ]
    lines += [
        "",
        "## Hazards",
        "",
        "What `kvready doctor` knows to go wrong in a version, where it is switched on there.",
        "",
        "| id | versions | with | what | cost | change | source |",
        "|---" * 7 + "|",
    ]
    lines += [
        f"| `hazard-{one.id}` | {one.versions} | {one.surface} | {one.what} | {one.cost} "
        f"| {one.fix} | {', '.join(one.sources)} |"
        for one in ENGINE_HAZARDS
    ]
    return "\n".join(lines) + "\n"


def openapi() -> str:
    """The API's description."""
    tally = PairTally()
    app = create_app(Sidecar(Settings(), Pipeline(tally), tally))
    app.version = SNAPSHOT_VERSION
    return json.dumps(app.openapi(), indent=1, sort_keys=True) + "\n"


def main() -> None:
    """Write all files into the named folders."""
    parser = argparse.ArgumentParser(description="Write what is generated from code.")
    parser.add_argument("--docs", type=Path, required=True, help="folder of the pages")
    parser.add_argument("--golden", type=Path, required=True, help="folder of openapi.json")
    arguments = parser.parse_args()
    for name, text in documents().items():
        (arguments.docs / name).write_text(text, encoding="utf-8")
    (arguments.golden / "openapi.json").write_text(openapi(), encoding="utf-8")


if __name__ == "__main__":
    main()
