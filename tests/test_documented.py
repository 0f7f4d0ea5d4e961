"""What a user can set, type, read or switch is documented: what is not fails here."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from kvready.advisor.commands.app import app
from kvready.advisor.service.catalogue import CATALOGUE
from kvready.advisor.settings import Settings, environment_name, flag_name, setting_names

ROOT = Path(__file__).parents[1]
FOLDERS = ("advisor", "collectors", "kernels")
SHORTEST_HELP = 10  # characters
HELP_FLAGS = {"--help", "--install-completion", "--show-completion"}


def commands(group: Any = None, prefix: str = "kvready") -> Iterator[tuple[str, Any]]:
    """Every command, by what is typed to run it."""
    group = group or typer.main.get_command(app)
    for name, command in group.commands.items():
        yield f"{prefix} {name}", command
        if hasattr(command, "commands"):
            yield from commands(command, f"{prefix} {name}")


COMMANDS = dict(commands())


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def test_every_setting_says_what_it_is_for_and_is_on_its_page() -> None:
    text, settings = page("settings.md"), Settings()
    for name in setting_names():
        section, key = name.split(".")
        described = type(getattr(settings, section)).model_fields[key].description
        assert described, name
        assert len(described) >= SHORTEST_HELP, name
        row = f"| `{name}` |"
        assert row in text, name
        for spelling in (environment_name(name), f"--{flag_name(name)}"):
            assert f"`{spelling}`" in text, name


def test_every_section_of_the_settings_can_be_set() -> None:
    sections = {name.partition(".")[0] for name in setting_names()}
    assert sections == set(Settings.model_fields)
    for section in sections:
        fields = type(getattr(Settings(), section)).model_fields
        assert {f"{section}.{key}" for key in fields} <= set(setting_names())


@pytest.mark.parametrize("name", list(COMMANDS))
def test_every_command_and_flag_says_what_it_does_and_is_on_its_page(name: str) -> None:
    text = page("cli.md")
    command = COMMANDS[name]
    assert command.help, name
    heading = f"\n## {name}\n"
    assert heading in text
    own = text.partition(heading)[2].partition("\n## ")[0]
    for parameter in command.params:
        if parameter.param_type_name == "argument":
            assert f"`{parameter.name.upper()}`" in own, parameter.name
            continue
        for spelling in parameter.opts:
            assert f"`{spelling}`" in own, spelling
        if not HELP_FLAGS & set(parameter.opts):
            assert parameter.help, parameter.opts


def test_every_metric_is_on_its_page_under_its_family() -> None:
    parts = re.split(r"\n## (\w+)\n", page("metrics.md"))
    families = dict(zip(parts[1::2], parts[2::2], strict=True))
    for metric in CATALOGUE:
        assert f"| `{metric.name}` |" in families[metric.family.capitalize()], metric.name
    documented = re.findall(r"^\| `(kvready_\w+)` \|", page("metrics.md"), re.MULTILINE)
    assert sorted(documented) == sorted(metric.name for metric in CATALOGUE)


def test_every_variable_that_the_code_reads_is_on_a_page() -> None:
    """By their names in the source: whoever adds one has to say what it does."""
    pages = "".join(
        path.read_text(encoding="utf-8")
        for path in (*(ROOT / "docs").glob("*.md"), ROOT / "README.md")
    )
    named = set()
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*.py"):
            named |= set(re.findall(r'"(KVREADY_[A-Z][A-Z_]*[A-Z])"', path.read_text("utf-8")))
    undocumented = [name for name in sorted(named) if name not in pages]
    assert named
    assert undocumented == []
