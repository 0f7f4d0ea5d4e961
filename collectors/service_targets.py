"""What a run's requests were held to, as a recording's header carries it.

As with what loads start from: equal recordings give equal reports only where both start alike.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

Positive = Annotated[float, Meta(gt=0, le=1e9)]


class ServiceTargets(msgspec.Struct, frozen=True):
    """What holds for requests that bring no targets of their own; None: nothing asked."""

    ttft_seconds: Positive | None = None
    output_tokens_per_second: Positive | None = None

    @property
    def described(self) -> str:
        """In words, for the conditions of a figure."""
        told = []
        if self.ttft_seconds is not None:
            told.append(f"{self.ttft_seconds:g} s")
        if self.output_tokens_per_second is not None:
            told.append(f"{self.output_tokens_per_second:g} output tokens/s")
        return ", ".join(told) or "none set"


NO_TARGETS = ServiceTargets()
