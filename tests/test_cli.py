"""The command line as users meet it: a process, its output, its exit code."""

from __future__ import annotations

import gzip
import json
import os
import resource
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from publisher import Publisher
from served import KVREADY, serving
from story import Story

from kvready.advisor.commands.recorded import BUNDLED
from kvready.advisor.ledger import Pair, PairState
from kvready.advisor.report import Report, build_report
from kvready.advisor.service import generate
from kvready.advisor.settings import flag_name, setting_names
from kvready.collectors.recording import read_recording

BASE_PACKAGES = ("kvready.collectors", "kvready.collectors.engine", "kvready.kernels.engine")
NAMED_FOR_AN_ENGINE = (  # what imports it
    "disk_spec",
    "disk_tier",
    "host_pool",
    "host_tier",
    "tier_copies",
    "vllm_observer",
    "vllm_stat_logger",
)


def test_a_replay_gives_every_pair_and_the_same_digest_each_time(
    kvready, recording: Path, told_story: Story, tmp_path: Path
) -> None:
    lines = tmp_path / "pairs.jsonl"
    first = json.loads(kvready("replay", recording, "--pairs", lines, "--json").stdout)
    second = json.loads(kvready("replay", recording, "--json", PYTHONHASHSEED="77").stdout)
    assert first == second
    assert first["provenance"] == "SIMULATED"
    assert first["records"] == len(told_story.told)
    pairs = [msgspec.json.decode(line, type=Pair) for line in lines.read_bytes().splitlines()]
    assert pairs == told_story.pairs
    assert first["pairs"] == len(pairs) > 0
    scored = sum(pair.state is PairState.PAIRED for pair in pairs)
    assert first["scored"] == scored
    text = kvready("replay", recording).stdout
    assert f"{scored} are scored and {len(pairs) - scored} are not" in text


def test_the_report_is_that_of_the_records(kvready, recording: Path, told_story: Story) -> None:
    ended = kvready("report", recording, "--json")
    assert ended.returncode == 0
    origin = {"recording": f"{recording.name}, SIMULATED", "told by": "a test"}
    expected = build_report(told_story.pipeline, "simulated", origin)
    assert msgspec.json.decode(ended.stdout, type=Report) == expected


def test_a_report_for_people_shows_predictions_and_no_escape_codes(
    kvready, recording: Path
) -> None:
    ended = kvready("report", recording)
    assert ended.returncode == 0
    assert "Predicted against actual" in ended.stdout
    assert "\x1b" not in ended.stdout + ended.stderr


def test_a_damaged_recording_is_used_as_far_as_it_goes_and_exits_with_one(
    kvready, recording: Path, tmp_path: Path
) -> None:
    damaged = tmp_path / "damaged.kvr"
    damaged.write_bytes(recording.read_bytes()[:-20])
    ended = kvready("replay", damaged)
    assert ended.returncode == 1
    assert "warning:" in ended.stderr
    assert "digest" in ended.stdout


def test_a_shared_recording_predicts_alike_and_joins_to_nothing(
    kvready, recording: Path, tmp_path: Path
) -> None:
    shared = tmp_path / "shared.kvr"
    made = kvready("share", recording, shared, "--condition", "link=PCIe 5 x16")
    assert made.returncode == 0, made.stderr
    header = read_recording(shared).header
    assert header.salted
    assert header.conditions["link"] == "PCIe 5 x16"
    reports = [
        msgspec.json.decode(kvready("report", file, "--json").stdout, type=Report)
        for file in (recording, shared)
    ]
    assert reports[0].cells == reports[1].cells
    assert reports[0].hits == reports[1].hits
    assert not _strings(recording) & _strings(shared)


def _strings(path: Path) -> set[str]:
    """Every request id and block hash in a recording, as text."""
    found: set[str] = set()
    for item in read_recording(path):
        found.add(str(getattr(item.record, "request_id", "")))
        found.update(map(str, getattr(item.record, "block_hashes", ())))
    return found - {""}


