"""Scrapes an engine's /metrics for a while: GETs only, evenly spaced."""

from __future__ import annotations

import time
from collections.abc import Callable

from kvready.advisor.counter_change import Shot
from kvready.collectors.errors import TapError
from kvready.collectors.http_get import get
from kvready.collectors.metrics_page import read_page
from kvready.collectors.surfaces import Surfaces

MAX_SHOTS = 3_600


def scrape(
    surfaces: Surfaces,
    seconds: float,
    interval_seconds: float,
    on_progress: Callable[[float], None] | None = None,
) -> list[Shot]:
    """A scrape now, then one each interval, the last after `seconds`.

    Raises TapError where the engine shows no metrics at the start or at the end.
    """
    began = time.monotonic()
    shots: list[Shot] = []
    for number in range(MAX_SHOTS):
        due = min(began + number * interval_seconds, began + seconds)
        while (left := due - time.monotonic()) > 0:
            time.sleep(min(left, 0.2))
            if on_progress is not None:
                on_progress(time.monotonic() - began)
        answer = get(surfaces.url, "/metrics")
        at = time.monotonic()
        is_last = due >= began + seconds
        if answer.ok:
            text = answer.body.decode("utf-8", "replace")
            shots.append(Shot(at, read_page(text, surfaces.version)))
        elif not shots or is_last:
            raise TapError(
                f"{surfaces.url}/metrics answers no more ({answer.problem or answer.status}); "
                "see whether the engine runs, and look again"
            )
        if is_last:
            break
    return shots
