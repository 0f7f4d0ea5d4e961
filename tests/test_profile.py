"""A link profile comes back as it was written, or not at all."""

from __future__ import annotations

import errno
import hashlib
import os
import pickle
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvready.kernels import profile as module
from kvready.kernels.errors import ProfileError
from kvready.kernels.profile import (
    Claim,
    Cost,
    Curve,
    LinkProfile,
    Machine,
    Provenance,
    Sample,
    checksum,
    read_profile,
    write_profile,
)

MACHINE = Machine(cpu="AMD EPYC", cpus=2, operating_system="Linux")
SAMPLE = Sample(fragment_bytes=65_536, fragments=64, round=1, move_seconds=0.004)
CURVE = Curve("host", "hbm", "gather", "c-avx512", 1, contended=False, samples=(SAMPLE,))
PROFILE = LinkProfile(
    "box", Provenance.MEASURED, MACHINE, (CURVE,), software={"python": "3.11", "kvready": "0.1"}
)

names = st.text(max_size=8)
seconds = st.floats(0, 1e6)
some_seconds = st.floats(0, 1e6, exclude_min=True)
samples = st.builds(
    Sample,
    st.integers(1, 1 << 40),
    st.integers(1, 1 << 40),
    st.integers(0, 1 << 32),
    some_seconds,
    seconds,
    st.none() | st.floats(0, 1e6, exclude_min=True),
)
costs = st.builds(Cost, seconds, seconds, st.floats(0, 1e15, exclude_min=True))
curve_parts = st.tuples(names, names, names, names, st.integers(1, 64), st.booleans())
curves = st.one_of(
    st.tuples(curve_parts, st.lists(samples, min_size=1, max_size=3)).map(
        lambda both: Curve(*both[0], samples=tuple(both[1]))
    ),
    st.tuples(curve_parts, costs).map(lambda both: Curve(*both[0], cost=both[1])),
)
finite = st.floats(allow_nan=False, allow_infinity=False)
profiles = st.builds(
    LinkProfile,
    names,
    st.sampled_from(Provenance),
    st.builds(Machine, names, st.integers(0, 1024), names, names, names, names),
    st.lists(curves, max_size=3).map(tuple),
    st.floats(0, 1e11),
    st.dictionaries(names, names, max_size=2),
    st.dictionaries(names, names, max_size=2),
    st.none() | seconds,
    st.lists(
        st.builds(Claim, names, st.sampled_from(("input", "prediction")), finite, finite, names,
                  names), max_size=2,
    ).map(tuple),
)  # fmt: skip


def sealed(body: bytes, version: int = 1) -> bytes:
    """The file around any body, built from its description alone."""
    digest = hashlib.sha256(body).hexdigest()
    return b'{"schema_version":%d,"checksum":"%s","profile":%s}\n' % (
        version, digest.encode(), body,
    )  # fmt: skip


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "box.json"


@given(profiles)
def test_what_is_written_is_read(tmp_path_factory: pytest.TempPathFactory, profile) -> None:
    path = tmp_path_factory.mktemp("profile") / "box.json"
    write_profile(profile, path)
    back = read_profile(path)
    assert back == profile
    assert back.calibration_id == profile.calibration_id
    assert [file.name for file in path.parent.iterdir()] == ["box.json"]


def test_the_file_is_the_described_envelope(path: Path) -> None:
    write_profile(PROFILE, path)
    assert path.read_bytes() == sealed(msgspec.json.encode(PROFILE, order="deterministic"))
    assert checksum(PROFILE).startswith(PROFILE.calibration_id)


def test_every_changed_byte_and_every_cut_is_refused(path: Path) -> None:
    write_profile(PROFILE, path)
    whole = path.read_bytes()
    damaged = [whole[:length] for length in range(len(whole))]
    for place, byte in enumerate(whole):
        others = {byte ^ (1 << bit) for bit in range(8)} | set(b' \t\r\n"0') - {byte}
        damaged += [whole[:place] + bytes([other]) + whole[place + 1 :] for other in others]
    for data in damaged:
        path.write_bytes(data)
        with pytest.raises(ProfileError):
            read_profile(path)


def test_a_later_schema_is_refused_by_its_number_whatever_it_holds(path: Path) -> None:
    for data in (sealed(b'{"new":[1,2]}', 7), b'{"schema_version":7,"layout":{}}'):
        path.write_bytes(data)
        with pytest.raises(ProfileError, match="schema version 7, this kvready reads 1"):
            read_profile(path)


def changed(pointer: tuple[str | int, ...], value: object) -> bytes:
    """The good profile's body with one value replaced."""
    tree = msgspec.to_builtins(PROFILE)
    place = tree
    for step in pointer[:-1]:
        place = place[step]
    place[pointer[-1]] = value
    return msgspec.json.encode(tree)


OF_SAMPLE = ("curves", 0, "samples", 0)


