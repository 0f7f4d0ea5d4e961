"""What the compute model of a run started from, as a recording's header carries it.

As with loads: equal recordings give equal forecasts only where both start alike.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from kvready.collectors.load_start import Name

MAX_TERMS = 16

Cost = Annotated[float, Meta(ge=0)]
Costs = Annotated[tuple[Cost, ...], Meta(min_length=1, max_length=MAX_TERMS)]


class ComputeStart(msgspec.Struct, frozen=True):
    """Seconds per unit of each term of a batch with prefill, and of one without."""

    name: Name
    described: Name
    prefill: Costs
    decode: Costs
