"""Times the trials of a sweep, quiet and beside a compute load, round by round."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Generator, Sequence
from dataclasses import dataclass

from kvready.kernels.bench import Bench, Compute, Timing
from kvready.kernels.competing import Window, quiet_step_seconds, slowdown
from kvready.kernels.profile import Curve, Sample
from kvready.kernels.sweep import (
    ROUNDS,
    CurveKey,
    Stretch,
    Trial,
    another_round,
    stretches,
    trials,
)

GAP_SECONDS = 0.0015  # before each move beside compute, whose own quiet steps these are
SHORTEST_SECONDS = 1e-9  # of a move, where the clock did not advance


@dataclass(frozen=True)
class Progress:
    """How far a calibration is."""

    done: int  # loads timed
    planned: int
    doing: str


class TimedSweep:
    """Links, the compute load beside them, and what was timed so far."""

    def __init__(
        self, benches: Sequence[Bench], compute: Compute, seconds: float, seed: int
    ) -> None:
        self._bench = {curve: bench for bench in benches for curve in bench.curves}
        self._compute = compute
        self._seconds = seconds
        self._seed = seed
        self._samples: dict[CurveKey, list[Sample]] = defaultdict(list)
        self.trials = trials(list(self._bench), lambda curve: self._bench[curve].shapes(curve))
        self.rounds = 0
        self.quiet_steps_seconds: list[float] = []  # one per contended stretch

    @property
    def planned(self) -> int:
        """Loads in all rounds."""
        return ROUNDS * len(self.trials)

    def run(self) -> Generator[Progress, None, None]:
        """Whole rounds, as many as the time allows."""
        began = time.monotonic()
        for curve, bench in self._bench.items():
            bench.time(curve, bench.shapes(curve)[0])  # first calls make threads and tables
        done = 0
        while another_round(self.rounds, time.monotonic() - began, self._seconds):
            for stretch in stretches(self.trials, self._seed, self.rounds):
                condition = "beside compute" if stretch.contended else "quiet"
                doing = f"round {self.rounds + 1} of {ROUNDS}, {condition}"
                yield Progress(done, self.planned, doing)
                self._time(stretch)
                done += len(stretch.trials)
            self.rounds += 1

    def curves(self) -> tuple[Curve, ...]:
        """What was timed, in the order of the plan."""
        return tuple(
            Curve(
                source=key.source,
                destination=key.destination,
                mover=key.mover,
                backend=key.backend,
                workers=key.workers,
                contended=key.contended,
                samples=tuple(self._samples[key]),
            )
            for key in dict.fromkeys(trial.curve for trial in self.trials)
            if key in self._samples
        )

    def conditions(self) -> dict[str, str]:
        """What to know of the sweep beside its figures."""
        missing = ROUNDS - self.rounds
        quiet = sorted(self.quiet_steps_seconds)
        return {
            "rounds": str(self.rounds),
            "left_out": f"{missing} of {ROUNDS} rounds: time was up" if missing else "nothing",
            "competing": self._compute.description,
            "competing_step_seconds": f"{quiet[len(quiet) // 2]:.3g}" if quiet else "unknown",
        }

    def _time(self, stretch: Stretch) -> None:
        if not stretch.contended:
            for trial in stretch.trials:
                self._keep(trial, self._one(trial), None)
            return
        gaps, timed = self._beside_compute(stretch)
        steps = self._compute.steps(gaps[0].started_seconds)
        processes = self._compute.processes
        quiet = quiet_step_seconds(steps, gaps, processes)
        if quiet is not None:
            self.quiet_steps_seconds.append(quiet)
        for trial, timing in timed:
            move = Window(timing.started_seconds, timing.ready_seconds)
            slower = None if quiet is None else slowdown(steps, move, quiet, processes)
            self._keep(trial, timing, slower)

    def _beside_compute(self, stretch: Stretch) -> tuple[list[Window], list[tuple[Trial, Timing]]]:
        gaps: list[Window] = []
        timed: list[tuple[Trial, Timing]] = []
        self._compute.resume()
        try:
            time.sleep(GAP_SECONDS)
            for trial in stretch.trials:
                began = time.monotonic()
                time.sleep(GAP_SECONDS)
                gaps.append(Window(began, time.monotonic()))
                timed.append((trial, self._one(trial)))
        finally:
            self._compute.pause()
        time.sleep(GAP_SECONDS)  # the last steps end before anything is called quiet
        return gaps, timed

    def _one(self, trial: Trial) -> Timing:
        quiet = CurveKey(**{**vars(trial.curve), "contended": False})
        return self._bench[quiet].time(quiet, trial.shape)

    def _keep(self, trial: Trial, timing: Timing, slower: float | None) -> None:
        moved = timing.ready_seconds - timing.started_seconds
        self._samples[trial.curve].append(
            Sample(
                fragment_bytes=trial.shape.fragment_bytes,
                fragments=trial.shape.fragments,
                round=self.rounds,
                move_seconds=max(moved, SHORTEST_SECONDS),
                wait_seconds=max(0.0, timing.started_seconds - timing.ordered_seconds),
                compute_slowdown=slower,
            )
        )
