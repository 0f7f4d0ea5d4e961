"""Azure's 2023 traces: when, and how long. They tell nothing of what prompts share."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from kvready.advisor.whatif.chains import Allowance
from kvready.advisor.whatif.trace_lines import refused, trace_lines
from kvready.advisor.whatif.workload import SimRequest, Workload

COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


def read_lengths_only(path: Path, *, first: int, block_tokens: int) -> Workload:
    """The trace's requests, `first` of them unless 0. Raises `WorkloadError`."""
    rows: list[tuple[float, int, int, int]] = []
    for number, arrived, prompt, output in _rows(path):
        rows.append((arrived, number, prompt, output))
        if first and len(rows) == first:
            break
    rows.sort()
    allowance = Allowance()
    fresh = 0
    requests = []
    for arrived, number, prompt, output in rows:
        blocks = range(fresh, fresh + prompt // block_tokens)
        fresh = blocks.stop
        allowance.take(len(blocks))
        requests.append(
            SimRequest(f"line-{number}", arrived - rows[0][0], prompt, output, tuple(blocks))
        )
    notes = (
        "the trace tells no prompt's content: nothing is ever used again here, so that no "
        "cache can help; only lengths and arrivals are real",
    )
    return Workload(path.name, str(path), block_tokens, tuple(requests), notes=notes)


def _rows(path: Path) -> Iterator[tuple[int, float, int, int]]:
    places: list[int] = []
    for number, raw in trace_lines(path):
        try:
            cells = next(csv.reader([raw.decode()]))
            if not places:
                places = [cells.index(name) for name in COLUMNS]
                continue
            stamp, prompt, output = (cells[place] for place in places)
            # A seventh digit, tenths of microseconds, is dropped where there is one.
            arrived = datetime.fromisoformat(stamp).replace(tzinfo=UTC).timestamp()
            lengths = int(prompt), int(output)
        except (ValueError, IndexError, csv.Error) as error:
            raise refused(path, number, f"{error}; columns must be {', '.join(COLUMNS)}") from None
        if lengths[0] < 1 or lengths[1] < 0:
            raise refused(path, number, "lengths must be 1 prompt token or more, 0 output or more")
        yield number, arrived, *lengths
