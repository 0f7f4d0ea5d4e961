"""The readiness contract as JSON Schema, generated from the structs that are the contract."""

from __future__ import annotations

from typing import Any

import msgspec

from kvready.advisor.contract import CONTRACT_VERSION, LARGEST_HASH, Answers, Question
from kvready.advisor.model_cards import ModelCards
from kvready.advisor.questions import NAMES

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def components(ref_template: str) -> dict[str, Any]:
    """Every struct of the contract by its name."""
    _, found = msgspec.json.schema_components(
        (Question, Answers, ModelCards), ref_template=ref_template
    )
    candidate = found["Candidate"]
    # What the types alone do not say.
    candidate["oneOf"] = [{"required": [name]} for name in NAMES]
    for name in NAMES:
        candidate["properties"][name] = _without_null(candidate["properties"][name])
    hashes = candidate["properties"]["block_hashes"]
    hashes["minItems"] = candidate["properties"]["token_ids"]["minItems"] = 1
    candidate["properties"]["request_id"]["minLength"] = 1
    hashes["items"] = {"type": "integer", "minimum": 0, "maximum": LARGEST_HASH}
    return found


def document() -> dict[str, Any]:
    """A schema that any question and any answer of the contract satisfies."""
    reference = "#/$defs/{name}"
    return {
        "$schema": DIALECT,
        "title": f"kvready readiness contract, version {CONTRACT_VERSION}",
        "anyOf": [{"$ref": reference.format(name=name)} for name in ("Question", "Answers")],
        "$defs": components(reference),
    }


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """A member that names a candidate is left out, not null."""
    kinds = [kind for kind in schema.get("anyOf", [schema]) if kind != {"type": "null"}]
    return dict(kinds[0]) if len(kinds) == 1 else schema