def test_the_demo_finds_the_bundled_recording_in_a_clone(recording: Path, tmp_path: Path) -> None:
    bundled = tmp_path / BUNDLED
    bundled.parent.mkdir(parents=True)
    bundled.write_bytes(recording.read_bytes())
    ended = subprocess.run(
        [*KVREADY, "demo"], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60
    )
    assert ended.returncode == 0, ended.stderr
    assert "told by" in ended.stdout


def test_a_demo_that_serves_shows_the_replay_until_stopped(
    recording: Path, free_port: int, told_story: Story
) -> None:
    with serving("demo", recording, "--serve", port=free_port) as served:
        assert "replay of story.kvr" in served.get("/").text
        paired = [
            line
            for line in served.get("/metrics").text.splitlines()
            if line.startswith("kvready_forecasts_total") and 'state="paired"' in line
        ]
        scored = [pair for pair in told_story.pairs if pair.state is PairState.PAIRED]
        assert sum(float(line.rpartition(" ")[2]) for line in paired) == len(scored)
        assert served.get("/v1/status").json()["replayed"] == "story.kvr"
        code, errors = served.end()
    assert code == 0, errors


def test_a_recording_is_made_without_an_api(short_dir: Path) -> None:
    file = short_dir / "run.kvr"
    with Publisher(short_dir) as engine:
        command = [*KVREADY, "record", str(file), "--kv-events", engine.events, "--seconds", "2"]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        while process.poll() is None:
            engine.store(engine.sequence + 1)
            time.sleep(0.05)
        _, errors = process.communicate()
    assert process.returncode == 0, errors
    assert "records" in errors
    kinds = {type(item.record).__name__ for item in read_recording(file)}
    assert {"BlocksStored", "TapStatus", "Tick"} <= kinds


def test_a_recording_of_nothing_says_what_to_check(kvready, short_dir: Path) -> None:
    endpoint = f"ipc://{short_dir}/none"
    ended = kvready("record", short_dir / "x.kvr", "--kv-events", endpoint, "--seconds", "0.3")
    assert ended.returncode == 2
    assert "nothing arrived on any tap" in ended.stderr
    assert endpoint in ended.stderr
    assert not (short_dir / "x.kvr").exists(), "the next try may want its name"


def test_a_tap_that_cannot_start_leaves_no_recording_behind(kvready, tmp_path: Path) -> None:
    ended = kvready("record", tmp_path / "x.kvr", "--observer-dir", "LICENSE")
    assert ended.returncode == 2
    assert "is a file" in ended.stderr
    assert not (tmp_path / "x.kvr").exists()


FOREIGN = (1.0, [["BlockStored", [-1], None, [1], 1, None]], 0)


def test_a_recording_of_another_engine_says_why_nothing_is_in_it(short_dir: Path) -> None:
    file = short_dir / "run.kvr"
    ended, errors = _record_beside(
        short_dir,
        file,
        lambda engine: engine.send_payload(msgspec.msgpack.encode(FOREIGN)),
        seconds=2,
    )
    assert ended == 2, errors
    assert "not vLLM's (SGLang has a tap of its own)" in errors
    assert not file.exists()


def test_a_disk_that_fills_up_ends_the_recording_at_once(short_dir: Path) -> None:
    file = short_dir / "run.kvr"
    ended, errors = _record_beside(
        short_dir, file, lambda engine: engine.store(engine.sequence + 1), seconds=3_600, limit=900
    )
    assert ended == 2, errors
    assert "Traceback" not in errors
    assert f"{file}: recording stopped" in errors
    assert read_recording(file).header


def _record_beside(
    folder: Path,
    file: Path,
    speak: Callable[[Publisher], None],
    seconds: float,
    limit: int = 1 << 30,
) -> tuple[int, str]:
    """Exit code and errors of `record` beside an engine that speaks; `limit` is a file's bytes."""
    with Publisher(folder) as engine:
        command = ["record", file, "--kv-events", engine.events, "--seconds", seconds]
        process = subprocess.Popen(
            [*KVREADY, *map(str, command)],
            stderr=subprocess.PIPE, text=True, preexec_fn=lambda: _limit_files(limit),
        )  # fmt: skip
        try:
            while process.poll() is None:
                speak(engine)
                time.sleep(0.05)
        finally:
            process.kill()
        _, errors = process.communicate()
    return process.returncode, errors


