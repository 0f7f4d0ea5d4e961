"""A C source becomes a library of the user's own, once, or the reason why not is told."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pools_in_memory import SHARED, Memory

from kvready.kernels import gather_cpu, native
from kvready.kernels.errors import MoverUnavailable
from kvready.kernels.gather_cpu import GatherMover, open_gather
from kvready.kernels.native import CACHE_VARIABLE, load_library
from kvready.kernels.pools import Direction, Move

ANSWER = '__attribute__((visibility("default"))) int answer(void) {{ return {}; }}\n'
PROCESSES = 4
BUILDING = (
    "from kvready.kernels.gather_cpu import GatherMover\n"
    "print(GatherMover(2).backend.startswith('c-'))\n"
)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder, not made yet."""
    folder = tmp_path / "cache" / "kvready"
    monkeypatch.setenv(CACHE_VARIABLE, str(folder))
    monkeypatch.delenv("CC", raising=False)
    return folder


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A small source."""
    path = tmp_path / "answer.c"
    path.write_text(ANSWER.format(1))
    return path


@pytest.fixture
def unloaded() -> Iterator[None]:
    """As if the gather had not been loaded in this process yet; so again afterwards."""
    gather_cpu._library.cache_clear()
    gather_cpu._warn_once.cache_clear()
    yield
    gather_cpu._library.cache_clear()
    gather_cpu._warn_once.cache_clear()


def libraries(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def script(path: Path, *lines: str) -> str:
    """A compiler of our making."""
    path.write_text("\n".join(("#!/bin/sh", *lines, "")))
    path.chmod(0o700)
    return str(path)


def test_a_second_load_builds_nothing(
    cache: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert load_library(source).answer() == 1
    monkeypatch.setattr(native, "_build", None)
    assert load_library(source).answer() == 1


def test_a_changed_source_is_another_library(cache: Path, source: Path) -> None:
    assert load_library(source).answer() == 1
    source.write_text(ANSWER.format(2))
    assert load_library(source).answer() == 2
    assert len(libraries(cache)) == 2


def test_another_compiler_or_flag_is_another_library(
    cache: Path, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load_library(source)
    other = script(
        tmp_path / "cc", 'if [ "$1" = --version ]; then echo other 2.0; else exec cc "$@"; fi'
    )
    monkeypatch.setenv("CC", other)
    load_library(source)
    monkeypatch.setattr(native, "FLAGS", (*native.FLAGS, "-g"))
    monkeypatch.delenv("CC")
    load_library(source)
    assert len(libraries(cache)) == 3


def test_old_libraries_go(cache: Path, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "KEPT_LIBRARIES", 2)
    for answer in range(4):
        source.write_text(ANSWER.format(answer))
        assert load_library(source).answer() == answer
    assert len(libraries(cache)) == 2
    assert load_library(source).answer() == 3


def test_processes_that_build_at_once_all_load_one_library(cache: Path) -> None:
    running = [
        subprocess.Popen([sys.executable, "-c", BUILDING], stdout=subprocess.PIPE, text=True)
        for _ in range(PROCESSES)
    ]
    assert [one.communicate(timeout=120)[0].strip() for one in running] == ["True"] * PROCESSES
    assert len(libraries(cache)) == 1


def test_a_library_is_the_users_alone(cache: Path, source: Path) -> None:
    load_library(source)
    for path in (cache, *cache.iterdir()):
        assert path.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("variable", ["XDG_CACHE_HOME", "HOME"])
def test_without_a_variable_of_ours_the_users_cache_is_used(
    cache: Path, source: Path, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(CACHE_VARIABLE)
    monkeypatch.setenv("XDG_CACHE_HOME", "relative/is/ignored")
    monkeypatch.setenv(variable, str(cache))
    load_library(source)
    folder = cache / "kvready" if variable == "XDG_CACHE_HOME" else cache / ".cache" / "kvready"
    assert len(libraries(folder)) == 1


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777])
def test_a_folder_that_others_can_write_is_refused(cache: Path, source: Path, mode: int) -> None:
    cache.mkdir(parents=True)
    cache.chmod(mode)
    with pytest.raises(MoverUnavailable, match=r"chmod go-w.*KVREADY_CACHE"):
        load_library(source)
    assert not libraries(cache)


def test_a_folder_that_others_could_replace_is_refused(cache: Path, source: Path) -> None:
    cache.mkdir(parents=True)
    cache.parent.chmod(0o777)
    with pytest.raises(MoverUnavailable, match="who could replace"):
        load_library(source)
    cache.parent.chmod(0o1777)
    assert load_library(source).answer() == 1


def test_a_link_into_a_folder_of_others_is_refused(cache: Path, source: Path) -> None:
    cache.parent.mkdir()
    elsewhere = cache.parent / "elsewhere"
    elsewhere.mkdir()
    elsewhere.chmod(0o777)
    cache.symlink_to(elsewhere)
    with pytest.raises(MoverUnavailable, match="written by others"):
        load_library(source)


def test_a_folder_of_another_user_is_refused(
    cache: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load_library(source)
    monkeypatch.setattr(os, "geteuid", lambda: cache.stat().st_uid + 1)
    with pytest.raises(MoverUnavailable, match="belongs to another user"):
        load_library(source)


def test_a_library_that_others_could_have_written_is_refused(cache: Path, source: Path) -> None:
    load_library(source)
    (library,) = cache.iterdir()
    library.chmod(0o722)
    with pytest.raises(MoverUnavailable, match="written by others"):
        load_library(source)


def test_a_damaged_library_is_named(cache: Path, source: Path) -> None:
    cache.mkdir(parents=True)
    library = cache / f"answer-{native._key(source, native._compiler())}.so"
    library.write_bytes(b"not a library")
    library.chmod(0o700)
    with pytest.raises(MoverUnavailable, match=rf"cannot load {library}.*delete it"):
        load_library(source)


def test_a_cache_that_cannot_be_made_or_written_names_the_variable(
    cache: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(source / "below a file"))
    with pytest.raises(MoverUnavailable, match="set KVREADY_CACHE to a folder that you own"):
        load_library(source)
    monkeypatch.setenv(CACHE_VARIABLE, "/proc/self")  # nobody makes files there
    with pytest.raises(MoverUnavailable, match="KVREADY_CACHE"):
        load_library(source)


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        (["echo 1.0; test $1 = --version"], "failed; set CC to one that works"),
        (["echo no such thing; exit 4"], "failed.*no such thing"),
        (["test $1 = --version && exit 0", "sleep 60 &", "wait"], "took over 0.5 s"),
        (["test $1 = --version && exit 0", "sleep 60"], "took over 0.5 s"),
    ],
)
def test_a_compiler_that_fails_is_told_with_its_words(
    cache: Path,
    source: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    lines: list[str],
    told: str,
) -> None:
    monkeypatch.setenv("CC", script(tmp_path / "cc", *lines))
    monkeypatch.setattr(native, "COMPILE_TIMEOUT_SECONDS", 0.5)
    with pytest.raises(MoverUnavailable, match=told):
        load_library(source)
    assert not cache.exists() or not libraries(cache)


@pytest.mark.parametrize("chosen", ["", "no-such-compiler", "no-such-compiler -O2", "'gcc"])
def test_without_a_compiler_the_gather_says_what_stands_in(
    cache: Path,
    tmp_path: Path,
    unloaded: None,
    chosen: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CC", chosen)
    with caplog.at_level(logging.WARNING):
        mover = open_gather(2)
        open_gather(2)
    assert (mover.name, mover.backend) == ("gather", "numpy+memmove")
    assert "install gcc or clang, or set CC to one" in mover.fallback_reason
    (record,) = caplog.records  # said once
    assert "numpy+memmove" in record.getMessage()
    assert mover.fallback_reason in record.getMessage()
    memory = Memory(SHARED, Direction.LOAD)
    move = Move(Direction.LOAD, range(7), range(7), 2, 5)
    expected = memory.expected(move)
    mover.move(memory.pools, move)
    assert memory.content() == expected


def test_with_a_compiler_again_the_gather_is_compiled(
    cache: Path, tmp_path: Path, unloaded: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setenv("PATH", str(tmp_path))
        assert open_gather().fallback_reason
    assert isinstance(open_gather(), GatherMover)


def test_on_another_architecture_the_gather_copies_plainly_and_says_so(
    cache: Path, tmp_path: Path, unloaded: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    portable = tmp_path / "gather.c"
    portable.write_text(gather_cpu.SOURCE.read_text().replace("defined(__x86_64__)", "0"))
    monkeypatch.setattr(gather_cpu, "SOURCE", portable)
    mover = open_gather(2)
    assert (mover.backend, mover.fallback_reason) == ("c-memcpy", "")
    for direction in Direction:
        memory = Memory(SHARED, direction)
        move = Move(direction, range(9), range(9))
        expected = memory.expected(move)
        mover.move(memory.pools, move)
        assert memory.content() == expected
    mover.close()


def test_the_gather_compiles_without_a_warning() -> None:
    strict = ("-std=c11", "-O3", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-c", "-o/dev/null")
    run = subprocess.run(
        [*native._compiler(), *strict, str(gather_cpu.SOURCE)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
