"""The recorder: one order, ticks, silence, and a disk that refuses."""

from __future__ import annotations

import errno

from hypothesis import given
from hypothesis import strategies as st

from kvready.advisor.inventory import MAX_PUBLISHERS
from kvready.advisor.pipeline import Pipeline
from kvready.collectors.recorder import LOSS_FORGIVEN_AFTER_SECONDS, RECORDER_TAP, Recorder
from kvready.collectors.records import (
    FirstToken,
    Ingested,
    TapEvent,
    TapState,
    TapStatus,
    Tick,
)


class Shelf:
    """A writer in memory that refuses after so many records."""

    def __init__(self, refuses_after: int = 1_000_000, full_after: int = 1_000_000) -> None:
        self.items: list[Ingested] = []
        self.closed = False
        self.written_bytes = 0
        self._refuses_after = refuses_after
        self._full_after = full_after

    def write(self, item: Ingested) -> bool:
        if len(self.items) >= self._refuses_after:
            raise OSError(errno.ENOSPC, "No space left on device")
        if len(self.items) >= self._full_after:
            return False
        self.items.append(item)
        return True

    def flush(self) -> None:
        self.written_bytes += 1

    def close(self) -> None:
        self.closed = True


def spoke(at: float) -> FirstToken:
    return FirstToken(request_id="r", first_token_seconds=at)


def statuses(items: list[Ingested]) -> list[TapStatus]:
    return [item.record for item in items if isinstance(item.record, TapStatus)]


@given(st.lists(st.tuples(st.sampled_from("ab"), st.floats(0, 0.9)), max_size=60))
def test_every_record_gets_the_next_number_and_is_kept_as_forwarded(steps) -> None:
    seen: list[Ingested] = []
    shelf = Shelf()
    recorder = Recorder(seen.append, shelf, taps={"a": "", "b": ""}, silence_seconds=5)
    now = 0.0
    for tap, pause in steps:
        now += pause
        recorder.advance(now, now)
        recorder.take(spoke(now), now, tap)
    assert [item.ingest for item in seen] == list(range(len(seen)))
    assert shelf.items == seen
    assert sum(recorder.kinds.values()) == recorder.ingested == len(seen)


def test_a_tick_is_written_each_second_and_not_in_bursts_after_a_sleep() -> None:
    seen: list[Ingested] = []
    recorder = Recorder(seen.append)
    for tenth in range(100):
        recorder.advance(tenth / 10, tenth / 10)
    assert [item.record.tick_seconds for item in seen] == list(range(10))
    for hundredth in range(100):
        recorder.advance(3600 + hundredth / 100, 0)
    ticks = [item for item in seen if item.received_seconds >= 3600]
    assert len(ticks) == 1
    assert all(isinstance(item.record, Tick) and item.tap == RECORDER_TAP for item in seen)


def test_a_tap_that_never_spoke_is_silent_once_and_heals_at_its_first_record() -> None:
    seen: list[Ingested] = []
    recorder = Recorder(seen.append, taps={"kv_events": "the endpoint"}, silence_seconds=3)
    for second in range(8):
        recorder.advance(second, second)
    assert [(s.event, s.state) for s in statuses(seen)] == [(TapEvent.SILENT, TapState.SILENT)]
    assert "nothing has arrived for 3 s; check the endpoint" in statuses(seen)[0].detail
    assert recorder.silent_taps() == {"kv_events": "has said nothing so far"}
    recorder.take(spoke(9), 9, "kv_events")
    assert [s.event for s in statuses(seen)] == [TapEvent.SILENT, TapEvent.HEALED]
    assert isinstance(seen[-1].record, FirstToken)
    assert recorder.silent_taps() == {}


def test_a_tap_that_stops_while_another_goes_on_is_silent_but_an_idle_engine_is_not() -> None:
    seen: list[Ingested] = []
    recorder = Recorder(seen.append, taps={"a": "", "b": ""}, silence_seconds=3)
    recorder.take(spoke(0), 0, "a")
    recorder.take(spoke(0), 0, "b")
    for second in range(60):
        recorder.advance(second, second)
    assert statuses(seen) == []
    for second in range(60, 70):
        recorder.take(spoke(second), second, "a")
        recorder.advance(second, second)
    assert [(s.tap, s.event) for s in statuses(seen)] == [("b", TapEvent.SILENT)]


def test_a_taps_own_news_does_not_count_as_life() -> None:
    recorder = Recorder(lambda item: None, taps={"a": ""}, silence_seconds=2)
    for second in range(5):
        news = TapStatus(tap="a", rank=0, event=TapEvent.DECODE_ERROR, state=TapState.DEGRADED)
        recorder.take(news, second, "a")
        recorder.advance(second, second)
    assert recorder.silent_taps() == {"a": "has said nothing so far"}


def test_a_full_disk_ends_the_recording_is_counted_and_forwarding_goes_on() -> None:
    seen: list[Ingested] = []
    shelf = Shelf(refuses_after=3)
    recorder = Recorder(seen.append, shelf)
    for second in range(6):
        recorder.take(spoke(second), second, "a")
    assert len(seen) == 6
    assert recorder.recording.records == len(shelf.items) == 3
    assert recorder.recording.failures == 1
    assert not recorder.recording.active
    assert "No space left on device" in recorder.recording.problem
    assert shelf.closed


