"""A sidecar that is scraped without a pause goes on taking in all that its engine tells."""

from __future__ import annotations

from tests.bench.scrape import EVENTS_PER_MESSAGE, loss_row


def test_nothing_of_a_busy_stream_is_lost_while_pages_are_asked_for() -> None:
    row = loss_row(seconds=2.0)
    assert row["value"] == 0
    assert row["beside"] > EVENTS_PER_MESSAGE
    assert row["conditions"]["scrapes"] > 0
