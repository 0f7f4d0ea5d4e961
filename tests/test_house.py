"""The rules of the house: sizes, imports, and nothing that belongs to one machine."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("collectors", "advisor", "kernels")
MAX_MODULE_LINES = 400
MAX_MEDIAN_LINES = 150
MAX_FUNCTION_LINES = 70

# Code that an engine loads: nothing that its environment lacks.
IN_ENGINE = ("kvready.collectors.engine", "kvready.kernels.engine", "kvready.advisor.hooks")
# What the hooks inside an engine decide with.
PLANNER = frozenset(
    {
        "kvready.advisor.adaptive_ratio",
        "kvready.advisor.load_start_order",
        "kvready.advisor.strata",
        "kvready.advisor.transient",
        "kvready.advisor.waiting_queue",
    }
)
IN_ENGINE_ALLOWED = frozenset({"msgspec", "zmq", "kvready"})
NAMED_FOR_AN_ENGINE = frozenset({"vllm", "torch"})
# Imported inside a function that does without where it is missing.
DONE_WITHOUT = frozenset({("kvready.kernels.gather_numpy", "numpy")})
# The parts of the advisor that compose, open sockets or files; all else is the pure core.
COMPOSING = frozenset(
    {
        "cli",
        "doctor_text",
        "evidence_bundle",
        "kill_switch",
        "link_curves",
        "look_text",
        "playback",
        "profile_plot",
        "profile_text",
        "report_text",
        "settings",
        "tap_settings",
        "telemetry_settings",
        "target_settings",
        "terminal",
    }
)


def modules() -> Iterator[Path]:
    for folder in FOLDERS:
        yield from sorted((ROOT / folder).rglob("*.py"))


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(("kvready", *(part for part in parts if part != "__init__")))


def imports_of(path: Path) -> Iterator[str]:
    """Every module that is imported when this one runs, also inside functions."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            assert node.level == 0, f"{path}: relative import"
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("path", list(modules()), ids=name_of)
def test_a_module_fits_in_a_head_and_a_function_on_a_screen(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= MAX_MODULE_LINES
    tree = ast.parse(text)
    assert ast.get_docstring(tree), "a module says what it is"
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert (node.end_lineno or 0) - node.lineno < MAX_FUNCTION_LINES, node.name


def test_the_median_module_is_short() -> None:
    sizes = sorted(len(path.read_text(encoding="utf-8").splitlines()) for path in modules())
    assert sizes[len(sizes) // 2] < MAX_MEDIAN_LINES


def test_code_inside_an_engine_needs_nothing_that_an_engine_lacks() -> None:
    paths = {name_of(path): path for path in modules()}
    reached = [name for name in paths if name.startswith(IN_ENGINE) or name in PLANNER]
    assert paths.keys() >= PLANNER
    seen = set(reached)
    while reached:
        name = reached.pop()
        for imported in imports_of(paths[name]):
            top = imported.partition(".")[0]
            known = top in sys.stdlib_module_names or top in IN_ENGINE_ALLOWED
            known |= (name, top) in DONE_WITHOUT
            assert known or top in NAMED_FOR_AN_ENGINE, f"{name} imports {imported}"
            if imported in paths and imported not in seen:
                seen.add(imported)
                reached.append(imported)


def test_the_import_contract_names_the_whole_pure_core() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = project["tool"]["importlinter"]["contracts"]
    contract = next(c for c in contracts if c["name"].startswith("The pure core"))
    core = {
        f"kvready.advisor.{path.stem}"
        for path in (ROOT / "advisor").glob("*.py")
        if path.stem not in COMPOSING | {"__init__"}
    }
    assert set(contract["source_modules"]) == core


def test_every_package_is_installed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    packages = {name_of(path) for path in modules() if path.name == "__init__.py"}
    assert set(project["tool"]["setuptools"]["packages"]) == packages


def test_what_was_tested_is_pinned_exactly() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = {line.partition("==")[0].lower().replace("_", "-") for line in lines if "==" in line}
    extras = project["optional-dependencies"]
    wanted = project["dependencies"] + extras["sidecar"] + extras["dev"]
    names = {re.split(r"[<>=~!\[ ]", need)[0].lower().replace("_", "-") for need in wanted}
    assert names <= pinned


def test_nothing_in_the_repository_belongs_to_one_machine() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listed.returncode:
        pytest.skip("not a git checkout")
    machine = re.compile(r"/(?:work|tmp/kv|opt/py|root|home/\w+)/")
    for name in filter(None, listed.stdout.split("\0")):
        path = ROOT / name
        if path.resolve() == Path(__file__).resolve() or not path.is_file():
            continue
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # a recording or another binary
        assert machine.search(text) is None, f"{name}: {machine.search(text)}"
