"""What an operator may set, and where each value came from.

Layers, weakest first: defaults, a TOML file, `KVREADY_*` variables (`__` between levels), flags.
A key that nothing reads is an error in every layer: a typo must not silently mean the default.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
)
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from kvready.advisor.canary import CONTROL_PERCENT, MAX_CONTROL_PERCENT, Shares
from kvready.advisor.kill_switch import KILL_VARIABLE
from kvready.advisor.policies import Mode
from kvready.advisor.roofline import GPUS
from kvready.advisor.tap_settings import Section, TapSettings
from kvready.advisor.target_settings import TargetSettings
from kvready.advisor.telemetry_settings import TelemetrySettings
from kvready.collectors.errors import SettingsError
from kvready.kernels.profile_source import PUBLISHED_NAMES, PUBLISHED_PREFIX

ENV_PREFIX = "KVREADY_"
ENV_NESTING = "__"
CONFIG_VARIABLE = "KVREADY_CONFIG"
OPERATOR_VARIABLE, ADMIN_VARIABLE = "KVREADY_OPERATOR_TOKEN", "KVREADY_ADMIN_TOKEN"
# Variables of the same prefix that other parts read: in the engine, in probes and in tests.
FOREIGN_VARIABLES = frozenset(
    {
        CONFIG_VARIABLE,
        KILL_VARIABLE,
        OPERATOR_VARIABLE,
        ADMIN_VARIABLE,
        "KVREADY_OBSERVER",
        "KVREADY_ENGINE_PYTHON",
    }
)
FOREIGN_PREFIXES = ("KVREADY_HOOK_", "KVREADY_OBSERVER_", "KVREADY_PROBE_")


MAX_RANKS = 1_024  # that share one model


HIGHEST_START = Mode.ADVISE  # more is earned, and commanded


class ApiSettings(Section):
    """Where the sidecar answers."""

    host: str = Field(
        "127.0.0.1",
        min_length=1,
        description="Address to listen on. Beyond loopback, whoever reaches it sees request ids.",
    )
    port: int = Field(8430, ge=1, le=65535, description="Port to listen on.")
    token_file: Path | None = Field(
        None, description="File whose first line is the bearer token of POST /v1/readiness."
    )
    require_token: bool | None = Field(
        None,
        description="Whether POST /v1/readiness wants the token; null: only beyond loopback.",
    )
    operator_token_file: Path | None = Field(
        None,
        description="File whose first line is the token of who may lower, pause and kill policies, "
        "and raise them up to advise; the variable KVREADY_OPERATOR_TOKEN serves too.",
    )
    admin_token_file: Path | None = Field(
        None,
        description="File whose first line is the token of who may change all of policies; the "
        "variable KVREADY_ADMIN_TOKEN serves too.",
    )
    tls_certificate_file: Path | None = Field(
        None, description="PEM chain to answer over TLS with; none: plain HTTP."
    )
    tls_key_file: Path | None = Field(
        None, description="PEM key of that certificate; none: it is in the same file."
    )
    tls_client_ca_file: Path | None = Field(
        None,
        description="PEM authorities one of which must have signed a caller's certificate; none: "
        "callers show none.",
    )
    readiness_socket: Path | None = Field(
        None, description="Unix socket that answers readiness, a JSON line each way; none: off."
    )


class RecordingSettings(Section):
    """Whether what is seen is kept."""

    path: Path | None = Field(None, description="File that gets every record; none: keep nothing.")


class CalibrationSettings(Section):
    """What is known of this machine's links before the engine has loaded anything."""

    link_profile: str | None = Field(
        None,
        min_length=1,
        description="Link profile: a file that `kvready calibrate` wrote on this machine, "
        f"{' or '.join(PUBLISHED_NAMES)}; none: learn from the engine's loads alone.",
    )

    gpu: str | None = Field(
        None,
        min_length=1,
        description="GPU whose data sheet batches are forecast from until some were seen: "
        f"{', '.join(sorted(GPUS))}; needs a model; none: a generic start.",
    )
    model: str | None = Field(
        None,
        min_length=1,
        description="That model: a config.json, or a preset of `kvready calibrate`.",
    )
    tensor_parallel: int = Field(1, ge=1, le=MAX_RANKS, description="GPUs that share that model.")

    @field_validator("gpu")
    @classmethod
    def _is_listed(cls, name: str | None) -> str | None:
        if name is not None and name.lower() not in GPUS:
            raise ValueError(f"{name!r} is not known; choose from {', '.join(sorted(GPUS))}")
        return name

    @field_validator("link_profile", mode="before")
    @classmethod
    def _is_known(cls, place: object) -> object:
        if place == "none":
            return None
        if str(place).startswith(PUBLISHED_PREFIX) and place not in PUBLISHED_NAMES:
            raise ValueError(
                f"{place!r} is not known; choose from {', '.join(PUBLISHED_NAMES)}, or name a file"
            )
        return place


