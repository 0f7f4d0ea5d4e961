"""How long a batch computes: a cost model of prefill and decode, fitted online from batches."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from kvready.advisor.fitting import OnlineFit
from kvready.collectors.compute_start import ComputeStart
from kvready.collectors.errors import RecordingError
from kvready.collectors.records import BatchMember

REFIT_EVERY = 16  # observations; each of the first 16 refits at once
MODEL = "compute-nnls-3"

# Where the fit starts before any batch was seen, if no machine and model are named: costs, by order
# of magnitude, of a small model on a CPU. Evidence replaces them within a few dozen batches.
GENERIC_FIXED_SECONDS = 2e-3
GENERIC_SECONDS_PER_TOKEN = 5e-5
GENERIC_SECONDS_PER_TOKEN_PAIR = 5e-9
GENERIC_SECONDS_PER_DECODE = 5e-4
GENERIC_SECONDS_PER_DECODE_CONTEXT_TOKEN = 1e-7

TYPICAL_PREFILL = (1.0, 256.0, 256.0 * 1024.0, 4.0, 4096.0)
TYPICAL_DECODE = (1.0, 4.0, 4096.0)
DECODE_TERMS = ("batch", "decode", "decode_context_token")
PREFILL_TERMS = ("batch", "token", "token_pair", "decode", "decode_context_token")

Features = tuple[float, float, float, float, float]


def batch_features(members: Iterable[BatchMember]) -> Features:
    """What a batch's cost depends on (the terms of Strata's F, section on compute cost).

    A constant; new prefill tokens n; attention pairs n*p + n(n+1)/2 over each prefix p; decoding
    requests; the context that decodes read.
    """
    prefill_tokens = token_pairs = decodes = decode_context = 0
    for member in members:
        new, context = member.new_tokens, member.context_tokens
        if member.is_prefill:
            prefill_tokens += new
            token_pairs += new * context + new * (new + 1) // 2
        else:
            decodes += 1
            decode_context += context
    return (
        1.0,
        float(prefill_tokens),
        float(token_pairs),
        float(decodes),
        float(decode_context),
    )


class ComputePrior(NamedTuple):
    """Seconds per unit of each term before any batch was seen, and whose figures they are."""

    name: str
    described: str
    prefill: tuple[float, ...]
    decode: tuple[float, ...]

    def told(self) -> ComputeStart | None:
        """As a recording carries it; None where nothing was given."""
        return None if self == GENERIC_PRIOR else ComputeStart(*self)

    @classmethod
    def of_told(cls, start: ComputeStart | None) -> ComputePrior:
        """Back from `told`. Raises `RecordingError` for costs of other terms, or of no engine."""
        if start is None:
            return GENERIC_PRIOR
        lengths = (len(start.prefill), len(start.decode))
        costs = (*start.prefill, *start.decode)
        whole = lengths == (len(PREFILL_TERMS), len(DECODE_TERMS))
        if not whole or not all(map(math.isfinite, costs)) or not start.prefill[0] > 0.0:
            raise RecordingError(
                f"the recording's header says that compute starts from {start.name!r}, but its "
                "costs cannot be used: upgrade kvready, or record anew"
            )
        return cls(start.name, start.described, start.prefill, start.decode)


GENERIC_PRIOR = ComputePrior(
    "generic",
    "generic: no GPU and model given",
    (
        GENERIC_FIXED_SECONDS,
        GENERIC_SECONDS_PER_TOKEN,
        GENERIC_SECONDS_PER_TOKEN_PAIR,
        GENERIC_SECONDS_PER_DECODE,
        GENERIC_SECONDS_PER_DECODE_CONTEXT_TOKEN,
    ),
    (
        GENERIC_FIXED_SECONDS,
        GENERIC_SECONDS_PER_DECODE,
        GENERIC_SECONDS_PER_DECODE_CONTEXT_TOKEN,
    ),
)


class ComputeFit(NamedTuple):
    """Seconds per unit of each term, and the batches they were learned from."""

    coefficients: dict[str, float]
    observations: int


class ComputeModel:
    """Seconds of a batch. Refits are triggered by counts, so that a replay repeats them.

    Batches with and without prefill are fitted apart: an hour of decoding must not wear away what
    was learned of prefill.
    """

    def __init__(self, prior: ComputePrior = GENERIC_PRIOR) -> None:
        self.prior = prior
        self._prefill = OnlineFit(prior.prefill, TYPICAL_PREFILL, robust=True)
        self._decode = OnlineFit(prior.decode, TYPICAL_DECODE, robust=True)
        self._refits = 0

    @property
    def version(self) -> str:
        """Names the coefficients that a forecast was made with."""
        return f"{MODEL}.{self._refits}+{self.prior.name}"

    @property
    def prefill_observations(self) -> int:
        """Batches with prefill that were learned from."""
        return self._prefill.observations

    def fits(self) -> dict[str, ComputeFit]:
        """What was learned, by kind of batch."""
        return {
            "prefill": ComputeFit(
                dict(zip(PREFILL_TERMS, self._prefill.coefficients, strict=True)),
                self._prefill.observations,
            ),
            "decode": ComputeFit(
                dict(zip(DECODE_TERMS, self._decode.coefficients, strict=True)),
                self._decode.observations,
            ),
        }

    def batch_seconds(self, members: Iterable[BatchMember]) -> float:
        """Predicted seconds from planning a batch to its results."""
        fit, features = self._fit(members)
        return fit.predict(features)

    def recompute_seconds(self, new_tokens: int, context_tokens: int, chunk_tokens: int) -> float:
        """Predicted seconds to prefill `new_tokens` alone, in chunks, after a context."""
        if new_tokens <= 0:
            return 0.0
        # Costs are linear in these sums over the chunks, so that no chunk need be gone through.
        chunks = -(-new_tokens // max(chunk_tokens, 1))
        token_pairs = new_tokens * context_tokens + new_tokens * (new_tokens + 1) // 2
        batch, token, token_pair, _, _ = self._prefill.coefficients
        return chunks * batch + new_tokens * token + token_pairs * token_pair

    def learn(self, members: Iterable[BatchMember], actual_seconds: float) -> None:
        """Take in one finished batch."""
        if actual_seconds <= 0.0:
            return
        fit, features = self._fit(members)
        fit.learn(features, actual_seconds)
        if fit.observations <= REFIT_EVERY or fit.observations % REFIT_EVERY == 0:
            fit.solve()
            self._refits += 1

    def _fit(self, members: Iterable[BatchMember]) -> tuple[OnlineFit, tuple[float, ...]]:
        features = batch_features(members)
        if features[1] > 0.0:
            return self._prefill, features
        constant, _, _, decodes, decode_context = features
        return self._decode, (constant, decodes, decode_context)
