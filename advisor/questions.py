"""From what a caller asks to what is looked up and recorded: checked, hashed, without tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kvready.advisor import contract
from kvready.advisor.contract import Candidate, Question, Resource
from kvready.advisor.decision import ANYTHING
from kvready.collectors.asked import AskedCandidate, AskedResource
from kvready.collectors.errors import QuestionError, QuestionFault
from kvready.collectors.hashing import content_keys, extra_key_hash
from kvready.collectors.records import ReadinessAsked

NAMES = ("request_id", "block_hashes", "token_ids", "resource")


class ContentKeys:
    """How the engine's blocks are told by their content, where they are."""

    def __init__(self, are_on: bool, block_tokens: Callable[[int], int]) -> None:
        self.are_on = are_on
        self.block_tokens = block_tokens  # of a rank; 0: not told yet


def asked_of(question: Question, keys: ContentKeys) -> ReadinessAsked:
    """The question as it is answered and recorded. Raises `QuestionError` that names the fix."""
    count = len(question.candidates)
    if not 1 <= count <= contract.MAX_CANDIDATES:
        raise QuestionError(
            QuestionFault.TOO_LARGE,
            f"{count} candidates; ask for 1 to {contract.MAX_CANDIDATES:,} at a time",
        )
    _check_work(question.candidates)
    return ReadinessAsked(
        tuple([_asked(place, one, keys) for place, one in enumerate(question.candidates)])
    )


def _check_work(candidates: Sequence[Candidate]) -> None:
    hashes = sum(len(one.block_hashes or ()) for one in candidates)
    if hashes > contract.MAX_HASHES:
        raise QuestionError(
            QuestionFault.TOO_LARGE,
            f"{hashes:,} block hashes in one call; at most {contract.MAX_HASHES:,}: ask in parts",
        )
    tokens = sum(len(one.token_ids or ()) for one in candidates)
    if tokens > contract.MAX_TOKENS:
        raise QuestionError(
            QuestionFault.TOO_LARGE,
            f"{tokens:,} token ids in one call; at most {contract.MAX_TOKENS:,}: ask in parts",
        )


def _asked(place: int, candidate: Candidate, keys: ContentKeys) -> AskedCandidate:
    named = [name for name in NAMES if getattr(candidate, name) is not None]
    if len(named) != 1:
        raise QuestionError(
            QuestionFault.MALFORMED,
            f"candidates[{place}] is named by {' and '.join(named) or 'nothing'}; "
            f"give exactly one of {', '.join(NAMES)}",
        )
    tolerates = candidate.tolerates or ANYTHING
    name = named[0]
    return AskedCandidate(
        request_id=_request_id(place, candidate) if name == "request_id" else "",
        block_hashes=_hashes(place, candidate) if name == "block_hashes" else (),
        content_keys=_content_keys(place, candidate, keys) if name == "token_ids" else (),
        resource=_resource(place, candidate.resource) if candidate.resource else None,
        prompt_tokens=len(candidate.token_ids) if candidate.token_ids else candidate.prompt_tokens,
        rank=candidate.rank,
        deadline_seconds=candidate.deadline_seconds,
        sm_share=tolerates.sm_share,
        prefill_slowdown=tolerates.prefill_slowdown,
        decode_slowdown=tolerates.decode_slowdown,
    )


def _request_id(place: int, candidate: Candidate) -> str:
    if not candidate.request_id:
        raise QuestionError(
            QuestionFault.MALFORMED, f"candidates[{place}].request_id is empty; name a request"
        )
    return candidate.request_id


def _hashes(place: int, candidate: Candidate) -> tuple[int, ...]:
    hashes = candidate.block_hashes or ()
    if not hashes:
        raise QuestionError(
            QuestionFault.MALFORMED,
            f"candidates[{place}].block_hashes is empty; give the prompt's block hashes in order",
        )
    if min(hashes) < 0 or max(hashes) > contract.LARGEST_HASH:
        raise QuestionError(
            QuestionFault.MALFORMED,
            f"candidates[{place}].block_hashes holds a number that is no unsigned 64-bit hash; "
            "send what the engine's KV events carry (of a longer digest, the last 8 bytes)",
        )
    return hashes


def _content_keys(place: int, candidate: Candidate, keys: ContentKeys) -> tuple[int, ...]:
    tokens = candidate.token_ids or ()
    if not tokens:
        raise QuestionError(
            QuestionFault.MALFORMED,
            f"candidates[{place}].token_ids is empty; give the prompt's token ids",
        )
    if not keys.are_on:
        raise QuestionError(
            QuestionFault.CONTENT_KEYS_OFF,
            "blocks are not told by their content here, so that no token ids can be looked up; "
            "set taps.content_keys (--content-keys) and restart, or ask by block_hashes",
        )
    block = keys.block_tokens(candidate.rank)
    if not block:
        raise QuestionError(
            QuestionFault.NOT_YET,
            f"rank {candidate.rank} has not told its block size yet, so that tokens cannot be cut "
            "into blocks; ask again once it has served a request, or name another rank",
        )
    blocks = len(tokens) // block
    every = [candidate.adapter] if candidate.adapter else []
    first = [*every, candidate.cache_salt] if candidate.cache_salt else every
    extra = (extra_key_hash(first), *[extra_key_hash(every)] * (blocks - 1)) if first else ()
    return content_keys(tokens, block, extra[:blocks])


def _resource(place: int, resource: Resource) -> AskedResource:
    held = sum(resource.payload_bytes.values())
    if not held and not resource.total_bytes:
        raise QuestionError(
            QuestionFault.MALFORMED,
            f"candidates[{place}].resource has no bytes; say in payload_bytes how many are where",
        )
    return AskedResource(resource.payload_bytes, resource.fragments, resource.total_bytes)