def test_a_recording_at_its_size_limit_ends_and_says_so() -> None:
    shelf = Shelf(full_after=2)
    recorder = Recorder(lambda item: None, shelf)
    for second in range(4):
        recorder.take(spoke(second), second, "a")
    assert recorder.recording.records == 2
    assert "size limit" in recorder.recording.problem


def test_drops_become_a_record() -> None:
    seen: list[Ingested] = []
    Recorder(seen.append).dropped("a", 17, 1.0)
    assert [(s.event, s.count, s.state) for s in statuses(seen)] == [
        (TapEvent.DROPPED, 17, TapState.DEGRADED)
    ]


def test_a_loss_of_our_own_taints_its_tap_for_a_while_and_is_forgiven() -> None:
    for tap in ("observer", "kv-events"):
        pipeline = Pipeline()
        recorder = Recorder(pipeline.ingest, taps={tap: ""})
        live = TapStatus("kv-events", 0, TapEvent.CONNECTED, TapState.LIVE)
        recorder.take(live, 0.0, "kv-events")
        recorder.dropped(tap, 5, 1.0)
        for second in range(1, int(LOSS_FORGIVEN_AFTER_SECONDS)):
            recorder.take(spoke(second), second, tap)
            recorder.advance(second, second)
            assert pipeline.degraded
        recorder.advance(1.0 + LOSS_FORGIVEN_AFTER_SECONDS, 0.0)
        assert pipeline.tap_states[tap] is TapState.LIVE
        # Blocks that were lost stay lost until the tap that told of them has asked again.
        assert pipeline.degraded == (tap == "kv-events")


def test_a_tap_that_could_read_nothing_is_silent_for_that_reason() -> None:
    seen: list[Ingested] = []
    recorder = Recorder(seen.append, taps={"a": "the engine's flags"}, silence_seconds=2)
    refused = TapStatus(
        "a", 0, TapEvent.DECODE_ERROR, TapState.DEGRADED, detail="not vLLM's: another engine"
    )
    for second in range(4):
        recorder.take(refused, second, "a")
        recorder.advance(second, second)
    detail = statuses(seen)[-2].detail
    assert "nothing could be read of what arrived (not vLLM's: another engine)" in detail
    assert "the engine's flags" not in detail
    assert not recorder.spoke
    recorder.take(spoke(5), 5, "a")
    assert recorder.spoke


def test_whoever_waits_for_a_recording_hears_of_its_end() -> None:
    ended = []
    recorder = Recorder(lambda item: None, Shelf(refuses_after=2))
    recorder.on_end = lambda: ended.append(recorder.recording.problem)
    for second in range(5):
        recorder.take(spoke(second), second, "a")
    assert ended == [recorder.recording.problem] != [""]


def test_a_silent_tap_that_lost_records_speaks_again_in_doubt() -> None:
    seen: list[Ingested] = []
    recorder = Recorder(seen.append, taps={"a": ""}, silence_seconds=2)
    for second in range(4):
        recorder.advance(second, second)
    recorder.dropped("a", 1, 4.0)
    recorder.take(spoke(5), 5.0, "a")
    assert statuses(seen)[-1].state is TapState.DEGRADED


def test_names_that_strangers_give_their_streams_are_bounded() -> None:
    pipeline = Pipeline()
    recorder = Recorder(pipeline.ingest, taps={"a": ""})
    for number in range(5_000):
        news = TapStatus(f"stream{number}", 0, TapEvent.CONNECTED, TapState.LIVE)
        recorder.take(news, 0.0, "a")
    sizes = {
        name: len(held)
        for owner in (pipeline, pipeline.inventory, pipeline.outside, recorder)
        for name, held in vars(owner).items()
        if isinstance(held, dict | set)
    }
    assert max(sizes.values()) <= MAX_PUBLISHERS, sizes
    assert pipeline.inventory.counts["shed_publishers"] == 5_000 - MAX_PUBLISHERS


def test_closing_twice_is_safe() -> None:
    shelf = Shelf()
    recorder = Recorder(lambda item: None, shelf)
    recorder.close()
    recorder.close()
    assert shelf.closed
    assert not recorder.recording.active


def test_a_restart_longer_than_the_limit_makes_no_tap_silent() -> None:
    """All taps pause together; the one that speaks first again does not accuse the other."""
    seen: list[Ingested] = []
    recorder = Recorder(seen.append, taps={"a": "", "b": ""}, silence_seconds=3)
    for second in (0, 1, 40, 41):
        for tap in ("a", "b"):
            recorder.take(spoke(second), second, tap)
        recorder.advance(second, second)
    recorder.take(spoke(80), 80, "a")
    recorder.advance(80, 80)
    assert recorder.silent_taps() == {}


def test_a_silent_tap_that_speaks_again_is_only_as_whole_as_it_was() -> None:
    seen: list[Ingested] = []
    recorder = Recorder(seen.append, taps={"a": "", "b": ""}, silence_seconds=2)
    recorder.take(spoke(0), 0, "a")
    recorder.take(TapStatus("a", 0, TapEvent.GAP, TapState.DEGRADED), 0, "a")
    for second in range(6):
        recorder.take(spoke(second), second, "b")
        recorder.advance(second, second)
    assert recorder.silent_taps() == {"a": "went silent"}
    recorder.take(spoke(6), 6, "a")
    last = statuses([item for item in seen if item.tap == "a"])[-1]
    assert (last.event, last.state) == (TapEvent.HEALED, TapState.DEGRADED)
