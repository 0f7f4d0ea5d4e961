"""Compiles a C source that this package carries, on first use, into a folder of the user's own.

The library is named by a hash of the source, the compiler and the flags, so that a change of any
makes another; it appears under its name whole or not at all, however many processes build at once.
What lies in that folder is loaded as code: one that others can write is refused.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import signal
import stat
import subprocess
import tempfile
from pathlib import Path

from kvready.kernels.errors import MoverUnavailable

COMPILERS = ("cc", "gcc", "clang")
FLAGS = ("-std=c11", "-O3", "-shared", "-fPIC", "-pthread", "-fvisibility=hidden")
COMPILE_TIMEOUT_SECONDS = 60.0
MAX_MESSAGE_CHARACTERS = 800
KEPT_LIBRARIES = 8  # of one source; older ones go when a new one is built
OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
CACHE_VARIABLE = "KVREADY_CACHE"


def load_library(source: Path) -> ctypes.CDLL:
    """The source as a library, built if need be. Raises `MoverUnavailable`."""
    compiler = _compiler()
    folder = _cache_folder()
    library = folder / f"{source.stem}-{_key(source, compiler)}.so"
    if not library.exists():
        _build(source, compiler, library)
    _refuse_if_others_write(library)
    try:
        return ctypes.CDLL(str(library), use_errno=True)
    except OSError as error:
        raise MoverUnavailable(
            f"cannot load {library} ({error}); delete it, or set {CACHE_VARIABLE} to a folder of "
            "your own on a file system that is not mounted noexec"
        ) from error


def _compiler() -> list[str]:
    """The command that compiles: CC if set, else the first that is installed."""
    chosen = os.environ.get("CC")
    try:
        candidates = [shlex.split(chosen)] if chosen else [[name] for name in COMPILERS]
    except ValueError as error:
        raise MoverUnavailable(
            f"CC={chosen} is no command ({error}); install gcc or clang, or set CC to one"
        ) from error
    for command in candidates:
        if command and shutil.which(command[0]):
            return command
    looked_for = f"CC={chosen}" if chosen else ", ".join(COMPILERS)
    raise MoverUnavailable(
        f"no C compiler ({looked_for} not found); install gcc or clang, or set CC to one"
    )


def _cache_folder() -> Path:
    """Where libraries are kept: made if absent, refused if others could put code into it."""
    try:
        folder = _cache_path()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder = folder.resolve()
        for parent in folder.parents:
            mode = parent.stat().st_mode
            if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
                raise MoverUnavailable(
                    f"{parent} can be written by others, who could replace {folder}; set "
                    f"{CACHE_VARIABLE} to a folder below one of your own"
                )
    except (OSError, RuntimeError) as error:
        raise MoverUnavailable(
            f"no folder to keep a compiled library in ({error}); set {CACHE_VARIABLE} to a folder "
            "that you own"
        ) from error
    _refuse_if_others_write(folder)
    return folder


def _cache_path() -> Path:
    own = os.environ.get(CACHE_VARIABLE)
    if own:
        return Path(own).absolute()
    shared = os.environ.get("XDG_CACHE_HOME", "")
    # A relative one is to be ignored, says the XDG base directory specification.
    return (Path(shared) if Path(shared).is_absolute() else Path.home() / ".cache") / "kvready"


def _refuse_if_others_write(path: Path) -> None:
    """Code is loaded from here: only this user may have written it."""
    try:
        found = path.stat()
    except OSError as error:
        raise MoverUnavailable(
            f"cannot read {path} ({error.strerror}); set {CACHE_VARIABLE} to a folder of your own"
        ) from error
    if found.st_uid != os.geteuid() or found.st_mode & OTHERS_WRITE:
        raise MoverUnavailable(
            f"{path} belongs to another user or can be written by others, and code would be loaded "
            f"from it; make it yours alone (chmod go-w) or set {CACHE_VARIABLE} to a folder that is"
        )


def _key(source: Path, compiler: list[str]) -> str:
    """What the library depends on, as 16 hexadecimal digits."""
    parts = (*compiler, _run([*compiler, "--version"]), *FLAGS, platform.machine())
    digest = hashlib.sha256("\0".join(parts).encode())
    digest.update(b"\0" + source.read_bytes())
    return digest.hexdigest()[:16]


def _build(source: Path, compiler: list[str], library: Path) -> None:
    try:
        handle, unfinished = tempfile.mkstemp(
            prefix=library.stem, suffix=".part", dir=library.parent
        )
        os.close(handle)
    except OSError as error:
        raise MoverUnavailable(
            f"cannot write into {library.parent} ({error.strerror}); make room there, or set "
            f"{CACHE_VARIABLE} to a folder that you can write"
        ) from error
    try:
        _run([*compiler, *FLAGS, "-o", unfinished, str(source)])
        Path(unfinished).chmod(0o700)
        Path(unfinished).replace(library)
    finally:
        Path(unfinished).unlink(missing_ok=True)
    _forget_old(source.stem, library)


def _forget_old(stem: str, newest: Path) -> None:
    """Keep the folder small. A library in use lives on without its name."""
    libraries = [path for path in newest.parent.glob(f"{stem}-*.so") if path != newest]
    ages = {path: path.stat().st_mtime for path in libraries if path.exists()}
    for path in sorted(ages, key=ages.__getitem__, reverse=True)[KEPT_LIBRARIES - 1 :]:
        path.unlink(missing_ok=True)


def _run(command: list[str]) -> str:
    """What the compiler prints. Its helpers end with it, also where it takes too long."""
    shown = shlex.join(command[:1])
    with tempfile.TemporaryFile() as output:
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            raise MoverUnavailable(
                f"cannot run the C compiler {shown} ({error.strerror}); set CC to one that works"
            ) from error
        try:
            failed = process.wait(COMPILE_TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired as error:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise MoverUnavailable(
                f"the C compiler {shown} took over {COMPILE_TIMEOUT_SECONDS:g} s and was stopped; "
                "set CC to one that works"
            ) from error
        output.seek(0)
        text = output.read().decode(errors="replace")
    if failed:
        raise MoverUnavailable(
            f"the C compiler {shown} failed; set CC to one that works, or report this: "
            f"{text[-MAX_MESSAGE_CHARACTERS:].strip()}"
        )
    return text
