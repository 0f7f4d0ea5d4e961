"""What is learned of an engine's copies: per direction and mover, with a profile or without."""

from __future__ import annotations

import math
import random

import msgspec
import pytest

from kvready.advisor.copy_model import COPIES_TO_JUDGE, LARGEST_FACTOR, CopyModel
from kvready.advisor.copy_ranges import interval_along
from kvready.advisor.intervals import Intervals
from kvready.advisor.link_curves import priors_of
from kvready.advisor.link_sharing import shared_ratio, shares_link
from kvready.advisor.load_curve import LoadCurve
from kvready.advisor.load_priors import (
    GENERIC,
    NO_PROFILE,
    TYPICAL_COPY_SECONDS,
    LoadPriors,
    Path,
    Prior,
    PriorKind,
)
from kvready.advisor.online_scale import OnlineScale
from kvready.advisor.readiness import LoadModel, Mover
from kvready.advisor.requests import Copy
from kvready.collectors.records import CopyMethod, LoadDecided, Tier
from kvready.kernels.profile import Claim, Cost, Curve, LinkProfile, Machine, Provenance, Sample

BLOCK_BYTES, BLOCK_FRAGMENTS = 4 << 20, 64
PAGES, GATHER = CopyMethod.DMA_PER_PAGE, CopyMethod.GATHER
LOAD, STORE = (Tier.HOST, Tier.HBM), (Tier.HBM, Tier.HOST)


def test_it_is_right_about_sizes_it_has_not_seen() -> None:
    rng = random.Random(3)
    model = CopyModel(GENERIC)

    def truth(blocks: int) -> float:
        curve = GENERIC.quiet.seconds(blocks * BLOCK_BYTES, blocks * BLOCK_FRAGMENTS)
        return 0.004 + 3.0 * curve

    for _ in range(200):
        blocks = rng.choice([1, 2, 4, 64, 128])
        seconds = truth(blocks) * math.exp(rng.gauss(0, 0.03))
        model.learn(blocks * BLOCK_BYTES, blocks * BLOCK_FRAGMENTS, seconds)
    for blocks in (8, 16, 32):
        predicted = model.seconds(blocks * BLOCK_BYTES, blocks * BLOCK_FRAGMENTS)
        assert predicted == pytest.approx(truth(blocks), rel=0.10)


@pytest.mark.parametrize("step_share", [0.0, 1.0], ids=["submits first", "computes first"])
def test_it_learns_whether_copies_wait_for_the_steps_compute(step_share: float) -> None:
    rng = random.Random(5)
    model = LoadModel()
    for _ in range(200):
        step, backlog = rng.uniform(0.02, 0.6), rng.choice([0.0, 0.0, rng.uniform(0.0, 0.3)])
        wait = (0.002 + step_share * step + backlog) * math.exp(rng.gauss(0, 0.05))
        model.learn_wait(step, backlog, wait)
    assert model.step_share == pytest.approx(step_share, abs=0.1)
    expected = 0.002 + step_share * 0.3 + 0.1
    assert model.wait_seconds(0.3, 0.1) == pytest.approx(expected, rel=0.15, abs=0.01)


class Link:
    """An engine's copies, one after another, told to a mover's model."""

    def __init__(self, priors: LoadPriors = NO_PROFILE) -> None:
        self.mover = Mover(priors)
        self.open: list[Copy] = []
        self.order_seconds = 100.0
        self._loads = 0

    def order(
        self, blocks: int, direction: tuple[Tier, Tier] = LOAD, started: float | None = None
    ) -> Copy:
        source, destination = direction
        payload, fragments = blocks * BLOCK_BYTES, blocks * BLOCK_FRAGMENTS
        self._loads += 1
        copy = Copy(
            LoadDecided(
                self._loads, "r", source, destination, 32, payload, fragments, self.order_seconds
            )
        )
        copy.started_seconds = started
        self.open.append(copy)
        return copy

    def finish(self, copy: Copy, method: CopyMethod | None, seconds: float) -> None:
        self.open.remove(copy)
        begin = copy.started_seconds or copy.decided.decided_seconds
        copy.started_seconds = begin
        copy.ready_seconds = begin + seconds
        self.mover.learn(copy, method, self.open)
        self.order_seconds = begin + seconds + 1.0

    def load(self, blocks: int, method: CopyMethod | None, seconds: float) -> None:
        self.finish(self.order(blocks), method, seconds)