def _limit_files(size_bytes: int) -> None:
    """A disk that is full at so many bytes."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, size_bytes))


@pytest.mark.parametrize(
    ("command", "limit"),
    [("record", 0), ("share", 0), ("share", 1_500), ("pairs", 0), ("pairs", 1_500)],
)
def test_a_full_disk_is_one_clear_error_that_names_the_file(
    recording: Path, tmp_path: Path, command: str, limit: int
) -> None:
    file = tmp_path / "out"
    arguments = {
        "record": ["record", file, "--kv-events", f"ipc://{tmp_path}/e", "--seconds", "1"],
        "share": ["share", recording, file],
        "pairs": ["replay", recording, "--pairs", file],
    }[command]
    ended = subprocess.run(
        [*KVREADY, *map(str, arguments)],
        capture_output=True, text=True, check=False, timeout=60,
        preexec_fn=lambda: _limit_files(limit),
    )  # fmt: skip
    assert ended.returncode == 2
    assert f"cannot write {file}" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert command == "pairs" or not file.exists()


@pytest.mark.parametrize("command", ["report", "replay", "settings"])
def test_a_full_output_is_one_clear_error(recording: Path, command: str) -> None:
    arguments = [] if command == "settings" else [str(recording)]
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(
            [*KVREADY, command, *arguments],
            stdout=full, stderr=subprocess.PIPE, text=True, check=False, timeout=60,
        )  # fmt: skip
    assert ended.returncode == 2
    assert ended.stderr.startswith("error: cannot write the standard output")
    assert len(ended.stderr.splitlines()) == 1


def test_records_of_a_later_version_are_left_out_and_exit_with_one(
    kvready, recording: Path, tmp_path: Path
) -> None:
    file = tmp_path / "later.kvr"
    member = gzip.compress(b'[9,0.5,"tap",{"kind":"from_the_future"}]\n')
    file.write_bytes(recording.read_bytes() + member)
    for command in (["report"], ["replay"], ["share"]):
        out = [tmp_path / "out.kvr"] if command == ["share"] else []
        ended = kvready(*command, file, *out)
        assert ended.returncode == 1
        assert "from_the_future" in ended.stderr
        assert "upgrade kvready" in ended.stderr


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("serve",), "no tap is configured"),
        (("serve", "--kv-events", "tcp://h:99999"), "port from 1 to 65535"),
        (("serve", "--kv-events", "nonsense"), "tcp://host:port"),
        (
            ("serve", "--kv-events", "ipc:///e", "--port", "0"),
            "setting api.port (from flag --port)",
        ),
        (("serve", "--kv-events", "ipc:///e", "--dedup", "enforce"), "no policy starts in enforce"),
        (("serve", "--config", "absent.toml"), "cannot read settings file"),
        (
            ("serve", "--kv-events", "ipc:///e", "--link-profile", "published:b200"),
            "choose from published:h200-pcie5, published:gh200, or name a file",
        ),
        (
            ("serve", "--kv-events", "ipc:///e", "--link-profile", "absent.json"),
            "make one with `kvready calibrate",
        ),
        (
            ("serve", "--kv-events", "ipc:///e", "--link-profile", "pyproject.toml"),
            "pyproject.toml is no link profile",
        ),
        (("serve", "--observer-dir", "LICENSE"), "is a file"),
        (("serve", "--kv-events", "tcp://nosuch.invalid:1"), "host cannot be resolved"),
        (
            ("serve", "--kv-events", "tcp://*:1", "--engine-host", "nosuch.invalid"),
            "host cannot be resolved",
        ),
        (
            ("serve", "--kv-events", "ipc:///e", "--replay", "tcp://nosuch.invalid:1"),
            "host cannot be resolved",
        ),
        (
            ("serve", "--kv-events", "ipc:///e", "--host", "nosuch.invalid"),
            "host nosuch.invalid cannot be resolved",
        ),
        (("replay", "absent.kvr"), "cannot read absent.kvr"),
        (("replay", "LICENSE"), "is no kvready recording"),
        (("report", "pyproject.toml"), "is no kvready recording"),
        (("record", "LICENSE", "--kv-events", "ipc:///e"), "never overwritten"),
        (("record", "absent/x.kvr", "--kv-events", "ipc:///e"), "writable folder"),
        (("serve", "--no-such-flag"), "--no-such-flag"),
        (("no-such-command",), "no-such-command"),
    ],
)
def test_wrong_input_is_one_clear_error_and_exit_code_two(kvready, arguments, named: str) -> None:
    ended = kvready(*arguments)
    assert ended.returncode == 2
    assert named in " ".join(ended.stderr.split())
    assert "Traceback" not in ended.stderr


def test_a_typo_in_a_variable_is_an_error(kvready) -> None:
    ended = kvready("settings", KVREADY_API__PROT="1")
    assert ended.returncode == 2
    assert "did you mean KVREADY_API__PORT?" in ended.stderr


def test_settings_are_shown_with_their_origin(kvready, tmp_path: Path) -> None:
    file = tmp_path / "kvready.toml"
    file.write_text("[policies]\ndedup = 'advise'\n", encoding="utf-8")
    ended = kvready("settings", "--config", file, "--json", KVREADY_API__PORT="9000")
    rows = json.loads(ended.stdout)
    assert set(rows) == set(setting_names())
    assert rows["policies.dedup"] == {"value": "advise", "origin": f"file {file}"}
    assert rows["api.port"] == {"value": 9000, "origin": "variable KVREADY_API__PORT"}
    assert rows["api.host"]["origin"] == "default"
    assert "9000" in kvready("settings", KVREADY_API__PORT="9000").stdout


def test_every_setting_has_a_flag_of_serve() -> None:
    text = Path("docs/cli.md").read_text(encoding="utf-8")
    serve = text.partition("## kvready serve")[2].partition("## kvready record")[0]
    missing = [name for name in setting_names() if f"`--{flag_name(name)}`" not in serve]
    assert missing == []


def test_the_generated_pages_are_those_of_the_code() -> None:
    for name, text in generate.documents().items():
        assert (Path("docs") / name).read_text(encoding="utf-8") == text, "run `make generate`"


def test_the_version_is_printed(kvready) -> None:
    assert kvready("--version").stdout.strip()


def test_a_pipe_that_closes_early_is_no_traceback(recording: Path) -> None:
    process = subprocess.Popen(
        [*KVREADY, "report", str(recording)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    assert b"Traceback" not in process.stderr.read()
    process.stderr.close()
    process.wait(60)


@pytest.fixture
def bare_python() -> Path:
    """An environment with the base install alone, as an engine's side has it."""
    python = Path("build/bare/bin/python")
    if not python.exists():
        if os.environ.get("CI"):
            pytest.fail("build/bare is missing; run `make test`")
        pytest.skip("build/bare is missing; run `make test`")
    return python.absolute()


def test_the_base_install_carries_all_that_runs_beside_an_engine(bare_python: Path) -> None:
    script = (
        "import importlib, pkgutil, sys\n"
        "skipped = sys.argv[1].split(',')\n"
        "for root in sys.argv[2:]:\n"
        "    package = importlib.import_module(root)\n"
        "    for found in pkgutil.iter_modules(package.__path__, root + '.'):\n"
        "        if found.name.rpartition('.')[2] not in skipped:\n"
        "            importlib.import_module(found.name)\n"
        "third_party = {'fastapi', 'pydantic', 'typer', 'rich', 'numpy', 'prometheus_client'}\n"
        "assert not (third_party | {'grpc', 'google', 'opentelemetry'}) & set(sys.modules)\n"
    )
    ended = subprocess.run(
        [bare_python, "-c", script, ",".join(NAMED_FOR_AN_ENGINE), *BASE_PACKAGES],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr


def test_the_base_install_says_which_extra_serving_takes(bare_python: Path) -> None:
    ended = subprocess.run(
        [bare_python.parent / "kvready", "serve"],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert ended.returncode == 2
    assert "pip install 'kvready[sidecar]'" in ended.stderr
    assert "Traceback" not in ended.stderr
