"""How long until a copy is usable: what an engine's movers do, learned from their copies.

`t = q + service`. `q` is the wait until the mover takes the copy up: all that it still has to do,
since it is first in, first out; and some share of the step that the copy was ordered with, since an
engine may submit copies only after it has launched that step's compute. The share is fitted, per
direction. `service` is learned per direction and mover: an engine may switch movers at any time,
and what one takes says nothing of the other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from kvready.advisor.copy_model import CopyCalibration, CopyModel
from kvready.advisor.copy_ranges import Course
from kvready.advisor.fitting import OnlineFit
from kvready.advisor.link_sharing import Direction, Span, shared_ratio, shares_link
from kvready.advisor.load_priors import NO_PROFILE, LoadPriors, PriorKind
from kvready.advisor.requests import Copy
from kvready.collectors.records import CopyMethod, Tier

REFIT_EVERY = 4  # observations; each of the first 4 refits at once
MODEL = "load-curve-1"
UNTOLD = "untold"  # stands for a mover that the engine does not name

PRIOR_SUBMIT_SECONDS = 1e-3
PRIOR_STEP_SHARE = 0.5  # between submitting before the step's compute (0) and after it (1)
TYPICAL_STEP_SECONDS = 2e-2
HALF_LIFE_COPIES = 32.0  # contention with compute shifts within minutes
SMALLEST_WAIT_SECONDS = 5e-3
MAX_RECENT_COPIES = 256

INTO_HBM: Direction = (Tier.HOST, Tier.HBM)
FROM_DISK: Direction = (Tier.DISK, Tier.HOST)


class LoadModel:
    """Seconds of a copy in one direction: until a mover takes it up, and from then on."""

    def __init__(
        self,
        source: Tier = Tier.HOST,
        destination: Tier = Tier.HBM,
        priors: LoadPriors = NO_PROFILE,
        gather_workers: int = 0,
    ) -> None:
        self.source = source
        self.destination = destination
        self.expected_method: CopyMethod | None = None  # of the next copy: that of the last one
        self.movers: dict[CopyMethod | None, CopyModel] = {}  # that the engine was seen to use
        self._asked_about: dict[CopyMethod | None, CopyModel] = {}  # the others, as they start
        self._priors = priors
        self._gather_workers = gather_workers
        self._wait = OnlineFit(
            prior=(PRIOR_SUBMIT_SECONDS, PRIOR_STEP_SHARE),
            typical_features=(1.0, TYPICAL_STEP_SECONDS),
            prior_observations=2.0,
            half_life=HALF_LIFE_COPIES,
            smallest=SMALLEST_WAIT_SECONDS,
        )
        self._wait_refits = 0

    @property
    def version(self) -> str:
        """Names the mover expected, the coefficients, and whose figures they started from."""
        mover = self.mover(self.expected_method)
        evidence: str = mover.prior.kind
        if mover.prior.kind is not PriorKind.GENERIC:
            evidence += f":{self._priors.calibration_id}"
        stale = ":stale" if mover.is_stale else ""
        refits = mover.refits + self._wait_refits
        return f"{MODEL}.{self.expected_method or UNTOLD}.{refits}+{evidence}{stale}"

    @property
    def submit_seconds(self) -> float:
        """The fitted time from an order to its submission, beside the step's share."""
        return self._wait.coefficients[0]

    @property
    def step_share(self) -> float:
        """How much of the step's compute a copy ordered with it waits for."""
        return self._wait.coefficients[1]

    def mover(self, method: CopyMethod | None) -> CopyModel:
        """What is learned of one mover; to ask of one makes none."""
        found = self.movers.get(method) or self._asked_about.get(method)
        if found is None:
            workers = self._gather_workers if method is CopyMethod.GATHER else 0
            prior = self._priors.prior(self.source, self.destination, method, workers)
            found = self._asked_about[method] = CopyModel(prior)
        return found

    def seen(self, method: CopyMethod | None) -> CopyModel:
        """The engine used, or named, this mover: the one expected from now on."""
        self.expected_method = method
        found = self.movers[method] = self.mover(method)
        self._asked_about.pop(method, None)
        return found

    def gathers_with(self, workers: int) -> None:
        """The engine said with how many; a gather with others is another mover."""
        self._gather_workers = workers
        self.movers.pop(CopyMethod.GATHER, None)
        self._asked_about.pop(CopyMethod.GATHER, None)

    def service_seconds(
        self,
        payload_bytes: int,
        fragments: int,
        *,
        beside_compute: bool = False,
        shared_ratio: float = 0.0,
    ) -> float:
        """Predicted seconds from the start of the mover expected to ready."""
        return self.mover(self.expected_method).seconds(
            payload_bytes, fragments, beside_compute=beside_compute, shared_ratio=shared_ratio
        )

    def course(self, payload_bytes: int, fragments: int) -> Course:
        """The same of a copy alone, and how it grows with bytes."""
        mover = self.mover(self.expected_method)
        return Course(
            payload_bytes,
            mover.seconds(payload_bytes, fragments),
            mover.seconds_per_byte(payload_bytes, fragments),
            mover.prior.factor,
        )

    @property
    def prior_factor(self) -> float:
        """How far what is believed of the mover expected may be off before its copies tell."""
        return self.mover(self.expected_method).prior.factor

    def wait_seconds(self, step_seconds: float, backlog_seconds: float) -> float:
        """Predicted seconds from the order to the mover's start.

        `step_seconds` is the compute of the batch planned with the order, `backlog_seconds` the
        service that the mover owes to copies before it.
        """
        return self._wait.predict((1.0, step_seconds)) + backlog_seconds

    def learn_wait(
        self, step_seconds: float, backlog_seconds: float, actual_seconds: float
    ) -> None:
        """Take in one copy's time from order to start."""
        beyond_backlog = max(0.0, actual_seconds - backlog_seconds)
        self._wait.learn((1.0, step_seconds), beyond_backlog, scale=actual_seconds)
        if self._wait.observations <= REFIT_EVERY or self._wait.observations % REFIT_EVERY == 0:
            self._wait.solve()
            self._wait_refits += 1

    def calibrations(self) -> Iterator[CopyCalibration]:
        """Each mover that has been seen, beside its prior."""
        for method, mover in self.movers.items():
            if mover.copies:
                yield CopyCalibration(
                    source=self.source,
                    destination=self.destination,
                    method=method,
                    evidence=mover.prior.kind,
                    calibration_id=(
                        "" if mover.prior.kind is PriorKind.GENERIC else self._priors.calibration_id
                    ),
                    copies=mover.copies,
                    factor=mover.factor,
                    overhead_seconds=mover.overhead_seconds,
                    scale=mover.scale.value,
                    stale=mover.is_stale,
                )


