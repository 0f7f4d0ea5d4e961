"""What the suite runs: groups of requests on a machine, and the policies they run under. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from kvready.advisor.whatif.machines import infinite_link, published_machine
from kvready.advisor.whatif.presets import NO_POLICY, Sizes, scenario
from kvready.advisor.whatif.questions import Initial, Order
from kvready.advisor.whatif.scenario import EngineLimits, Scenario
from kvready.advisor.whatif.shapes import ShapeName
from kvready.advisor.whatif.suite.ranges import Claim, Ranges, Setting
from kvready.kernels.model_source import model_from

COARSE, FINE = 256, 32  # tokens of a block
LLAMA_8B, LLAMA_70B, QWEN_14B = "llama-3.1-8b", "llama-3.1-70b", "qwen2.5-14b"
SHAREGPT_QUERIES = 4_000
SHAREGPT_TOKENS = 500_000  # in HBM, as published
UNBOUNDED_TOKENS = 50_000_000
OWN_RATE = 0.0  # requests come as their trace has them
AT = "@"  # between a case and the rate at which it is read


class Group(NamedTuple):
    """Requests and what they run on."""

    model: str = LLAMA_8B
    shape: ShapeName = ShapeName.LOOGLE
    order: Order = Order.SHUFFLED
    initial: Initial = Initial.COLD
    machine: str = "h200"
    tensor_parallel: int = 1
    block_tokens: int = COARSE
    page_tokens: int = 32
    queries: int = 0  # 0: the published number
    hbm_tokens: int | None = None  # None: what the weights leave
    trace: str = ""  # a file, in place of the shape
    rates: tuple[float, ...] = ()  # of all its runs; empty: saturated, and curves
    capped: bool = True  # in flight
    slower: float = 1.0  # times the compute of a setting
    design: str = "short"


_LOOGLE_14B = Group(QWEN_14B, design="full")
_PAGES = Group(QWEN_14B, block_tokens=FINE)
_NARRATIVE = Group(shape=ShapeName.NARRATIVEQA, initial=Initial.HOST_FILLED)
_MISTRAL = Group(
    "mistral-small-24b",
    ShapeName.SHAREGPT,
    block_tokens=16,
    page_tokens=16,
    queries=SHAREGPT_QUERIES,
    rates=(4.0, 8.0, 12.0),
)
_DELAYS = Group(
    QWEN_14B, hbm_tokens=UNBOUNDED_TOKENS, rates=(1.0, 10.0, 100.0), capped=False, design="middle"
)
GROUPS = {
    "narrativeqa-70b": _NARRATIVE._replace(model=LLAMA_70B, tensor_parallel=4),
    "narrativeqa-14b": _NARRATIVE._replace(model=QWEN_14B),
    "narrativeqa-8b": _NARRATIVE,
    "reviewmt-8b": Group(shape=ShapeName.REVIEWMT, block_tokens=FINE),
    "loogle-14b": _LOOGLE_14B,
    "loogle-14b-min": _LOOGLE_14B._replace(order=Order.MIN_DISTANCE),
    "loogle-14b-max": _LOOGLE_14B._replace(order=Order.MAX_DISTANCE),
    "loogle-14b-page-32": _PAGES,
    "loogle-14b-page-512": _PAGES._replace(block_tokens=512, page_tokens=512),
    "loogle-14b-page-1024": _PAGES._replace(block_tokens=1024, page_tokens=1024),
    "loogle-8b": Group(),
    "loogle-8b-gh200": Group(machine="gh200"),
    "loogle-70b": Group(LLAMA_70B, tensor_parallel=4),
    "sharegpt-8b": Group(
        shape=ShapeName.SHAREGPT,
        block_tokens=FINE,
        queries=SHAREGPT_QUERIES,
        hbm_tokens=SHAREGPT_TOKENS,
    ),
    "sharegpt-24b-page-16": _MISTRAL,
    "sharegpt-24b-page-512": _MISTRAL._replace(block_tokens=512, page_tokens=512),
    "delay-hits": _DELAYS,
    "delay-hits-slow": _DELAYS._replace(slower=4.0, rates=(1.0,)),
    "conversation-8b": Group(
        trace="mooncake-conversation-first-6-minutes.jsonl.gz", rates=(OWN_RATE,)
    ),
    "placebo": Group(rates=(4.0,), design="middle"),
}
CURVES = frozenset({"ratio_at_ttft", "stall_share", "worst_stall_share"})  # measures that need one
SIMULATED = CURVES | {
    "ratio_of_peaks", "gain_of_peaks", "hit_share", "hit_share_lost", "order",
    "ratio_of_mean_ttft", "ratio_of_p90_ttft", "change_of_mean_ttft",
}  # fmt: skip


class Case(msgspec.Struct, frozen=True, order=True):
    """One policy on one group."""

    group: str
    policy: str
    curve: bool = False  # at several rates, not saturated alone
    low: bool = False  # at the low rate too

    @property
    def name(self) -> str:
        """As claims name it."""
        return f"{self.group} {self.policy}"


def case_name(of: str) -> str:
    """Without the rate at which it is read."""
    return of.partition(AT)[0]


def cases(claims: Iterable[Claim]) -> list[Case]:
    """All that the claims need, each once, groups in the order above."""
    needed: dict[str, Case] = {}
    for claim in claims:
        if claim.measure not in SIMULATED:
            continue
        for of in claim.of:
            name = case_name(of)
            group, policy = name.split(" ")
            before = needed.get(name, Case(group, policy))
            needed[name] = Case(
                group,
                policy,
                before.curve or claim.measure in CURVES,
                before.low or claim.quantity == "low_ttft",
            )
    order = list(GROUPS)
    return sorted(needed.values(), key=lambda case: (order.index(case.group), case.policy))


def suite_scenario(case: Case, setting: Setting, known: Ranges) -> Scenario:
    """A case under one setting of the unknowns."""
    group, policy = GROUPS[case.group], case.policy
    shape, machine = model_from(group.model), published_machine(group.machine)
    if group.hbm_tokens is None:
        hbm = machine.pool_bytes(shape, group.tensor_parallel, setting.hbm_share)
    else:
        layout = shape.layout(1, group.tensor_parallel)
        hbm = group.hbm_tokens * layout.rank_bytes_per_token
    made = scenario(
        shape,
        machine,
        BASES.get(policy, policy),
        Sizes(hbm_bytes=hbm),
        group.page_tokens,
        group.tensor_parallel,
        EngineLimits(
            batch_tokens=setting.batch_tokens,
            in_flight_requests=known.readings.in_flight_requests if group.capped else 0,
        ),
        setting.rates,
        setting.mfu / group.slower,
        setting.fixed_milliseconds * 1e-3,
    )
    return msgspec.structs.replace(_altered(made, policy, setting), name=policy)


# Of what the suite adds to the presets: the preset that each starts from.
BASES = {
    "trtllm": "per-page",  # version 0.17 did not defer duplicates yet
    "infinite": "per-page",
    "strata-infinite": "strata",
    "strata-undisturbed": "strata",
    "placebo": "fast-copies",
}


def _altered(made: Scenario, policy: str, setting: Setting) -> Scenario:
    replace = msgspec.structs.replace
    load, backup, policies = made.load, made.backup, made.policies
    if policies.strata is not None:
        strata = replace(policies.strata, bundle_tokens=setting.bundle_tokens)
        policies = replace(policies, strata=strata)
    if policy == "trtllm" and setting.trtllm_pages == "whole":
        planes = made.shape.layout(made.page_tokens, made.tensor_parallel).planes
        load = replace(load, fragment_seconds=load.fragment_seconds / planes)
        backup = replace(backup, fragment_seconds=backup.fragment_seconds / planes)
    if policy in ("infinite", "strata-infinite"):
        load = backup = infinite_link()
    if policy == "strata-undisturbed":
        load = replace(load, prefill_slowdown=0.0, decode_slowdown=0.0)
    if policy == "placebo":
        policies = replace(policies, strata=NO_POLICY)
    return replace(made, load=load, backup=backup, policies=policies)
