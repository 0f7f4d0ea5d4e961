"""Whether a policy did harm or good, from pairs of windows with and without it. Pure.

Harm is watched day by day and summed up from its first pair on: 1 % of all policy-days may end in
a false roll-back, shared out over the measures. No harm, and good, are proved over the whole life
of the judge, which a canary starts anew.
"""

from __future__ import annotations

from collections import Counter, deque

from kvready.advisor.confidence import Bounds, Evidence, bounds
from kvready.advisor.measures import (
    LIMITS,
    Limit,
    Measure,
    as_told,
    differences,
    is_ratio,
    on_scale,
)
from kvready.advisor.policies import Policy
from kvready.advisor.verdicts import Check, Gate, Verdict
from kvready.advisor.windows import MAX_TENANTS, Arm, WindowSummary

FALSE_ROLLBACK = 0.01  # of policy-days
FALSE_PROMOTION = 0.01  # of canaries
# All measures must be proved harmless, so that each may err this often and all together no more.
FALSE_HARMLESS = 0.05
WATCH_SECONDS = 86_400.0
MAX_WATCH_PAIRS = 4_320  # in a day of windows of 10 seconds
BENEFITS = (Measure.MEAN_TTFT, Measure.OVER_TARGET)
# A pair whose treated window waited so much longer is a reason to look closer, and none to judge.
SUSPICIOUS_RATIO = 1.25
SUSPICIOUS_PAIRS = 2  # one of the latest so many


class Stream:
    """One measure, of one tenant where it is one of tenants."""

    def __init__(self, measure: Measure, limit: Limit, alpha: float) -> None:
        self.alpha = alpha
        self.harm = Evidence(on_scale(measure, limit.tolerated), restarts=True)
        self.harmless = Evidence(-on_scale(measure, limit.accepted))
        self.good = Evidence()
        self.is_harmed = False  # until the watch begins anew
        self.differences: list[float] = []  # of this watch
        self._tolerated = self.harm.null

    def add(self, difference: float) -> None:
        """One more pair."""
        self.harm.add(difference)
        self.harmless.add(-difference)
        self.good.add(-difference)
        self.is_harmed = self.is_harmed or self.harm.proves(self.alpha)
        self.differences.append(difference)

    def watch_anew(self) -> None:
        """Another day: harm is looked for from here on."""
        self.harm = Evidence(self._tolerated, restarts=True)
        self.is_harmed = False
        self.differences.clear()


