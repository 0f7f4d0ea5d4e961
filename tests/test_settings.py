"""Settings: layers in order, origins told, nothing unknown accepted."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvready.advisor.policies import Mode, Policy
from kvready.advisor.settings import (
    environment_name,
    load_settings,
    setting_names,
)
from kvready.advisor.tap_settings import TapSettings
from kvready.collectors.errors import SettingsError


@pytest.fixture
def toml(tmp_path: Path):
    def write(text: str) -> Path:
        file = tmp_path / "kvready.toml"
        file.write_text(text, encoding="utf-8")
        return file

    return write


def test_each_layer_overrides_the_one_below_and_is_named(toml, monkeypatch) -> None:
    file = toml("[api]\nport = 9001\n[taps]\npublisher = 'file'\nsilence_seconds = 5\n")
    monkeypatch.setenv("KVREADY_TAPS__PUBLISHER", "variable")
    monkeypatch.setenv("KVREADY_API__PORT", "9002")
    effective = load_settings(file, {"api.port": 9003, "taps.content_keys": None})
    assert effective.settings.api.port == 9003
    assert effective.settings.taps.publisher == "variable"
    assert effective.settings.taps.silence_seconds == 5
    assert effective.settings.taps.content_keys is False
    assert effective.origins["api.port"] == "flag --port"
    assert effective.origins["taps.publisher"] == "variable KVREADY_TAPS__PUBLISHER"
    assert effective.origins["taps.silence_seconds"] == f"file {file}"
    assert effective.origins["taps.content_keys"] == "default"


def test_the_file_may_be_named_by_a_variable(toml, monkeypatch) -> None:
    monkeypatch.setenv("KVREADY_CONFIG", str(toml("[api]\nport = 9001\n")))
    assert load_settings().settings.api.port == 9001


def test_endpoints_are_given_as_a_list_or_separated_by_commas(toml, monkeypatch) -> None:
    listed = load_settings(toml("[taps]\nkv_events = ['ipc:///a', 'ipc:///b']\n"))
    monkeypatch.setenv("KVREADY_TAPS__KV_EVENTS", "ipc:///a, ipc:///b")
    assert load_settings().settings.taps.kv_events == listed.settings.taps.kv_events
    assert listed.settings.taps.kv_events == ("ipc:///a", "ipc:///b")


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[taps]\nkv_event = ['ipc:///a']\n", "did you mean taps.kv_events?"),
        ("[tap]\nkv_events = []\n", "did you mean taps?"),
        ("port = 1\n", "known are: api, calibration, policies, recording, taps"),
        ("[policies]\ndedupe = 'off'\n", "did you mean policies.dedup?"),
        ("[api\n", "is not TOML"),
        ("[api]\nport = 70000\n", "less than or equal to 65535"),
        ("[api]\nport = 'x'\n", "api.port (from file "),
    ],
)
def test_a_wrong_file_is_refused_with_the_fix(toml, text: str, named: str) -> None:
    with pytest.raises(SettingsError) as refused:
        load_settings(toml(text))
    assert named in str(refused.value)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="cannot read settings file"):
        load_settings(tmp_path / "absent.toml")


def test_an_unknown_variable_is_refused_and_the_nearest_named(monkeypatch) -> None:
    monkeypatch.setenv("KVREADY_TAPS__OBSERVERDIR", "x")
    with pytest.raises(SettingsError, match="did you mean KVREADY_TAPS__OBSERVER_DIR"):
        load_settings()


@pytest.mark.parametrize(
    "variable", ["KVREADY_OBSERVER", "KVREADY_PROBE_LOG", "KVREADY_ENGINE_PYTHON", "KVREADY_KILL"]
)
def test_variables_that_other_parts_read_are_left_alone(monkeypatch, variable: str) -> None:
    monkeypatch.setenv(variable, "x")
    assert set(load_settings().origins.values()) == {"default"}


@pytest.mark.parametrize("policy", list(Policy))
@pytest.mark.parametrize("mode", [mode for mode in Mode if mode.acts])
def test_an_enforcing_mode_is_refused(policy: Policy, mode: str) -> None:
    with pytest.raises(SettingsError, match="no policy starts in"):
        load_settings(flags={f"policies.{policy}": mode})


@pytest.mark.parametrize("policy", list(Policy))
def test_a_policy_starts_no_higher_than_it_is_told(policy: Policy, monkeypatch) -> None:
    assert getattr(load_settings().settings.policies, policy) is None
    monkeypatch.setenv(f"KVREADY_POLICIES__{policy.upper()}", "advise")
    assert getattr(load_settings().settings.policies, policy) is Mode.ADVISE


@pytest.mark.parametrize("name", ["taps.kv_events", "taps.replay"])
@pytest.mark.parametrize(
    "endpoint", ["127.0.0.1:5557", "udp://127.0.0.1:5557", "ipc://", "tcp://h", "tcp://h:99999"]
)
def test_an_endpoint_that_can_never_deliver_is_refused(name: str, endpoint: str) -> None:
    flags = {"taps.kv_events": ("ipc:///good",), name: (endpoint,)}
    with pytest.raises(SettingsError, match=f"setting {name} .*from flag") as refused:
        load_settings(flags=flags)
    assert "ipc:///path" in str(refused.value) or "tcp://host:port" in str(refused.value)


def test_replay_endpoints_must_belong_to_event_endpoints() -> None:
    with pytest.raises(SettingsError, match="2 replay endpoints for 1 kv_events"):
        load_settings(
            flags={"taps.kv_events": ("ipc:///a",), "taps.replay": ("ipc:///b", "ipc:///c")}
        )


@given(st.sampled_from(setting_names()))
def test_every_setting_has_one_variable_of_its_own(name: str) -> None:
    assert [
        other for other in setting_names() if environment_name(other) == environment_name(name)
    ] == [name]


@given(st.text(alphabet="abcdefghijklmnopqrstuvwxyz_", min_size=1, max_size=12))
def test_no_unknown_key_passes(key: str) -> None:
    name = f"taps.{key}"
    if name in setting_names():
        return
    with pytest.raises(SettingsError, match="unknown setting"):
        load_settings(flags={name: 1})


def test_ranks_of_one_tcp_endpoint_are_a_port_apart() -> None:
    given = {"kv_events": ("tcp://*:5557",), "replay": ("tcp://*:6557",), "ranks": 3}
    assert TapSettings(**given).endpoints == (
        ("tcp://*:5557", "tcp://*:6557"),
        ("tcp://*:5558", "tcp://*:6558"),
        ("tcp://*:5559", "tcp://*:6559"),
    )
    assert TapSettings(kv_events=("tcp://*:5557",), ranks=2).endpoints[1] == ("tcp://*:5558", None)
    apart = ("ipc:///a", "tcp://*:9")
    assert TapSettings(kv_events=apart).endpoints == (("ipc:///a", None), ("tcp://*:9", None))


@pytest.mark.parametrize(
    ("kv_events", "replay", "words"),
    [
        (("ipc:///a",), (), "vLLM refuses an ipc endpoint for ranks above 0"),
        (("tcp://*:1", "tcp://*:2"), (), "exactly one kv_events endpoint"),
        (("tcp://*:5557",), ("tcp://*:5558",), "ranks collide"),
        (("tcp://*:65535",), (), "past port 65535"),
    ],
)
def test_ranks_that_can_have_no_endpoint_are_refused_with_the_reason(
    kv_events: tuple[str, ...], replay: tuple[str, ...], words: str
) -> None:
    flags = {"taps.kv_events": kv_events, "taps.replay": replay, "taps.ranks": 2}
    with pytest.raises(SettingsError, match=words):
        load_settings(flags=flags)


@pytest.mark.parametrize(
    ("text", "place"),
    [("none", None), ("published:gh200", "published:gh200"), ("/etc/box.json", "/etc/box.json")],
)
def test_a_link_profile_is_a_file_a_published_one_or_none(
    toml, monkeypatch, text: str, place: str | None
) -> None:
    assert load_settings().settings.calibration.link_profile is None
    file = toml(f"[calibration]\nlink_profile = {text!r}\n")
    assert load_settings(file).settings.calibration.link_profile == place
    monkeypatch.setenv("KVREADY_CALIBRATION__LINK_PROFILE", text)
    assert load_settings().settings.calibration.link_profile == place


@pytest.mark.parametrize("place", ["published:b200", "", 5])
def test_a_link_profile_that_names_nothing_is_refused(place: object) -> None:
    with pytest.raises(SettingsError, match=r"calibration\.link_profile"):
        load_settings(flags={"calibration.link_profile": place})


def test_a_section_that_is_no_table_is_told_to_be_one(toml) -> None:
    with pytest.raises(SettingsError, match=r"api in .* must be a table: write \[api\]"):
        load_settings(toml("api = 3\n"))