class Mover:
    """What is learned of an engine's copies: one model per direction, and what was under way."""

    def __init__(self, priors: LoadPriors = NO_PROFILE) -> None:
        self.models: dict[Direction, LoadModel] = {}  # of directions that were seen
        self._asked_about: dict[Direction, LoadModel] = {}  # the others, as they start
        self._priors = priors
        self._gather_workers = 0
        self._recent: deque[tuple[Direction, Span]] = deque(maxlen=MAX_RECENT_COPIES)

    @property
    def calibration_id(self) -> str:
        """The link profile that copies start from; empty: none."""
        return self._priors.calibration_id

    def announce(self, method: CopyMethod | None, gather_workers: int = 0) -> None:
        """The engine said which mover it loads with; what copies tell later overrules it.

        And with how many workers it gathers, 0 where it does not tell: no copy tells that.
        """
        if gather_workers != self._gather_workers:
            self._gather_workers = gather_workers
            for model in (*self.models.values(), *self._asked_about.values()):
                model.gathers_with(gather_workers)
        if method is not None and not any(self.model(*INTO_HBM).calibrations()):
            self._seen(INTO_HBM).seen(method)

    def model(self, source: Tier, destination: Tier) -> LoadModel:
        """The model of one direction; to ask of one makes none."""
        direction = source, destination
        found = self.models.get(direction) or self._asked_about.get(direction)
        if found is None:
            found = LoadModel(source, destination, self._priors, self._gather_workers)
            self._asked_about[direction] = found
        return found

    def _seen(self, direction: Direction) -> LoadModel:
        found = self.models[direction] = self.model(*direction)
        self._asked_about.pop(direction, None)
        return found

    def service_seconds(self, copy: Copy) -> float:
        """Predicted seconds of this copy from its start, with nothing else on its link."""
        decided = copy.decided
        return self.model(*direction_of(copy)).service_seconds(
            decided.payload_bytes, decided.fragments, beside_compute=copy.step_seconds > 0.0
        )

    def ordered(self, copy: Copy, open_copies: Iterable[Copy]) -> Course:
        """Predicted from its order until a copy is usable.

        `open_copies` are all that are ordered and unfinished, in order, this one among them.
        """
        now = copy.decided.decided_seconds
        direction = direction_of(copy)
        model = self.model(*direction)
        wait = model.wait_seconds(copy.step_seconds, copy.backlog_seconds)
        alone = self.service_seconds(copy)
        others = (
            self._expected_span(other, now)
            for other in open_copies
            if shares_link(direction, direction_of(other))
        )
        size, fragments = copy.decided.payload_bytes, copy.decided.fragments
        mover = model.mover(model.expected_method)
        busy, shared = copy.step_seconds > 0.0, shared_ratio((wait, wait + alone), others)
        service = mover.seconds(size, fragments, beside_compute=busy, shared_ratio=shared)
        slope = mover.seconds_per_byte(size, fragments, beside_compute=busy, shared_ratio=shared)
        submitted = wait - copy.backlog_seconds
        return Course(size, wait + service, slope, mover.prior.factor_after(submitted))

    def left_seconds(self, copy: Copy, now_seconds: float) -> float:
        """Predicted seconds until a copy that was ordered is usable."""
        service = self.service_seconds(copy)
        if copy.started_seconds is not None:
            return max(0.0, service - (now_seconds - copy.started_seconds))
        model = self.model(*direction_of(copy))
        wait = model.wait_seconds(copy.step_seconds, copy.backlog_seconds)
        return max(0.0, wait - (now_seconds - copy.decided.decided_seconds)) + service

    def backlog_seconds(
        self,
        direction: Direction,
        open_copies: Iterable[Copy],
        now_seconds: float,
        until: Copy | None = None,
    ) -> float:
        """Service still owed to copies in a direction: all, or those before `until`."""
        backlog = 0.0
        for copy in open_copies:
            if copy is until:
                break
            if direction_of(copy) != direction:
                continue
            service = self.service_seconds(copy)
            if copy.started_seconds is not None:
                service = max(0.0, service - (now_seconds - copy.started_seconds))
            backlog += service
        return backlog

    def learn(
        self, copy: Copy, method: CopyMethod | None, open_copies: Iterable[Copy]
    ) -> float | None:
        """Take in a finished copy, and which mover made it; `open_copies` are not finished yet.

        Returns the share of its time that copies of other directions were on its link; None where
        its start is not told.
        """
        assert copy.ready_seconds is not None
        decided, direction = copy.decided, direction_of(copy)
        model = self._seen(direction)
        whole_seconds = copy.ready_seconds - decided.decided_seconds
        shared = 0.0
        if copy.started_seconds is None:
            # The engine tells no start: what the wait model does not explain counts as service.
            wait_seconds = model.wait_seconds(copy.step_seconds, copy.backlog_seconds)
        else:
            wait_seconds = copy.started_seconds - decided.decided_seconds
            model.learn_wait(copy.step_seconds, copy.backlog_seconds, wait_seconds)
            # Over its expected time: over its own, a slow copy would seem to have shared more.
            expected_end = copy.started_seconds + self.service_seconds(copy)
            shared = self._seen_ratio(direction, (copy.started_seconds, expected_end), open_copies)
            self._recent.append((direction, (copy.started_seconds, copy.ready_seconds)))
        model.seen(method).learn(
            decided.payload_bytes,
            decided.fragments,
            max(0.0, whole_seconds - wait_seconds),
            beside_compute=copy.step_seconds > 0.0,
            shared_ratio=shared,
        )
        return None if copy.started_seconds is None else shared

    def spans_into_hbm(
        self, open_copies: Iterable[Copy], begin_seconds: float, end_seconds: float
    ) -> list[Span] | None:
        """When loads were under way between two moments; None where that is not told."""
        spans: list[Span] = []
        for direction, span in reversed(self._recent):
            if direction[1] is not Tier.HBM:
                continue
            if span[1] <= begin_seconds:
                break  # they end in this order
            spans.append(span)
        for copy in open_copies:
            if copy.decided.destination is not Tier.HBM or (
                copy.decided.decided_seconds >= end_seconds
            ):
                continue
            if copy.started_seconds is None:
                return None
            spans.append((copy.started_seconds, end_seconds))
        return spans

    def calibrations(self) -> list[CopyCalibration]:
        """Every mover that has been seen, beside its prior."""
        return [one for model in self.models.values() for one in model.calibrations()]

    def _expected_span(self, copy: Copy, now_seconds: float) -> Span:
        """When a copy is expected to be under way, counted from now."""
        left = self.left_seconds(copy, now_seconds)
        return left - min(left, self.service_seconds(copy)), left

    def _seen_ratio(self, direction: Direction, window: Span, open_copies: Iterable[Copy]) -> float:
        others = [span for other, span in self._recent if shares_link(direction, other)]
        others += [
            (other.started_seconds, window[1])
            for other in open_copies
            if other.started_seconds is not None and shares_link(direction, direction_of(other))
        ]
        return shared_ratio(window, others)


def direction_of(copy: Copy) -> Direction:
    """Where a copy comes from and goes to."""
    return copy.decided.source, copy.decided.destination
