"""What kvready itself exports over OTLP, and where to: the `telemetry` section of the settings."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

from pydantic import Field, field_validator

from kvready.advisor.tap_settings import Section

SIGNAL_PATHS = ("/v1/metrics", "/v1/traces")


class TelemetrySettings(Section):
    """What is exported over OTLP, and where to; nothing unless an endpoint is named."""

    export_endpoint: str | None = Field(
        None,
        description="Collector that gets kvready's own metrics and spans over OTLP/HTTP, such as "
        "http://127.0.0.1:4318; none: nothing is exported.",
    )
    export_seconds: float = Field(
        30.0, ge=1, le=3_600, description="Time between two exports of the metrics."
    )
    export_headers_file: Path | None = Field(
        None,
        description="File of headers for that collector, `name: value` a line; the variable "
        "OTEL_EXPORTER_OTLP_HEADERS serves too.",
    )
    span_ratio: float = Field(
        0.01,
        ge=0,
        le=1,
        description="Share of readiness answers, and of gate verdicts that say what the last one "
        "said, that get a span; what changes always gets one; 0: no spans at all.",
    )

    @field_validator("export_endpoint")
    @classmethod
    def _is_a_collector(cls, endpoint: str | None) -> str | None:
        if endpoint is None:
            return None
        try:
            parts = urlsplit(endpoint)
            host, _ = parts.hostname, parts.port
        except ValueError:
            parts, host = urlsplit(""), None
        if parts.scheme not in ("http", "https") or not host or parts.query or parts.fragment:
            raise ValueError(
                "this is no place to export to; write http://HOST:4318 or https://HOST:4318"
            )
        if parts.username is not None or parts.password is not None:
            raise ValueError(
                "credentials in an address end up in logs; put them into a header, in the file "
                "that export_headers_file names"
            )
        base = endpoint.rstrip("/")
        if base.endswith(SIGNAL_PATHS):
            raise ValueError("name the collector without /v1/...; each signal adds its own path")
        return base