def test_a_switch_of_mover_leaves_what_was_learned_of_the_other() -> None:
    rng = random.Random(7)
    link = Link()
    cost = {PAGES: 4e-3, GATHER: 4e-4}  # of a block

    def loads(method: CopyMethod, count: int) -> None:
        for _ in range(count):
            blocks = rng.randint(1, 64)
            link.load(blocks, method, cost[method] * blocks * math.exp(rng.gauss(0, 0.02)))

    def predicted(blocks: int) -> float:
        return link.mover.service_seconds(link.order(blocks))

    loads(PAGES, 60)
    before = predicted(32)
    assert before == pytest.approx(32 * cost[PAGES], rel=0.1)
    loads(GATHER, 60)
    assert predicted(32) == pytest.approx(32 * cost[GATHER], rel=0.1)
    assert "gather" in link.mover.model(*LOAD).version
    link.mover.model(*LOAD).expected_method = PAGES
    assert predicted(32) == before


def test_the_mover_that_the_engine_announced_is_expected_until_copies_tell() -> None:
    profile = published(gather=20e9, dma_per_page=1e9)
    link = Link(priors_of(profile))
    link.mover.announce(GATHER)
    assert link.mover.service_seconds(link.order(32)) < 0.02
    link.load(32, PAGES, 0.14)
    link.mover.announce(GATHER)  # the engine describes itself again
    assert link.mover.service_seconds(link.order(32)) > 0.10


def test_each_direction_is_learned_apart() -> None:
    link = Link()
    for _ in range(40):
        link.load(16, PAGES, 0.1)
        link.finish(link.order(16, STORE), PAGES, 0.02)
    payload, fragments = 16 * BLOCK_BYTES, 16 * BLOCK_FRAGMENTS
    for direction, seconds in ((LOAD, 0.1), (STORE, 0.02)):
        model = link.mover.model(*direction)
        assert model.service_seconds(payload, fragments) == pytest.approx(seconds, rel=0.05)


# A link profile -----------------------------------------------------------------------------


def published(**bytes_per_second: float) -> LinkProfile:
    return LinkProfile(
        "some machine",
        Provenance.PUBLISHED,
        Machine("cpu", 8, "linux"),
        tuple(
            Curve("host", "hbm", mover, "paper", 1, False, cost=Cost(1e-5, 1e-7, rate))
            for mover, rate in bytes_per_second.items()
        ),
    )


def measured(truth: LoadCurve, *, contended: bool, scatter: float = 0.03) -> Curve:
    rng = random.Random(11)
    samples = []
    for octave in range(9, 21):
        for count in (4, 32, 256):
            for at in range(4):
                seconds = truth.seconds(count << octave, count) * math.exp(rng.gauss(0, scatter))
                samples.append(Sample(1 << octave, count, at, seconds))
    return Curve("host", "hbm", "gather", "c", 2, contended, samples=tuple(samples))


def test_a_published_cost_is_passed_on_as_it_is() -> None:
    prior = priors_of(published(gather=40e9)).prior(*LOAD, GATHER)
    assert prior.kind is PriorKind.PUBLISHED
    curve = prior.quiet
    assert (curve.overhead_seconds, curve.fragment_seconds, curve.knots) == (1e-5, 1e-7, ())
    assert curve.bytes_per_second == pytest.approx(40e9)


def test_a_measured_profile_gives_its_curves_alone_and_beside_compute() -> None:
    quiet, contended = LoadCurve(1e-5, 1e-7, 20e9, 9.0, [0.3] * 12), LoadCurve(1e-4, 2e-7, 8e9)
    profile = LinkProfile(
        "here",
        Provenance.MEASURED,
        Machine("cpu", 8, "linux"),
        (measured(quiet, contended=False), measured(contended, contended=True)),
    )
    priors = priors_of(profile)
    assert priors.described == f"measured: here ({profile.calibration_id})"
    prior = priors.prior(*LOAD, GATHER)
    for payload, fragments in ((1 << 22, 64), (1 << 24, 512), (1 << 16, 16)):
        for beside, truth in ((False, quiet), (True, contended)):
            fitted = prior.seconds(payload, fragments, beside_compute=beside)
            assert fitted == pytest.approx(truth.seconds(payload, fragments), rel=0.05)