class PolicySettings(Section):
    """How far each policy goes at a start, and where that is kept."""

    dedup: Mode | None = Field(
        None,
        description="Hold a request whose prefix another one is computing. Highest mode that it "
        "starts in: off, observe, shadow or advise; null: where it was, or shadow.",
    )
    balance: Mode | None = Field(
        None,
        description="Choose batches so that loads run under compute. Highest mode that it starts "
        "in, likewise.",
    )
    gpu_copy: Mode | None = Field(
        None,
        description="Gather KV pages with a GPU kernel instead of many copies. Highest mode that "
        "it starts in, likewise.",
    )
    dedup_auto_promote: bool = Field(
        False, description="Whether dedup goes from shadow to enforce without a person."
    )
    balance_auto_promote: bool = Field(False, description="Whether balance does, likewise.")
    gpu_copy_auto_promote: bool = Field(False, description="Whether gpu_copy does, likewise.")
    canary_percent: int = Field(
        Shares().canary_percent,
        description="Per cent that a canary treats: 1, 5, 20 or 50, of prefix groups for dedup, of "
        "windows for the others.",
    )
    control_percent: int = Field(
        CONTROL_PERCENT,
        ge=1,
        le=MAX_CONTROL_PERCENT,
        description="Per cent that stays untreated when a policy is enforced; never 0.",
    )
    policy_folder: Path | None = Field(
        None,
        description="Folder of modes, gate reports and audit, one per sidecar; none: "
        "policies-PORT in the state directory.",
    )
    kill_file: Path | None = Field(
        None,
        description="File that switches every policy off while it exists, beside the running "
        "user's own and that of the policy folder.",
    )

    @field_validator("canary_percent")
    @classmethod
    def _is_a_share(cls, percent: int) -> int:
        return Shares(canary_percent=percent).canary_percent

    @field_validator("dedup", "balance", "gpu_copy")
    @classmethod
    def _earns_the_rest(cls, mode: Mode | None) -> Mode | None:
        if mode is not None and mode.rank > HIGHEST_START.rank:
            raise ValueError(
                f"no policy starts in {mode}; choose off, observe, shadow or advise, and command "
                "the rest once its gate passes"
            )
        return mode


class Settings(BaseSettings):
    """Everything that can be set."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX, env_nested_delimiter=ENV_NESTING, extra="forbid", frozen=True
    )

    taps: TapSettings = TapSettings()
    api: ApiSettings = ApiSettings()
    recording: RecordingSettings = RecordingSettings()
    calibration: CalibrationSettings = CalibrationSettings()
    policies: PolicySettings = PolicySettings()
    targets: TargetSettings = TargetSettings()
    telemetry: TelemetrySettings = TelemetrySettings()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Only what `load_settings` merged itself, since it must know each value's origin."""
        return (init_settings,)


class EffectiveSettings(BaseModel):
    """Settings with the origin of each value: `default`, the file, the variable or the flag."""

    model_config = ConfigDict(frozen=True)

    settings: Settings
    origins: dict[str, str]


def setting_names() -> tuple[str, ...]:
    """Every key that can be set, dotted."""
    sections: dict[str, type[BaseModel]] = {
        "taps": TapSettings,
        "api": ApiSettings,
        "recording": RecordingSettings,
        "calibration": CalibrationSettings,
        "policies": PolicySettings,
        "targets": TargetSettings,
        "telemetry": TelemetrySettings,
    }
    return tuple(
        f"{section}.{key}" for section, model in sections.items() for key in model.model_fields
    )


