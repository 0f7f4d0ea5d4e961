"""The noise floor: the same traffic once more, and how far the same request's times lie apart."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kvready.advisor.evaluation.gathering import Gathered
from kvready.advisor.evaluation.samples import Sample
from kvready.advisor.evaluation.scores import Floats

SHARED_IDS = 0.5  # of the requests: then ids name the same ones, else their order does

Key = tuple[str, str, int]


def differences(samples: Sequence[Sample], run: Gathered, again: Gathered) -> Floats:
    """How far each sample's outcome lies from that of its repeat, in seconds; NaN: it has none.

    A repeat is the same request, by id or by order of arrival, and of the same size; batches have
    none, since no two runs batch alike.
    """
    shared = len(run.arrivals.keys() & again.arrivals.keys())
    by_id = shared >= SHARED_IDS * max(len(run.arrivals), 1)
    repeats = {_key(sample, again, by_id): sample for sample in again.samples if sample.request}
    found = np.full(len(samples), np.nan)
    for place, sample in enumerate(samples):
        repeat = repeats.get(_key(sample, run, by_id)) if sample.request else None
        if repeat is not None and repeat.size == sample.size:
            found[place] = abs(sample.actual_seconds - repeat.actual_seconds)
    return found


def _key(sample: Sample, run: Gathered, by_id: bool) -> Key:
    request = sample.request if by_id else str(run.arrivals.get(sample.request))
    return sample.target, request, sample.part
