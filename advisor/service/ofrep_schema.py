"""What is said over OFREP, for the API's description."""

from __future__ import annotations

from typing import Any

from kvready.advisor.flags import FlagReason
from kvready.advisor.policies import ORDER
from kvready.advisor.service.bodies import JSON
from kvready.advisor.service.description import content
from kvready.advisor.service.problems import MEDIA_TYPE

ERRORS = (
    "PARSE_ERROR", "TARGETING_KEY_MISSING", "INVALID_CONTEXT", "GENERAL", "FLAG_NOT_FOUND"
)  # fmt: skip
NAME = {"type": "string", "minLength": 1, "maxLength": 256}
METADATA = {
    "type": "object",
    "additionalProperties": {"type": ["string", "number", "boolean"]},
}
SCHEMAS: dict[str, Any] = {
    "FlagQuestion": {
        "title": "FlagQuestion",
        "description": "Who asks: a hook, by the engine that it is in.",
        "type": "object",
        "required": ["context"],
        "properties": {
            "context": {
                "type": "object",
                "required": ["targetingKey"],
                "properties": {
                    "targetingKey": NAME,
                    "engine": NAME,
                    "pool": NAME,
                    "request_class": NAME,
                    "prefix_group": {
                        "type": "integer",
                        "minimum": 0,
                        "maximum": 2**64 - 1,
                        "description": "Hash of the first block of the request that is asked for.",
                    },
                },
            }
        },
    },
    "FlagAnswer": {
        "title": "FlagAnswer",
        "description": "One flag; a value that is absent is OFF.",
        "type": "object",
        "required": ["key", "value", "reason", "variant", "metadata"],
        "properties": {
            "key": {"enum": [str(policy) for policy in ORDER]},
            "value": {"type": "boolean"},
            "reason": {"enum": [str(reason) for reason in FlagReason]},
            "variant": {"enum": ["on", "off"]},
            "metadata": METADATA,
        },
    },
    "FlagAnswers": {
        "title": "FlagAnswers",
        "description": "All flags, under one revision and lease.",
        "type": "object",
        "required": ["flags", "metadata"],
        "properties": {
            "flags": {"type": "array", "items": {"$ref": "#/components/schemas/FlagAnswer"}},
            "metadata": METADATA,
        },
    },
    "FlagProblem": {
        "title": "FlagProblem",
        "description": "What is wrong with an evaluation.",
        "type": "object",
        "required": ["errorCode", "errorDetails"],
        "properties": {
            "key": {"type": "string"},
            "errorCode": {"enum": list(ERRORS)},
            "errorDetails": {"type": "string"},
        },
    },
}
REFUSED = {
    401: "The token is missing or wrong",
    403: "No token is set, and one is needed beyond loopback",
    408: "The body came too slowly",
    413: "The body is too large",
    415: "Not JSON",
    429: "Too many calls; Retry-After says when to come again",
}


def responses(answer: str, also: int) -> dict[int | str, dict[str, Any]]:
    """What a route may answer; `also`: 304 or 404."""
    problem = content(JSON, "FlagProblem")
    found: dict[int | str, dict[str, Any]] = {
        200: {"description": "Evaluated", **content(JSON, answer)},
        503: {"description": "Not now: what was held runs out", **problem},
    }
    # Some refusals come before the protocol is reached, as problem documents.
    both = {"content": problem["content"] | content(MEDIA_TYPE, "Problem")["content"]}
    found[400] = {"description": "The body, or the context in it, is wrong", **both}
    for status, text in REFUSED.items():
        found[status] = {"description": text, **content(MEDIA_TYPE, "Problem")}
    if also == 304:
        found[304] = {"description": "As the caller holds it, for another lease"}
    else:
        found[404] = {"description": "No such flag", **both}
    return found