def here(*curves: Curve) -> LinkProfile:
    return LinkProfile("here", Provenance.MEASURED, Machine("cpu", 8, "linux"), curves)


def test_what_a_profile_knows_of_itself_says_how_far_copies_may_be_off() -> None:
    truth = LoadCurve(1e-5, 1e-7, 20e9)

    def factor(profile: LinkProfile) -> float:
        return priors_of(profile).prior(*LOAD, GATHER).factor

    exact = factor(here(measured(truth, contended=False, scatter=0.0)))
    rough = factor(here(measured(truth, contended=False, scatter=0.2)))
    wild = factor(here(measured(truth, contended=False, scatter=1.0)))
    claimed = factor(published(gather=20e9))
    # An engine's own factor is all that is left where samples are met exactly.
    assert exact == pytest.approx(LARGEST_FACTOR, rel=0.01)
    # Nine in ten of a normal law lie within 1.645 deviations.
    assert math.log(rough) == pytest.approx(math.hypot(math.log(2.0), 1.645 * 0.2), rel=0.05)
    assert exact < rough < claimed < wild
    assert wild == GENERIC.factor
    claims = Claim("gather", "prediction", 10.0, 20.0, "GB/s", "paper")
    disagreeing = msgspec.structs.replace(published(gather=20e9), claims=(claims,))
    assert claimed < factor(disagreeing) < GENERIC.factor


def test_both_conditions_count_and_one_size_says_nothing() -> None:
    truth = LoadCurve(1e-5, 1e-7, 20e9)
    quiet = measured(truth, contended=False, scatter=0.01)
    contended = measured(truth, contended=True, scatter=0.3)
    both, alone = (priors_of(here(*curves)) for curves in ((quiet, contended), (contended,)))
    assert both.prior(*LOAD, GATHER).factor == alone.prior(*LOAD, GATHER).factor
    one_size = msgspec.structs.replace(quiet, samples=quiet.samples[:4])
    assert priors_of(here(one_size)).prior(*LOAD, GATHER).factor == GENERIC.factor


def test_a_wait_is_no_better_known_for_a_profile() -> None:
    curve = LoadCurve(1e-5, 1e-7, 20e9)
    prior = Prior(PriorKind.MEASURED, curve, curve, 2.0)
    assert prior.factor_after(0.0) == 2.0
    factors = [prior.factor_after(wait) for wait in (0.001, 0.01, 0.1, 10.0)]
    assert factors == sorted(factors)
    assert prior.factor_after(TYPICAL_COPY_SECONDS) == pytest.approx((2.0 + GENERIC.factor) / 2.0)
    assert GENERIC.factor_after(0.3) == pytest.approx(GENERIC.factor)


def test_before_its_first_copy_an_interval_is_as_wide_as_the_prior_says() -> None:
    for factor in (1.5, 3.0):
        curve = LoadCurve(1e-5, 1e-7, 20e9)
        paths = {Path("host", "hbm", "gather"): Prior(PriorKind.MEASURED, curve, curve, factor)}
        link = Link(LoadPriors(PriorKind.MEASURED, "here", "abc", paths))
        link.mover.announce(GATHER)
        course = link.mover.model(*LOAD).course(4 << 30, 1024)
        interval = interval_along(Intervals(), Tier.HOST, course)
        assert interval.high_seconds == pytest.approx(factor * course.seconds, rel=0.05)
        assert interval.low_seconds == pytest.approx(course.seconds / factor, rel=0.05)


def test_a_gather_is_believed_to_be_what_was_timed_with_as_many_workers() -> None:
    rates = {1: 10e9, 2: 20e9, 4: 40e9, 8: 40e9}
    curves = [
        msgspec.structs.replace(
            measured(LoadCurve(1e-5, 1e-8, rate), contended=contended, scatter=0.01),
            workers=workers,
        )
        for workers, rate in rates.items()
        for contended in (False, True)
    ]
    priors = priors_of(here(*curves))
    size, fragments = 1 << 30, 1 << 14

    def believed(workers: int) -> Prior:
        return priors.prior(*LOAD, GATHER, workers)

    assert believed(0).workers == 1  # as usual
    for workers, rate in rates.items():
        prior = believed(workers)
        for beside in (False, True):
            seconds = prior.seconds(size, fragments, beside_compute=beside)
            assert seconds == pytest.approx(size / rate, rel=0.05)
        assert prior.factor < 2.1
    # Three fill three quarters of what four do; sixteen no more than four.
    for workers, rate in ((3, 30e9), (16, 40e9)):
        prior = believed(workers)
        seconds = prior.seconds(size, fragments, beside_compute=False)
        assert seconds == pytest.approx(size / rate, rel=0.05)
        assert prior.factor == GENERIC.factor  # that number was not timed