class HarmJudge:
    """Takes one policy's windows in their order. Make a new one whenever the policy moved."""

    def __init__(self, policy: Policy, limits: dict[Measure, Limit] | None = None) -> None:
        self.policy = policy
        self.limits = limits or LIMITS[policy]
        self.pairs = 0  # that counted
        self.left_out: Counter[str] = Counter()
        self._streams: dict[tuple[Measure, str], Stream] = {}
        self._suspicious: deque[bool] = deque(maxlen=SUSPICIOUS_PAIRS)
        self._first: WindowSummary | None = None
        self._watch_begin_seconds = 0.0
        self._watch_pairs = 0

    def add(self, window: WindowSummary) -> bool:
        """Take the next window; whether it completed a pair that counts."""
        first, self._first = self._first, None
        if first is None or first.pair != window.pair:
            self._first = window
            return False
        if first.arm is window.arm:
            self.left_out["one arm"] += 1
        elif not (first.is_clean and window.is_clean):
            self.left_out["unclean"] += 1
        else:
            both = (first, window) if window.arm is Arm.TREATED else (window, first)
            return self._compare(*both)
        return False

    @property
    def suspects(self) -> bool:
        """Whether a pair of late looked harmful: the next ones should tell more."""
        return any(self._suspicious)

    @property
    def harmed(self) -> list[Measure]:
        """By what harm is proved today."""
        found = [measure for (measure, _), one in self._streams.items() if one.is_harmed]
        return list(dict.fromkeys(found))

    def harm_checks(self) -> tuple[Check, ...]:
        """A check for each measure: harm fails, proved harmlessness passes, all else is open."""
        checks = []
        for measure, limit in self.limits.items():
            streams = self._of(measure)
            if streams:
                name, worst = max(streams, key=lambda found: (found[1].is_harmed, _mean(found[1])))
                checks.append(self._check(measure, limit, name, worst))
            elif limit.is_own:
                told = "no pair of windows told it yet"
                checks.append(_told(measure, limit, Verdict.INCONCLUSIVE, None, told))
        return tuple(checks)

    def benefit_check(self) -> Check:
        """Whether treated windows are proved to be better: what a promotion to enforce needs."""
        alpha = FALSE_PROMOTION / len(BENEFITS)
        proved = [m for m in BENEFITS for _, one in self._of(m) if one.good.proves(alpha)]
        verdict = Verdict.PASS if proved else Verdict.INCONCLUSIVE
        ratio = next((_mean(one) for _, one in self._of(Measure.MEAN_TTFT)), None)
        return Check(
            gate=Gate.BENEFIT,
            name="canary_mean_ttft_ratio",
            verdict=verdict,
            value=None if ratio is None else as_told(Measure.MEAN_TTFT, ratio),
            at_most=1.0,
            unit="ratio",
            note=f"proved by {', '.join(proved)}" if proved else f"{self.pairs} pairs so far",
        )

    def bounds(self, measure: Measure, tenant: str = "") -> Bounds | None:
        """Where the effect lies, of today's pairs: a ratio, or a difference of shares.

        Holds with probability `1 - FALSE_HARMLESS`, of this measure.
        """
        stream = self._streams.get((measure, tenant))
        if stream is None:
            return None
        found = bounds(stream.differences, FALSE_HARMLESS)
        return Bounds(
            None if found.low is None else as_told(measure, found.low),
            None if found.high is None else as_told(measure, found.high),
        )

    def _compare(self, control: WindowSummary, treated: WindowSummary) -> bool:
        begin_seconds = min(control.begin_seconds, treated.begin_seconds)
        if not self.pairs:
            self._watch_begin_seconds = begin_seconds
        is_over = begin_seconds - self._watch_begin_seconds >= WATCH_SECONDS
        if is_over or self._watch_pairs >= MAX_WATCH_PAIRS:
            self._watch_begin_seconds = begin_seconds
            self._watch_pairs = 0
            for stream in self._streams.values():
                stream.watch_anew()
        counted = False
        for measure, limit in self.limits.items():
            found_here = differences(measure, control, treated)
            if measure is Measure.MEAN_TTFT and "" in found_here:
                self._suspicious.append(found_here[""] > on_scale(measure, SUSPICIOUS_RATIO))
            for name, difference in found_here.items():
                found = self._stream(measure, limit, name)
                if found is not None:
                    found.add(difference)
                    counted = True
        if counted:
            self.pairs += 1
            self._watch_pairs += 1
        else:
            self.left_out["too few requests"] += 1
        return counted

    def _stream(self, measure: Measure, limit: Limit, name: str) -> Stream | None:
        found = self._streams.get((measure, name))
        if found is not None:
            return found
        alpha = FALSE_ROLLBACK * limit.weight
        if measure is Measure.TENANT:
            if len(self._of(measure)) >= MAX_TENANTS:
                self.left_out["tenants beyond the bound"] += 1
                return None
            alpha /= MAX_TENANTS
        made = self._streams[measure, name] = Stream(measure, limit, alpha)
        return made

    def _of(self, measure: Measure) -> list[tuple[str, Stream]]:
        return [(name, one) for (own, name), one in self._streams.items() if own is measure]

    def _check(self, measure: Measure, limit: Limit, name: str, stream: Stream) -> Check:
        alpha = FALSE_HARMLESS
        harmless = all(one.harmless.proves(alpha) for _, one in self._of(measure))
        verdict = Verdict.FAIL if stream.is_harmed else Verdict.INCONCLUSIVE
        if harmless and not stream.is_harmed:
            verdict = Verdict.PASS
        value = as_told(measure, _mean(stream)) if stream.differences else None
        told = f"{len(stream.differences)} pairs today, {self.pairs} in all"
        return _told(measure, limit, verdict, value, f"{name}: {told}" if name else told)


def _told(
    measure: Measure, limit: Limit, verdict: Verdict, value: float | None, note: str
) -> Check:
    return Check(
        gate=Gate.HARM,
        name=f"canary_{measure}_{'ratio' if is_ratio(measure) else 'difference'}",
        verdict=verdict,
        value=value,
        at_most=limit.tolerated if verdict is Verdict.FAIL else limit.accepted,
        unit="ratio",
        note=note,
    )


def _mean(stream: Stream) -> float:
    return sum(stream.differences) / len(stream.differences) if stream.differences else 0.0
