"""Schemas that the API's description needs and that no pydantic model of a route brings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI

REFERENCE = "#/components/schemas/{name}"


def content(media_type: str, name: str) -> dict[str, Any]:
    """A body of a named schema."""
    return {"content": {media_type: {"schema": {"$ref": REFERENCE.format(name=name)}}}}


def add_schemas(app: FastAPI, schemas: Mapping[str, Any]) -> None:
    """Have the description of `app` define these too."""
    described_before = app.openapi

    def openapi() -> dict[str, Any]:
        described = described_before()
        defined = described.setdefault("components", {}).setdefault("schemas", {})
        for name, schema in schemas.items():
            defined.setdefault(name, schema)
        return described

    app.openapi = openapi  # type: ignore[method-assign]