def test_where_one_number_of_workers_was_timed_others_are_as_unsure_as_without_a_profile() -> None:
    profile = here(measured(LoadCurve(1e-5, 1e-8, 10e9), contended=False))
    two, three = (priors_of(profile).prior(*LOAD, GATHER, workers) for workers in (2, 3))
    assert two.factor < three.factor == GENERIC.factor
    assert three.seconds(1 << 30, 64, beside_compute=True) == two.seconds(
        1 << 30, 64, beside_compute=True
    )


def test_a_gather_with_other_workers_is_another_mover() -> None:
    curves = [
        msgspec.structs.replace(
            measured(LoadCurve(1e-5, 1e-8, workers * 5e9), contended=False), workers=workers
        )
        for workers in (1, 4)
    ]
    link = Link(priors_of(here(*curves)))
    link.mover.announce(GATHER, 1)
    before = link.mover.service_seconds(link.order(32))
    for _ in range(20):
        link.load(32, GATHER, 1.5 * before)
    link.load(32, PAGES, 0.2)
    link.mover.announce(GATHER, 1)  # the engine describes itself again
    model = link.mover.model(*LOAD)
    assert model.mover(GATHER).copies == 20
    link.mover.announce(GATHER, 4)
    assert model.mover(GATHER).copies == 0
    assert model.mover(PAGES).copies == 1
    model.expected_method = GATHER
    assert link.mover.service_seconds(link.order(32)) == pytest.approx(before / 4, rel=0.1)


def test_a_path_that_a_profile_lacks_stays_generic_and_says_so() -> None:
    priors = priors_of(published(gather=40e9))
    assert priors.prior(*STORE, GATHER) is GENERIC
    link = Link(priors)
    link.finish(link.order(8, STORE), GATHER, 0.01)
    (one,) = link.mover.calibrations()
    assert (one.evidence, one.calibration_id) == (PriorKind.GENERIC, "")


def test_a_disks_reads_are_found_whatever_the_engine_calls_its_mover() -> None:
    curve = LoadCurve(1e-4, 1e-5, 1e9)
    paths = {Path("disk", "host", "read"): Prior(PriorKind.MEASURED, curve, curve)}
    priors = LoadPriors(PriorKind.MEASURED, "here", "abc", paths)
    for method in (None, PAGES):
        assert priors.prior(Tier.DISK, Tier.HOST, method).quiet is curve


@pytest.mark.parametrize(
    ("factor", "stale"), [(0.3, True), (0.7, False), (1.5, False), (4.0, True)]
)
def test_a_profile_of_another_link_is_stale_and_every_forecast_says_so(
    factor: float, stale: bool
) -> None:
    profile = published(gather=20e9)
    link = Link(priors_of(profile))
    curve = LoadCurve(1e-5, 1e-7, 20e9)
    rng = random.Random(13)
    for n in range(4 * COPIES_TO_JUDGE):
        if n < COPIES_TO_JUDGE:
            assert not link.mover.model(*LOAD).version.endswith(":stale")  # too soon to judge
        blocks = rng.randint(4, 128)
        seconds = factor * curve.seconds(blocks * BLOCK_BYTES, blocks * BLOCK_FRAGMENTS)
        link.load(blocks, GATHER, seconds * math.exp(rng.gauss(0, 0.03)))
    version = link.mover.model(*LOAD).version
    assert f"+published:{profile.calibration_id}" in version
    assert version.endswith(":stale") is stale
    (one,) = link.mover.calibrations()
    assert one.stale is stale
    assert one.factor == pytest.approx(factor, rel=0.1)


