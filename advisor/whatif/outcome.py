"""What a simulated run came to: one row a request, one a batch kind, and the links' time."""

from __future__ import annotations

import msgspec


class RequestOutcome(msgspec.Struct, gc=False):
    """One request. Seconds are simulated time; tokens of its prompt by where they came from.

    `arrived_seconds` is when it reached the client's side, `admitted_seconds` when it came under
    the in-flight cap: a time to first token is read from either, and says which.
    """

    request_id: str
    arrived_seconds: float
    prompt_tokens: int
    output_tokens: int
    request_class: str = ""
    tenant: str = ""
    admitted_seconds: float = 0.0
    first_token_seconds: float = 0.0
    finished_seconds: float = 0.0  # 0: it never did
    hbm_tokens: int = 0
    host_tokens: int = 0
    disk_tokens: int = 0
    computed_tokens: int = 0
    nominal_tokens: int = 0  # findable in any tier as it came under the cap
    exposed_seconds: float = 0.0  # of load, that nothing hid
    held_seconds: float = 0.0  # deferred by a policy
    reuse_tokens: int | None = None  # distinct tokens asked for since its prefix was; None: never


class LinkTime(msgspec.Struct):
    """Where one link's time went, in seconds of the run."""

    busy_seconds: float = 0.0
    payload_bytes: int = 0
    copies: int = 0
    idle_no_demand_seconds: float = 0.0  # nobody waits for a load
    idle_scheduler_seconds: float = 0.0  # somebody does, and it was not ordered
    idle_compute_seconds: float = 0.0  # ordered, behind a step or a batch under way


class SimOutcome(msgspec.Struct):
    """One run of one scenario."""

    scenario: str
    workload: str
    requests: list[RequestOutcome]
    elapsed_seconds: float
    prefill_seconds: float = 0.0  # batches with prefill, stalls included
    stall_seconds: float = 0.0  # of these, compute standing still for loads
    decode_seconds: float = 0.0
    idle_seconds: float = 0.0
    prefill_batches: int = 0
    decode_steps: int = 0
    duplicate_tokens: int = 0  # computed while another request computed or held the same
    load_link: LinkTime = msgspec.field(default_factory=LinkTime)
    backup_link: LinkTime = msgspec.field(default_factory=LinkTime)
    fetch_link: LinkTime = msgspec.field(default_factory=LinkTime)
    unfinished: int = 0  # requests that the run's bound cut off
