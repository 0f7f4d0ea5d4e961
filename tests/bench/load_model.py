"""The load model beside its rivals, on copies timed here: error on unseen sizes, and its own cost.

Run as `python -m tests.bench.load_model`; prints one JSON row per line.
"""

from __future__ import annotations

import json
import random
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.ensemble import HistGradientBoostingRegressor

from kvready.advisor.load_estimators import AlphaBetaRegressor, KnotRegressor
from kvready.kernels.gather_cpu import GatherMover
from kvready.kernels.layout import KvLayout
from kvready.kernels.per_page_cpu import PerPageMover
from kvready.kernels.pools import Direction, Move, Mover, Pools

SHAPES = 256
REPEATS = 8
PLANES = 8
SMALLEST_FRAGMENT_BYTES, LARGEST_FRAGMENT_BYTES = 512, 2 << 20
SMALLEST_LOAD_BYTES, LARGEST_LOAD_BYTES = 64 << 10, 32 << 20
MAX_FRAGMENTS = 16_384
# Four bands of half an octave, held out whole, and all that is larger than any that is shown.
HELD_OUT_OCTAVES = ((10.25, 10.75), (13.25, 13.75), (15.25, 15.75), (18.25, 18.75))
EXTRAPOLATED_OCTAVE = 20.5
ERROR_BUDGET = 0.04
ESTIMATE_BUDGET_SECONDS = 1e-6
CALLS = 20_000

Row = dict[str, Any]
Floats = NDArray[np.float64]


class Timed(NamedTuple):
    """One shape of copy and how long each repeat took."""

    fragment_bytes: int
    fragments: int
    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        """The repeat in the middle."""
        return statistics.median(self.seconds)

    @property
    def is_held_out(self) -> bool:
        """Whether a model may not see it, though larger and smaller ones."""
        octave = np.log2(self.fragment_bytes)
        return any(low <= octave < high for low, high in HELD_OUT_OCTAVES)

    @property
    def is_beyond(self) -> bool:
        """Whether its fragments are larger than any that a model may see."""
        return bool(np.log2(self.fragment_bytes) >= EXTRAPOLATED_OCTAVE)


def sweep(mover: Mover, shapes: int = SHAPES, seed: int = 1) -> list[Timed]:
    """Copies of random sizes from a page-first to a layer-first pool; whole rounds apart."""
    numbers = random.Random(seed)
    pool_bytes = 4 * LARGEST_LOAD_BYTES
    host = np.ones(pool_bytes, dtype=np.uint8)
    hbm = np.ones(pool_bytes, dtype=np.uint8)
    moves = [_move(numbers, host, hbm) for _ in range(shapes)]
    seconds: list[list[float]] = [[] for _ in moves]
    for _ in range(REPEATS):
        order = list(range(shapes))
        numbers.shuffle(order)
        for at in order:
            pools, move = moves[at]
            begin = time.perf_counter()
            mover.move(pools, move)
            seconds[at].append(time.perf_counter() - begin)
    return [
        Timed(pools.fragment_bytes, move.fragments(pools), tuple(taken))
        for (pools, move), taken in zip(moves, seconds, strict=True)
    ]