def test_without_a_profile_nothing_can_go_stale() -> None:
    link = Link()
    for _ in range(50):
        link.load(16, PAGES, 1.0)
    (one,) = link.mover.calibrations()
    assert one.factor > 2.0
    assert not one.stale
    assert link.mover.model(*LOAD).version.endswith("+generic")


# Pace ---------------------------------------------------------------------------------------


def test_after_a_shift_the_scale_follows_within_a_run_and_noise_moves_it_little() -> None:
    rng = random.Random(17)
    scale = OnlineScale()
    for _ in range(300):
        scale.learn(1.0, math.exp(rng.gauss(0, 0.03)))
        assert scale.value == pytest.approx(1.0, abs=0.06)
    for _ in range(8):
        scale.learn(1.0, 3.0 * math.exp(rng.gauss(0, 0.03)))
    assert scale.value == pytest.approx(3.0, rel=0.1)


@pytest.mark.parametrize("noise", [0.05, 0.15, 0.35])
def test_noise_is_no_shift_however_large_and_a_tripling_is_found_in_it(noise: float) -> None:
    false_shifts = 0
    for seed in range(10):
        rng = random.Random(seed)
        scale = OnlineScale()
        for _ in range(2_000):
            scale.learn(1.0, math.exp(rng.gauss(0, noise)))
        false_shifts += scale.shifts
        before = scale.shifts
        for _ in range(30):
            scale.learn(1.0, 3.0 * math.exp(rng.gauss(0, noise)))
        assert scale.shifts > before
    assert false_shifts <= 10  # runs of six on one side come up 60 times in 2,000


def test_one_outlier_moves_the_scale_by_a_step_of_bounded_size() -> None:
    scale = OnlineScale()
    scale.learn(1.0, 1000.0)
    assert 1.0 < scale.value < 1.1


def test_a_load_model_is_right_again_soon_after_the_link_slows_down() -> None:
    rng = random.Random(19)
    link = Link()
    errors: list[float] = []
    for n in range(200):
        blocks = rng.randint(8, 64)
        truth = blocks * (2e-3 if n < 100 else 5e-3) * math.exp(rng.gauss(0, 0.03))
        copy = link.order(blocks)
        errors.append(abs(math.log(truth / link.mover.service_seconds(copy))))
        link.finish(copy, PAGES, truth)
    assert max(errors[100:103]) > math.log(1.5)  # it cannot be foreseen
    assert max(errors[112:]) < math.log(1.35)
    assert sorted(errors[120:])[40] < 0.06


# Sharing ------------------------------------------------------------------------------------


def test_directions_share_a_link_where_they_meet_in_a_tier() -> None:
    assert shares_link(LOAD, STORE)
    assert shares_link(LOAD, (Tier.DISK, Tier.HOST))
    assert not shares_link(LOAD, LOAD)  # these queue
    assert not shares_link(STORE, (Tier.REMOTE, Tier.DISK))


def test_the_share_of_a_window_counts_each_moment_once() -> None:
    assert shared_ratio((0.0, 10.0), []) == 0.0
    assert shared_ratio((0.0, 10.0), [(-5.0, 2.0), (1.0, 3.0), (9.0, 20.0)]) == pytest.approx(0.4)
    assert shared_ratio((0.0, 10.0), [(-5.0, 20.0), (3.0, 4.0)]) == pytest.approx(1.0)
    assert shared_ratio((5.0, 5.0), [(0.0, 9.0)]) == 0.0


def test_a_link_that_both_directions_use_at_once_is_learned_to_be_slower() -> None:
    rng = random.Random(23)
    link = Link()
    alone = 0.064  # of 16 blocks
    for n in range(160):
        store = link.order(48, STORE, started=link.order_seconds) if n % 2 else None
        load = link.order(16, started=link.order_seconds)
        slower = 1.8 if store else 1.0  # the store outlasts it
        link.finish(load, PAGES, slower * alone * math.exp(rng.gauss(0, 0.02)))
        if store:
            link.finish(store, PAGES, 0.3)
    quiet = link.order(16)
    assert link.mover.ordered(quiet, link.open).seconds == pytest.approx(alone, rel=0.15)
    link.open.clear()
    link.order(48, STORE, started=link.order_seconds)
    beside = link.order(16)
    assert link.mover.ordered(beside, link.open).seconds == pytest.approx(1.8 * alone, rel=0.15)
