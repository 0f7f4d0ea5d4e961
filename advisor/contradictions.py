"""Where counters, events, reports and latencies cannot all be right: found, with the evidence.

A closed list of kinds. Each is judged on a window between two scrapes of one incarnation; what a
tap does not tell is unknown and never contradicts anything.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import NamedTuple

import msgspec

from kvready.advisor.latency_groups import PrefillLatencies
from kvready.collectors.records import CounterName, CountersScraped

WINDOW_SECONDS = 120.0
MIN_WINDOW_SECONDS = 20.0
MAX_SCRAPES = 64  # in a window
MIN_PROMPT_TOKENS = 20_000  # in a window, before a ratio is judged
MIN_SUM_TOKENS = 5_000
SUM_TOLERANCE = 0.02
MIN_LOADED_TOKENS = 512
LONG_SECONDS = 600.0  # without a store, before loads alone make one doubt
RATIO_TOLERANCE = 0.2  # of prompt tokens
STUCK_SHARE = 0.05  # of prompt tokens, that would have to be zero
MIN_SILENT_TOKENS = 4_096  # computed, of prompts that fill blocks
MIN_AVERAGE_PROMPT = 256.0

HIT_NAMES = (
    CounterName.HBM_HIT_TOKENS,
    CounterName.HOST_HIT_TOKENS,
    CounterName.DISK_HIT_TOKENS,
    CounterName.REMOTE_HIT_TOKENS,
    CounterName.UNPLACED_HIT_TOKENS,
)


class Kind(StrEnum):
    """Everything that is looked for."""

    HOST_HITS_WITHOUT_STORES = "host_hits_without_stores"
    HIT_RATIO_STUCK = "hit_ratio_stuck"
    TOKENS_DO_NOT_SUM = "tokens_do_not_sum"
    HITS_DISAGREE = "hits_disagree"
    EVENTS_SILENT = "events_silent"


class Contradiction(msgspec.Struct, frozen=True):
    """Two sources that cannot both be right. `active`: it still held at the last judgement."""

    kind: Kind
    evidence: str
    since_seconds: float
    last_seconds: float
    active: bool


class Facts(NamedTuple):
    """What the other taps had told by a scrape: counts since the start."""

    event_taps: int = 0  # that deliver, or should deliver, KV events
    events_doubtful: bool = False  # a gap or a closed tap explains silence by itself
    event_messages: int = 0
    host_stored_blocks: int = 0
    observed_prompt_tokens: int = 0
    nominal_tokens: int = 0
    lost_tokens: int = 0
    delay_tokens: int = 0
    unknown_residency: int = 0
    reported_prompt_tokens: int = 0
    reported_cached_tokens: int = 0
    wrong_steps: int = 0  # engine steps whose prompt tokens do not sum up
    wrong_step: str = ""  # the latest of them


class _Moment(NamedTuple):
    scrape: CountersScraped
    facts: Facts


class Window(NamedTuple):
    """Two moments of one incarnation."""

    begin: _Moment
    end: _Moment

    @property
    def seconds(self) -> float:
        return self.end.scrape.scraped_seconds - self.begin.scrape.scraped_seconds

    def counted(self, *names: CounterName) -> float | None:
        """By how much counters rose, those that are exported; None where none of them is."""
        before, after = self.begin.scrape.values, self.end.scrape.values
        told = [after[name] - before[name] for name in names if name in before and name in after]
        return sum(told) if told else None

    def refused(self, *names: CounterName) -> bool:
        """Whether one of these cannot be trusted."""
        return any(name in self.end.scrape.refused for name in names)

    def rose(self, name: str) -> int:
        """By how much one of the facts rose."""
        return int(getattr(self.end.facts, name) - getattr(self.begin.facts, name))


class Contradictions:
    """Judges at each scrape; keeps the latest finding of each kind."""

    def __init__(self, latencies: PrefillLatencies) -> None:
        self.found: dict[Kind, Contradiction] = {}
        self._latencies = latencies
        self._moments: deque[_Moment] = deque(maxlen=MAX_SCRAPES)
        self._first_seconds = 0.0  # of this incarnation

    @property
    def active(self) -> list[Contradiction]:
        """What still holds."""
        return [one for one in self.found.values() if one.active]

    def restart(self) -> None:
        """Another incarnation counts anew."""
        self._moments.clear()

    def judge(self, scrape: CountersScraped, facts: Facts) -> None:
        """Take in a scrape and look at the window that it ends."""
        if self._moments and _went_back(self._moments[-1].scrape, scrape):
            self.restart()
        if not self._moments:
            self._first_seconds = scrape.scraped_seconds
        self._moments.append(_Moment(scrape, facts))
        horizon = scrape.scraped_seconds - WINDOW_SECONDS
        while len(self._moments) > 2 and self._moments[1].scrape.scraped_seconds <= horizon:
            self._moments.popleft()
        window = Window(self._moments[0], self._moments[-1])
        if window.seconds < MIN_WINDOW_SECONDS:
            return
        watched_seconds = scrape.scraped_seconds - self._first_seconds
        self._note(
            Kind.HOST_HITS_WITHOUT_STORES, host_hits_without_stores(window, watched_seconds), scrape
        )
        self._note(Kind.HIT_RATIO_STUCK, hit_ratio_stuck(window, self._latencies.groups), scrape)
        self._note(Kind.TOKENS_DO_NOT_SUM, tokens_do_not_sum(window), scrape)
        self._note(Kind.HITS_DISAGREE, hits_disagree(window), scrape)
        self._note(Kind.EVENTS_SILENT, events_silent(window), scrape)

    def _note(self, kind: Kind, evidence: str | None, scrape: CountersScraped) -> None:
        known = self.found.get(kind)
        now = scrape.scraped_seconds
        if evidence is not None:
            since = known.since_seconds if known is not None and known.active else now
            self.found[kind] = Contradiction(kind, evidence, since, now, active=True)
        elif known is not None and known.active:
            self.found[kind] = msgspec.structs.replace(known, active=False)


def host_hits_without_stores(window: Window, watched_seconds: float) -> str | None:
    """Counters say that KV came from host memory; events never said that any was put there."""
    facts = window.end.facts
    if not facts.event_taps or facts.events_doubtful or facts.host_stored_blocks:
        return None
    loaded = window.counted(CounterName.HOST_HIT_TOKENS)
    if loaded is None or loaded < MIN_LOADED_TOKENS or not window.rose("event_messages"):
        return None
    stored = window.counted(CounterName.STORE_BYTES)
    # What was stored before we came may be loaded still: without a store of its own to go by, only
    # a long look makes a contradiction.
    if not stored and (stored == 0.0 or watched_seconds < LONG_SECONDS):
        return None
    wrote = "" if stored is None else f" and {stored:,.0f} bytes were stored"
    return (
        f"counters: {loaded:,.0f} prompt tokens came from host memory{wrote} in "
        f"{window.seconds:.0f} s; KV events: no block was ever stored in host memory"
    )


def hit_ratio_stuck(window: Window, groups: Callable[[], str | None]) -> str | None:
    """A hit ratio of exactly 0 or 1 that latencies, reports or the inventory contradict."""
    prompt = window.counted(CounterName.PROMPT_TOKENS)
    hits = window.counted(*HIT_NAMES)
    if prompt is None or hits is None or prompt < MIN_PROMPT_TOKENS or window.refused(*HIT_NAMES):
        return None
    if hits not in (0.0, prompt):
        return None
    ratio = "0" if hits == 0.0 else "1"
    against = _against_ratio(window, prompt, hits == 0.0) or groups()
    if against is None:
        return None
    return f"counters: hit ratio exactly {ratio} over {prompt:,.0f} prompt tokens; {against}"


def _against_ratio(window: Window, prompt: float, says_none: bool) -> str | None:
    reported, cached = window.rose("reported_prompt_tokens"), window.rose("reported_cached_tokens")
    if says_none:
        if cached >= STUCK_SHARE * prompt:
            return f"reports: {cached:,} of {reported:,} prompt tokens were cached"
        nominal = window.rose("nominal_tokens") - window.rose("lost_tokens")
        if nominal >= STUCK_SHARE * prompt:
            return f"inventory: {nominal:,} tokens were resident at arrival and used"
        return None
    computed = window.counted(CounterName.COMPUTED_TOKENS)
    if computed is not None and computed >= STUCK_SHARE * prompt:
        return f"counters: {computed:,.0f} of them were computed"
    return None


def tokens_do_not_sum(window: Window) -> str | None:
    """Prompt tokens by source are not all of the prompt tokens."""
    if wrong := window.rose("wrong_steps"):
        return f"statistics: {wrong:,} engine steps, the latest {window.end.facts.wrong_step}"
    prompt = window.counted(CounterName.PROMPT_TOKENS)
    computed = window.counted(CounterName.COMPUTED_TOKENS)
    hits = window.counted(*HIT_NAMES)
    if prompt is None or computed is None or hits is None or prompt < MIN_SUM_TOKENS:
        return None
    if window.refused(*HIT_NAMES, CounterName.PROMPT_TOKENS, CounterName.COMPUTED_TOKENS):
        return None
    missing = prompt - computed - hits
    if abs(missing) <= SUM_TOLERANCE * prompt:
        return None
    return (
        f"counters: {prompt:,.0f} prompt tokens, of which {computed:,.0f} computed and {hits:,.0f} "
        f"found: {abs(missing):,.0f} {'unexplained' if missing > 0 else 'too many'}"
    )


def hits_disagree(window: Window) -> str | None:
    """What was resident at arrival, by the inventory, is far from what the engine says it found."""
    prompt, hits = window.counted(CounterName.PROMPT_TOKENS), window.counted(*HIT_NAMES)
    observed = window.rose("observed_prompt_tokens")
    if prompt is None or hits is None or window.refused(*HIT_NAMES):
        return None
    if min(prompt, observed) < MIN_PROMPT_TOKENS or window.rose("unknown_residency"):
        return None
    nominal = window.rose("nominal_tokens")
    # Ratios, since the two count a request at different moments; what a request was promised by an
    # earlier one, or did not use, may go either way.
    low = (nominal - window.rose("lost_tokens")) / observed
    high = (nominal + window.rose("delay_tokens")) / observed
    ratio = hits / prompt
    if low - RATIO_TOLERANCE <= ratio <= high + RATIO_TOLERANCE:
        return None
    return (
        f"inventory: {nominal / observed:.0%} of {observed:,} prompt tokens were resident at "
        f"arrival; counters: {ratio:.0%} of {prompt:,.0f} were found"
    )


def events_silent(window: Window) -> str | None:
    """The engine computes prompts, which fills blocks; not one KV event says so."""
    facts = window.end.facts
    if not facts.event_taps or window.rose("event_messages"):
        return None
    computed = window.counted(CounterName.COMPUTED_TOKENS)
    if computed is None or computed < MIN_SILENT_TOKENS:
        return None
    prompt, requests = (
        window.counted(CounterName.PROMPT_TOKENS),
        window.counted(CounterName.FIRST_TOKENS),
    )
    if prompt is None or not requests or prompt / requests < MIN_AVERAGE_PROMPT:
        return None
    return (
        f"counters: {computed:,.0f} prompt tokens computed in {window.seconds:.0f} s; "
        "KV events: none"
    )


def _went_back(before: CountersScraped, after: CountersScraped) -> bool:
    started = CounterName.STARTED_WALL_SECONDS
    if before.values.get(started) != after.values.get(started):
        return True
    return _falls(before.values, after.values)


def _falls(before: Mapping[str, float], after: Mapping[str, float]) -> bool:
    counters = (CounterName.PROMPT_TOKENS, CounterName.COMPUTED_TOKENS, *HIT_NAMES)
    return any(after[name] < before[name] for name in counters if name in before and name in after)