def _move(numbers: random.Random, host: Any, hbm: Any) -> tuple[Pools, Move]:
    """Fragments and payload log-uniform, pages at random in both pools."""
    fragment_bytes = _between(numbers, SMALLEST_FRAGMENT_BYTES, LARGEST_FRAGMENT_BYTES) // 64 * 64
    page_bytes = fragment_bytes * PLANES
    wanted = _between(numbers, SMALLEST_LOAD_BYTES, LARGEST_LOAD_BYTES)
    count = max(1, min(wanted // page_bytes, MAX_FRAGMENTS // PLANES))
    pool_pages = host.nbytes // page_bytes
    layout = KvLayout(PLANES, 1, 1, fragment_bytes, 1, 1)
    pools = Pools.of_layout(layout, host.ctypes.data, pool_pages, hbm.ctypes.data, pool_pages)
    picked = (numbers.sample(range(pool_pages), count) for _ in range(2))
    return pools, Move(Direction.LOAD, *picked)


def _between(numbers: random.Random, low: int, high: int) -> int:
    return int(low * (high / low) ** numbers.random())


def error_rows() -> Iterator[Row]:
    """Median error on held-out sizes, of ours and of what one might use instead."""
    for mover in (GatherMover(), PerPageMover()):
        timed = sweep(mover)
        mover.close()
        shown = [one for one in timed if not (one.is_held_out or one.is_beyond)]
        hidden = [one for one in timed if one.is_held_out]
        beyond = [one for one in timed if one.is_beyond]
        errors = {name: _errors(model, shown, hidden, beyond) for name, model in _models().items()}
        ours, plain = errors["ours"], errors["alpha_beta"]
        yield {
            "name": f"load_model_mdape_{mover.name}",
            "value": round(ours[0], 4),
            "unit": "ratio",
            "beside": round(plain[0], 4),
            "ratio": round(ours[0] / plain[0], 3),
            "conditions": {
                "beside": "the same cost without knots",
                "budget": ERROR_BUDGET,
                "noise_floor": round(_scatter(hidden), 4),
                "gradient_boosting": round(errors["gradient_boosting"][0], 4),
                "beyond_shown_sizes": round(ours[1], 4),
                "beyond_alpha_beta": round(plain[1], 4),
                "beyond_gradient_boosting": round(errors["gradient_boosting"][1], 4),
                "backend": mover.backend,
                "shown": len(shown),
                "held_out": len(hidden),
                "repeats": REPEATS,
                "kind": "measured",
            },
        }


def estimate_row() -> Row:
    """One estimate in the serving path, beside one row through scikit-learn."""
    rows, seconds = _table(sweep(GatherMover(), shapes=64))
    curve = KnotRegressor().fit(rows, seconds).to_curve()
    boosted = _Boosted().fit(rows, seconds)
    one = rows[:1]
    value = _per_call(lambda: curve.seconds(12_582_912, 384), CALLS)
    beside = _per_call(lambda: boosted.predict(one), CALLS // 100)
    return {
        "name": "load_estimate_seconds",
        "value": round(value, 9),
        "unit": "s",
        "beside": round(beside, 6),
        "ratio": round(value / beside, 6),
        "conditions": {
            "beside": "scikit-learn's gradient boosting, one row",
            "budget": ESTIMATE_BUDGET_SECONDS,
            "calls": CALLS,
            "kind": "measured",
        },
    }


class _Boosted:
    """Gradient boosting of log seconds over log sizes, absolute errors."""

    def __init__(self) -> None:
        self._model = HistGradientBoostingRegressor(loss="absolute_error", random_state=1)

    def fit(self, rows: Floats, seconds: Floats) -> _Boosted:
        self._model.fit(np.log(rows), np.log(seconds))
        return self

    def predict(self, rows: Floats) -> Floats:
        predicted: Floats = np.exp(self._model.predict(np.log(rows)))
        return predicted


def _models() -> dict[str, Any]:
    return {
        "ours": KnotRegressor(),
        "alpha_beta": AlphaBetaRegressor(),
        "gradient_boosting": _Boosted(),
    }


def _errors(
    model: Any, shown: list[Timed], hidden: list[Timed], beyond: list[Timed]
) -> tuple[float, float]:
    model.fit(*_table(shown))
    return _median_error(model, hidden), _median_error(model, beyond)


def _median_error(model: Any, timed: list[Timed]) -> float:
    """Against the median of each shape's repeats."""
    rows = np.array([(t.fragment_bytes * t.fragments, t.fragments) for t in timed], dtype=float)
    medians = np.array([t.median for t in timed])
    return float(np.median(np.abs(model.predict(rows) / medians - 1.0)))


def _table(timed: list[Timed]) -> tuple[Floats, Floats]:
    rows = [(t.fragment_bytes * t.fragments, t.fragments) for t in timed for _ in t.seconds]
    return np.array(rows, dtype=float), np.array([s for t in timed for s in t.seconds])


def _scatter(timed: list[Timed]) -> float:
    """The median distance of a repeat from its shape's median: what no model can foretell."""
    return statistics.median(abs(s / t.median - 1.0) for t in timed for s in t.seconds)


def _per_call(call: Callable[[], object], calls: int) -> float:
    """The best of five rounds."""
    best = float("inf")
    for _ in range(5):
        begin = time.perf_counter()
        for _ in range(calls):
            call()
        best = min(best, (time.perf_counter() - begin) / calls)
    return best


def load_model_rows() -> Iterator[Row]:
    """Every figure of the load model."""
    yield from error_rows()
    yield estimate_row()


if __name__ == "__main__":
    for row in load_model_rows():
        print(json.dumps(row), flush=True)