@pytest.mark.parametrize(
    "body",
    [
        changed((*OF_SAMPLE, "move_seconds"), 0.0),
        changed((*OF_SAMPLE, "move_seconds"), -1.0),
        changed((*OF_SAMPLE, "move_seconds"), 1e30),
        changed((*OF_SAMPLE, "move_seconds"), None),
        changed((*OF_SAMPLE, "wait_seconds"), -1e-9),
        changed((*OF_SAMPLE, "compute_slowdown"), 0.0),
        changed((*OF_SAMPLE, "fragment_bytes"), 0),
        changed((*OF_SAMPLE, "fragments"), 1 << 60),
        changed((*OF_SAMPLE, "fragments"), 10**30),
        changed((*OF_SAMPLE, "round"), -1),
        changed((*OF_SAMPLE, "round"), True),
        changed((*OF_SAMPLE, "colour"), 1),
        changed(("curves", 0, "samples"), []),
        changed(("curves", 0, "cost"), [1, 2, 3]),
        changed(
            ("curves", 0, "cost"),
            {"overhead_seconds": 0, "fragment_seconds": 0, "bytes_per_second": 1},
        ),
        changed(("curves", 0, "workers"), 0),
        changed(("curves", 0, "contended"), "no"),
        changed(("machine", "cpus"), -1),
        changed(("machine", "host"), "secret"),
        changed(("provenance",), "guessed"),
        changed(("repeat_scatter",), -0.1),
        changed(("made_wall_seconds",), -1),
        changed(("unheard_of",), {}),
        msgspec.json.encode(PROFILE).replace(b"0.004", b"1e999"),
        msgspec.json.encode(PROFILE).replace(b"0.004", b"NaN"),
        msgspec.json.encode(PROFILE).replace(b'"box"', b'"\xff"'),
        b"null",
        b"[]",
        b"[" * 200_000 + b"]" * 200_000,
    ],
    ids=lambda body: hashlib.sha256(body).hexdigest()[:6],
)
def test_nonsense_under_a_right_checksum_is_refused(path: Path, body: bytes) -> None:
    path.write_bytes(sealed(body))
    with pytest.raises(ProfileError, match=r"box\.json"):
        read_profile(path)


@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), -1.0, 0.0])
def test_nonsense_is_not_written_either(path: Path, seconds: float) -> None:
    sample = msgspec.structs.replace(SAMPLE, move_seconds=seconds)
    curve = msgspec.structs.replace(CURVE, samples=(sample,))
    with pytest.raises(ProfileError, match="move_seconds"):
        write_profile(msgspec.structs.replace(PROFILE, curves=(curve,)), path)
    assert not list(path.parent.iterdir())


@given(st.binary(max_size=200))
def test_any_other_file_is_refused(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.mktemp("profile") / "other"
    path.write_bytes(data)
    with pytest.raises(ProfileError):
        read_profile(path)


def test_a_profile_that_is_not_there_or_no_file_is_refused_with_the_fix(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name, reason in (("none", "kvready calibrate"), (".", "no file"), ("pipe", "no file"),
                         ("n\0l", "kvready calibrate")):  # fmt: skip
        with pytest.raises(ProfileError, match=reason):
            read_profile(tmp_path / name)


def test_a_huge_file_is_refused_unread(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)  # sparse
    with pytest.raises(ProfileError, match="larger than any link profile"):
        read_profile(path)


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_full_disk_leaves_the_former_profile_and_nothing_else(
    path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    write_profile(PROFILE, path)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(*((module.os, "fsync") if call == "fsync" else (Path, "replace")), full)
    with pytest.raises(ProfileError, match="No space left on device"):
        write_profile(msgspec.structs.replace(PROFILE, name="newer"), path)
    assert read_profile(path) == PROFILE
    assert list(path.parent.iterdir()) == [path]


def test_an_interrupted_write_leaves_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(module.os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_profile(PROFILE, path)
    assert not list(path.parent.iterdir())


def test_a_folder_that_takes_no_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="No such file or directory"):
        write_profile(PROFILE, tmp_path / "absent" / "box.json")


def test_the_checksum_is_the_same_in_every_process(path: Path) -> None:
    write_profile(PROFILE, path)
    code = (
        "import sys, pathlib; from kvready.kernels.profile import *; "
        "p = read_profile(pathlib.Path(sys.argv[1])); print(checksum(p))"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", code, str(path)],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for seed in ("1", "2")
    }
    assert found == {checksum(PROFILE)}


def test_names_in_another_order_are_the_same_figures() -> None:
    backwards = dict(reversed(list(PROFILE.software.items())))
    assert checksum(msgspec.structs.replace(PROFILE, software=backwards)) == checksum(PROFILE)
    renamed = msgspec.structs.replace(PROFILE, name="x")
    assert renamed.calibration_id != PROFILE.calibration_id


def test_a_pickle_is_no_profile(path: Path) -> None:
    path.write_bytes(pickle.dumps(_Tripwire()))
    with pytest.raises(ProfileError, match="no link profile"):
        read_profile(path)


class _Tripwire:
    """Fails the test that loads it."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return pytest.fail, ("a profile ran code",)


def test_a_path_has_the_curve_of_the_mover_as_engines_run_it() -> None:
    more = msgspec.structs.replace(CURVE, workers=8)
    busy = msgspec.structs.replace(CURVE, workers=16, contended=True)
    profile = msgspec.structs.replace(PROFILE, curves=(more, CURVE, busy))
    assert profile.curve("host", "hbm", "gather") == CURVE
    assert profile.curve("host", "hbm", "gather", contended=True) == busy
    assert profile.curve("disk", "host", "read") is None


@given(costs, st.integers(0, 1 << 40), st.integers(0, 1 << 20))
def test_a_cost_is_the_sum_of_its_terms(cost: Cost, payload: int, fragments: int) -> None:
    terms = (
        cost.overhead_seconds,
        fragments * cost.fragment_seconds,
        payload / cost.bytes_per_second,
    )
    assert cost.seconds(payload, fragments) == pytest.approx(sum(terms))