def environment_name(name: str) -> str:
    """The variable that sets a dotted key."""
    return ENV_PREFIX + name.replace(".", ENV_NESTING).upper()


def load_settings(
    file: Path | None = None, flags: Mapping[str, object] | None = None
) -> EffectiveSettings:
    """Merge the layers. `flags` are dotted keys; None stands for a flag that was not given.

    Raises `SettingsError` that names the key, its layer and the nearest known key.
    """
    file = file or (Path(os.environ[CONFIG_VARIABLE]) if os.environ.get(CONFIG_VARIABLE) else None)
    merged: dict[str, object] = {}
    origins = dict.fromkeys(setting_names(), "default")
    layers = (
        *((_from_file(file),) if file else ()),
        _from_environment(),
        _from_flags(flags or {}),
    )
    for layer in layers:
        for name, (value, origin) in layer.items():
            merged[name] = value
            origins[name] = origin
    try:
        settings = Settings(**_nested(merged))
    except ValidationError as error:
        raise SettingsError(_explain(error, origins)) from None
    return EffectiveSettings(settings=settings, origins=origins)


Layer = dict[str, tuple[object, str]]


def _from_file(file: Path) -> Layer:
    try:
        content = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"cannot read settings file {file}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"settings file {file} is not TOML: {error}") from None
    layer: Layer = {}
    sections = {name.split(".")[0] for name in setting_names()}
    for section, values in content.items():
        if section not in sections:
            raise SettingsError(
                f"unknown setting [{section}] in {file}; {_nearest(section, sorted(sections))}"
            )
        if not isinstance(values, dict):
            raise SettingsError(
                f"{section} in {file} must be a table: write [{section}] on a line of its own, "
                "and its settings below"
            )
        for key, value in values.items():
            name = f"{section}.{key}"
            if name not in setting_names():
                raise SettingsError(
                    f"unknown setting {name} in {file}; {_nearest(name, setting_names())}"
                )
            layer[name] = (value, f"file {file}")
    return layer


def _from_environment() -> Layer:
    known = {environment_name(name): name for name in setting_names()}
    for variable in os.environ:
        if (
            variable.startswith(ENV_PREFIX)
            and variable not in known
            and variable not in FOREIGN_VARIABLES
            and not variable.startswith(FOREIGN_PREFIXES)
        ):
            raise SettingsError(f"unknown variable {variable}; {_nearest(variable, list(known))}")
    values: dict[str, Any] = EnvSettingsSource(Settings)()
    return {
        name: (values[section][key], f"variable {environment_name(name)}")
        for name in setting_names()
        for section, key in (name.split("."),)
        if key in values.get(section, {})
    }


def _from_flags(flags: Mapping[str, object]) -> Layer:
    unknown = set(flags) - set(setting_names())
    if unknown:
        raise SettingsError(f"unknown setting {sorted(unknown)[0]}")
    return {
        name: (value, f"flag --{flag_name(name)}")
        for name, value in flags.items()
        if value is not None
    }


def flag_name(name: str) -> str:
    """The command-line flag that sets a dotted key, without its dashes."""
    section, key = name.split(".")
    readable = key.replace("_", "-")
    return {"recording": "recording"}.get(section, readable)


def _nested(flat: Mapping[str, object]) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for name, value in flat.items():
        section, key = name.split(".")
        nested.setdefault(section, {})[key] = value
    return nested


def _explain(error: ValidationError, origins: Mapping[str, str]) -> str:
    lines = []
    for item in error.errors():
        name = ".".join(str(part) for part in item["loc"][:2])
        reason = item["msg"].removeprefix("Value error, ")
        origin = origins.get(name)
        lines.append(f"setting {name}" + (f" (from {origin})" if origin else "") + f": {reason}")
    return "\n".join(lines)


def _nearest(wrong: str, known: tuple[str, ...] | list[str]) -> str:
    match = difflib.get_close_matches(wrong, known, n=1, cutoff=0.5)
    if match:
        return f"did you mean {match[0]}?"
    return "known are: " + ", ".join(sorted(known))
