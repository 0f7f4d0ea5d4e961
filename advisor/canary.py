"""Who is treated: prefix groups split by their hash, windows drawn in pairs. Pure.

A pair of windows is *split* (one control, one treated, in an order that is drawn) or whole. How
many pairs are split follows from the share, exactly so in every block of pairs; which ones, and
their order, follow from the seed, which is logged before the first window. Nothing is drawn from
what was seen. But where pairs of late looked harmful the next ones are split too, in the order that
the seed fixed for them long before, so that the coins stay fair. `dedup` treats only a share of the
prefix groups: all who share a first block, the leader and its followers, are in one arm.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Sequence
from fractions import Fraction

import msgspec

from kvready.advisor.flags import Assignment, Split
from kvready.advisor.policies import Mode, Overlay, Policy, PolicyState, Scope
from kvready.advisor.scopes import covers
from kvready.advisor.window_tracker import Key
from kvready.advisor.windows import Arm, WindowRequest
from kvready.collectors.records import PoliciesRestored

CANARY_PERCENTS = (1, 5, 20, 50)
CONTROL_PERCENT = 5  # that is not treated even when a policy is enforced
MAX_CONTROL_PERCENT = 50
HASH_BYTES = 8
WINDOWS_IN_PAIR = 2


class Shares(msgspec.Struct, frozen=True):
    """Per cent that a canary treats, and that stay untreated when a policy is enforced."""

    canary_percent: int = 50
    control_percent: int = CONTROL_PERCENT

    def __post_init__(self) -> None:
        if self.canary_percent not in CANARY_PERCENTS:
            raise ValueError(f"a canary treats one of {CANARY_PERCENTS} per cent")
        if not 1 <= self.control_percent <= MAX_CONTROL_PERCENT:
            raise ValueError(f"a control share is 1 to {MAX_CONTROL_PERCENT} per cent, never 0")

    def treated_percent(self, mode: Mode) -> int:
        """Per cent treated in a mode."""
        if mode is Mode.CANARY:
            return self.canary_percent
        return 100 - self.control_percent if mode is Mode.ENFORCE else 0


def shares_of(said: PoliciesRestored) -> Shares | None:
    """What a start says of them; None for what no sidecar would say."""
    try:
        return Shares(said.canary_percent, said.control_percent)
    except ValueError:
        return None


class Draw(msgspec.Struct, frozen=True):
    """What fixes every arm of one policy in one scope: known, and logged, before the first window.

    `percent` is of prefix groups for dedup, of windows for the others; 0: it does not act.
    """

    policy: Policy
    seed: str
    percent: int

    @property
    def split_ratio(self) -> Fraction:
        """The share of pairs that are split: what the policy is judged by."""
        if self.percent <= 0:
            return Fraction(0)
        if self.policy is Policy.DEDUP and self.percent <= 50:
            return Fraction(1)  # prefix groups keep the share; every pair of windows confirms it
        return Fraction(2 * min(self.percent, 100 - self.percent), 100)

    @property
    def groups(self) -> Split | None:
        """The prefix groups that it treats; None: all."""
        if self.policy is not Policy.DEDUP or self.percent <= 0:
            return None
        return Split(self.seed, self.percent / 100)


def draw_of(state: PolicyState, shares: Shares, seed: str) -> Draw:
    """The draw of a state as it stands. `seed`: of the sidecar.

    A state draws anew with each move that decides whether it acts, and with no other.
    """
    acts = state.mode.acts and state.overlay is Overlay.NONE
    percent = shares.treated_percent(state.mode) if acts else 0
    scope = "/".join(msgspec.structs.astuple(state.scope))
    return Draw(state.policy, f"{seed}:{state.policy}:{scope}:{state.since_seconds!r}", percent)


def window_arm(draw: Draw, window: int, is_closer: bool = False) -> Arm:
    """The arm of a window, by its number. `is_closer`: its pair is split whatever was drawn."""
    pair, place = divmod(window, WINDOWS_IN_PAIR)
    if is_split(draw, pair) or (is_closer and 0 < draw.percent < 100):
        first_is_treated = _drawn(draw.seed, "order", pair) % 2 == 0
        return Arm.TREATED if first_is_treated == (place == 0) else Arm.CONTROL
    return Arm.TREATED if draw.percent > 50 else Arm.CONTROL


def is_split(draw: Draw, pair: int) -> bool:
    """Whether a pair has both arms."""
    ratio = draw.split_ratio
    block, place = divmod(pair, ratio.denominator)
    # The places of a block in an order of its own: the first so many are split.
    order = sorted(range(ratio.denominator), key=lambda n: _drawn(draw.seed, f"pair {block}", n))
    return order.index(place) < ratio.numerator


def takes_part(draw: Draw, group: int | None) -> bool:
    """Whether a request would be treated in a treated window: the same ones are compared in both.

    `group`: hash of its first block; None where it fills none, which nobody shares.
    """
    groups = draw.groups
    return groups is None or (group is not None and groups.treats(group))


def arm(draw: Draw, window: int, group: int | None = None) -> Arm:
    """The arm of one request that arrives in a window."""
    return window_arm(draw, window) if takes_part(draw, group) else Arm.CONTROL


class CanaryArms:
    """The arms of all policies as they stand, for the windows and for the flags."""

    def __init__(
        self,
        states: Callable[[], Collection[PolicyState]],
        suspects: Callable[[Key], bool] | None = None,
    ) -> None:
        """`states`: where each policy stands, the kill switch on top; `suspects`: where the pair
        that begins is to be split whatever was drawn, since those before it looked harmful."""
        self.shares = Shares()
        self.seed = ""
        self._states = states
        self._suspects = suspects or _never
        self._closer: dict[Key, int] = {}  # the latest pair that is looked at closer

    def restored(self, said: PoliciesRestored) -> None:
        """A sidecar started: from here on it draws from another seed."""
        self.seed = said.canary_seed
        self.shares = shares_of(said) or self.shares

    def draw(self, state: PolicyState) -> Draw:
        """Of a state as it stands."""
        return draw_of(state, self.shares, self.seed)

    def draws(self) -> dict[Key, Draw]:
        """Of each policy in each scope; to be logged whenever one of them changes."""
        return {(one.policy, one.scope): self.draw(one) for one in self._states()}

    def subjects(self) -> Iterable[Key]:
        """Each policy in each scope."""
        return [(one.policy, one.scope) for one in self._states()]

    def window_arm(self, key: Key, window: int) -> Arm:
        """The arm of a window, as it begins."""
        draw = self.draws().get(key)
        if draw is None:
            self._closer.pop(key, None)
            return Arm.CONTROL
        pair, place = divmod(window, WINDOWS_IN_PAIR)
        if place == 0 and self._suspects(key):
            self._closer[key] = pair
        return window_arm(draw, window, self._closer.get(key) == pair)

    def taking_part(self, key: Key, requests: Sequence[WindowRequest]) -> list[WindowRequest]:
        """Those of the policy's scope, and of the prefix groups that it treats."""
        _, scope = key
        draw = self.draws().get(key)
        return [
            one
            for one in requests
            # One engine is watched here: its name and pool are the scope's.
            if covers(scope, Scope(scope.engine, scope.pool, one.request_class))
            and (draw is None or takes_part(draw, one.group))
        ]

    def assigned(self, state: PolicyState, window: int | None) -> Assignment | None:
        """Whom a state treats in the window that runs; None before the first."""
        if window is None:
            return None
        draw = self.draw(state)
        is_closer = self._closer.get((state.policy, state.scope)) == window // WINDOWS_IN_PAIR
        return Assignment(window_arm(draw, window, is_closer), draw.groups)


def _never(key: Key) -> bool:
    return False


def _drawn(seed: str, kind: str, number: int) -> int:
    text = f"{seed}|{kind}|{number}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=HASH_BYTES).digest(), "big")
