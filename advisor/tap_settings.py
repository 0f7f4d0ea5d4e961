"""Where an engine's taps are, and how they are read: the `taps` section of the settings."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator
from pydantic_settings import NoDecode

from kvready.collectors.endpoint import live_endpoint, of_rank, replay_endpoint
from kvready.collectors.errors import TapError
from kvready.collectors.http_get import engine_url
from kvready.collectors.metrics_tap import MIN_EVERY_SECONDS
from kvready.collectors.otlp_forward import parse_downstream

MAX_ENDPOINTS = 64
RESERVED_NAMES = frozenset({"observer", "recorder", "metrics", "spans"})


class Section(BaseModel):
    """A part of the settings: nothing unknown, nothing changed."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class TapSettings(Section):
    """Where the engine's taps are, and how they are read."""

    kv_events: Annotated[tuple[str, ...], NoDecode] = Field(
        (), description="KV-event endpoints exactly as the engine was given them, one per rank."
    )
    ranks: int = Field(
        1,
        ge=1,
        le=MAX_ENDPOINTS,
        description="Data-parallel ranks behind one tcp endpoint: rank r is at its port plus r.",
    )
    replay: Annotated[tuple[str, ...], NoDecode] = Field(
        (), description="Replay endpoints that belong to `kv_events`, in the same order."
    )
    engine_host: str = Field(
        "127.0.0.1",
        min_length=1,
        description="Host that `*` in an endpoint stands for: where the engine runs.",
    )
    observer_dir: Path | None = Field(
        None, description="Directory in which the in-engine observer keeps its sockets."
    )
    metrics_url: str | None = Field(
        None, description="The engine's HTTP server, whose /metrics is scraped by GET."
    )
    metrics_seconds: float = Field(
        MIN_EVERY_SECONDS,
        ge=MIN_EVERY_SECONDS,
        le=600,
        description="Time between two scrapes; each costs the engine's API process some.",
    )
    otlp_http_port: int | None = Field(
        None, ge=1, le=65535, description="Port that takes the engine's spans over HTTP; none: off."
    )
    otlp_grpc_port: int | None = Field(
        None, ge=1, le=65535, description="Port that takes the engine's spans over gRPC; none: off."
    )
    otlp_host: str = Field(
        "127.0.0.1",
        min_length=1,
        description="Address to take spans on. Beyond loopback, their times cannot be placed.",
    )
    otlp_forward: str | None = Field(
        None, description="Collector to pass spans on to: grpc://host:4317 or http://host:4318."
    )
    content_keys: bool = Field(
        False, description="Hash each block's tokens on arrival, so that prompts can be looked up."
    )
    publisher: str = Field(
        "kv-events", min_length=1, description="Name of the KV-event tap, and of its blocks."
    )
    silence_seconds: float = Field(
        30.0, gt=0, le=3600, description="A tap that delivered nothing for so long is silent."
    )
    state_dir: Path | None = Field(
        None,
        description="Directory that remembers replay requests across restarts; none: "
        "$XDG_STATE_HOME/kvready, or ~/.local/state/kvready.",
    )

    @field_validator("kv_events", "replay", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        if isinstance(value, str):
            return tuple(part.strip() for part in value.split(",") if part.strip())
        return value

    @field_validator("kv_events", "replay")
    @classmethod
    def _can_deliver(cls, endpoints: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        if len(endpoints) > MAX_ENDPOINTS:
            raise ValueError(f"{len(endpoints)} endpoints; at most {MAX_ENDPOINTS} are read")
        for endpoint in endpoints:
            try:
                live_endpoint(endpoint) if info.field_name == "kv_events" else replay_endpoint(
                    endpoint
                )
            except TapError as error:
                raise ValueError(str(error)) from None
        return endpoints

    @field_validator("metrics_url", "otlp_forward")
    @classmethod
    def _is_an_address(cls, address: str | None, info: ValidationInfo) -> str | None:
        if address is None:
            return None
        try:
            if info.field_name == "metrics_url":
                return engine_url(address)
            parse_downstream(address)
        except TapError as error:
            raise ValueError(str(error)) from None
        return address

    @field_validator("publisher")
    @classmethod
    def _is_free(cls, name: str) -> str:
        if name in RESERVED_NAMES:
            raise ValueError(f"{name!r} is the name of another tap; choose another")
        return name

    @model_validator(mode="after")
    def _outside_taps_match(self) -> TapSettings:
        receives = self.otlp_http_port is not None or self.otlp_grpc_port is not None
        if self.otlp_forward is not None and not receives:
            raise ValueError(
                "otlp_forward has nothing to pass on; set otlp_grpc_port or otlp_http_port too"
            )
        if self.metrics_url is not None and self.silence_seconds < 2 * self.metrics_seconds:
            raise ValueError(
                f"silence_seconds {self.silence_seconds:g} calls a tap silent that is asked every "
                f"{self.metrics_seconds:g} s; make it at least {2 * self.metrics_seconds:g}"
            )
        return self

    @property
    def names_a_tap(self) -> bool:
        """Whether anything is to be listened to."""
        return bool(self.kv_events) or any(
            tap is not None
            for tap in (
                self.observer_dir,
                self.metrics_url,
                self.otlp_http_port,
                self.otlp_grpc_port,
            )
        )

    @model_validator(mode="after")
    def _replay_matches(self) -> TapSettings:
        if self.replay and len(self.replay) != len(self.kv_events):
            raise ValueError(
                f"{len(self.replay)} replay endpoints for {len(self.kv_events)} kv_events "
                "endpoints; give one per kv_events endpoint, in the same order, or none"
            )
        return self

    @model_validator(mode="after")
    def _ranks_have_endpoints(self) -> TapSettings:
        if self.ranks == 1:
            return self
        if len(self.kv_events) != 1:
            raise ValueError(
                f"ranks = {self.ranks} needs exactly one kv_events endpoint, that of rank 0; "
                "with one endpoint per rank leave ranks out"
            )
        try:
            endpoints = self.endpoints
        except TapError as error:
            raise ValueError(str(error)) from None
        ports = [address.rpartition(":")[2] for pair in endpoints for address in pair if address]
        if len(set(ports)) < len(ports):
            raise ValueError(
                f"kv_events and replay lie less than {self.ranks} ports apart, so that ranks "
                "collide; move one of them in the engine's configuration"
            )
        return self

    @property
    def endpoints(self) -> tuple[tuple[str, str | None], ...]:
        """KV-event and replay endpoint of each rank. Raises TapError where a rank can have none."""
        replay = self.replay or (None,) * len(self.kv_events)
        if self.ranks == 1:
            return tuple(zip(self.kv_events, replay, strict=True))
        return tuple(
            (of_rank(self.kv_events[0], rank), replay[0] and of_rank(replay[0], rank))
            for rank in range(self.ranks)
        )
