"""What a scheduler's steps become as records, and that trouble stays inside the observer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest
from scheduler_fakes import (
    FakeRequest,
    FakeScheduler,
    FinishReason,
    Status,
    observe,
    prefill_stats,
    produced,
    runner_output,
    scheduled,
    transfers,
)

from kvready.collectors.engine import fetches as fetches_module
from kvready.collectors.engine import step_observer as module
from kvready.collectors.engine.fetches import FIRST_LOAD_ID, Fetches
from kvready.collectors.engine.step_observer import Began, StepObserver
from kvready.collectors.records import (
    MAX_WAITING_IDS,
    AnyRecord,
    BatchFinished,
    BatchMember,
    BatchPlanned,
    DeferReason,
    EngineDescribed,
    FirstToken,
    LoadDecided,
    LoadFinished,
    LoadStarted,
    Outcome,
    RequestArrived,
    RequestDeferred,
    RequestFinished,
    RequestPreempted,
    RequestScheduled,
    Surface,
    Tier,
)

BLOCK_BYTES = 32 * 131_072


@dataclass
class Collected:
    """A publisher that keeps what it is given."""

    records: list[AnyRecord] = field(default_factory=list)
    lost: int = 0
    errors: list[Exception] = field(default_factory=list)

    def open(self) -> None:
        """Nothing to open."""

    def publish(self, records: Sequence[AnyRecord]) -> None:
        self.records += records

    def lose(self, records: int) -> None:
        self.lost += records

    def count_failure(self, error: Exception) -> None:
        self.errors.append(error)

    def of(self, kind: type) -> list[AnyRecord]:
        return [record for record in self.records if isinstance(record, kind)]


@dataclass
class Watched:
    """A fake scheduler, its observer, and what the observer published."""

    scheduler: FakeScheduler
    observer: StepObserver
    published: Collected
    now: float = 100.0

    def arrive(self, *requests: FakeRequest) -> None:
        for request in requests:
            self.scheduler.requests[request.request_id] = request
            self.observer.after_arrival(request)

    def schedule(self, output: SimpleNamespace) -> SimpleNamespace:
        """As the scheduler does: tokens count as computed once they are scheduled."""
        self.now += 0.01
        for name, tokens in output.num_scheduled_tokens.items():
            self.scheduler.requests[name].num_computed_tokens += tokens
        self.observer.after_schedule(output, Began(self.now, self.now + 1e9))
        return output


def watch(connector: object | None = None, **settings: object) -> Watched:
    scheduler = FakeScheduler(connector)
    published = Collected()
    observer = observe(scheduler, published, **settings)  # type: ignore[arg-type]
    return Watched(scheduler, observer, published)


def test_an_arrival_carries_the_hashes_that_kv_events_use_and_only_once() -> None:
    watched = watch()
    digest = bytes(range(32))
    request = FakeRequest("r", num_prompt_tokens=70, block_hashes=[digest, b"\xff" * 32])
    watched.arrive(request)
    watched.arrive(request)
    watched.schedule(scheduled({}))
    (arrived,) = watched.published.of(RequestArrived)
    assert isinstance(arrived, RequestArrived)
    assert arrived.block_hashes == (int.from_bytes(digest[24:], "big"), 2**64 - 1)
    assert (arrived.prompt_tokens, arrived.block_tokens, arrived.output_token_limit) == (70, 32, 8)
    assert arrived.surface is Surface.SCHEDULER


def test_a_batch_names_its_members_and_the_queue_in_the_order_of_admission() -> None:
    watched = watch()
    fresh = FakeRequest("fresh", num_prompt_tokens=700, is_prefill_chunk=True)
    answering = FakeRequest("answering", num_prompt_tokens=64, num_computed_tokens=70)
    watched.arrive(fresh, answering)
    watched.scheduler.waiting.extend([FakeRequest("w1"), FakeRequest("w2")])
    watched.scheduler.kv_holding_waiting.append(FakeRequest("loading"))
    output = watched.schedule(scheduled({"answering": 1, "fresh": 511}, new=("fresh",)))
    (planned,) = watched.published.of(BatchPlanned)
    assert planned == BatchPlanned(
        step=1,
        planned_seconds=watched.now,
        planned_wall_seconds=watched.now + 1e9,
        members=(
            BatchMember("answering", 1, 70, is_prefill=False),
            BatchMember("fresh", 511, 0, is_prefill=True),
        ),
        waiting=("loading", "w1", "w2"),
        waiting_total=3,
        free_blocks=255,
    )
    watched.scheduler.waiting.clear()
    watched.scheduler.kv_holding_waiting.clear()
    watched.observer.after_update(output, runner_output(), {})
    (finished,) = watched.published.of(BatchFinished)
    assert isinstance(finished, BatchFinished)
    assert finished.step == 1
    assert finished.duration_seconds == pytest.approx(finished.finished_seconds - watched.now)


def test_the_last_chunk_of_a_prompt_is_prefill_even_when_one_token_is_left() -> None:
    watched = watch()
    watched.arrive(FakeRequest("hit", num_prompt_tokens=64, num_computed_tokens=63))
    watched.schedule(scheduled({"hit": 1}, new=("hit",)))
    (planned,) = watched.published.of(BatchPlanned)
    assert isinstance(planned, BatchPlanned)
    assert planned.members == (BatchMember("hit", 1, 63, is_prefill=True),)


def test_a_long_queue_is_cut_and_counted_whole() -> None:
    watched = watch()
    watched.arrive(FakeRequest("r"))
    watched.scheduler.waiting.extend(FakeRequest(f"w{n}") for n in range(MAX_WAITING_IDS + 5))
    watched.schedule(scheduled({"r": 1}))
    (planned,) = watched.published.of(BatchPlanned)
    assert isinstance(planned, BatchPlanned)
    assert len(planned.waiting) == MAX_WAITING_IDS
    assert planned.waiting_total == MAX_WAITING_IDS + 5


def test_empty_steps_make_no_batches_and_take_no_numbers() -> None:
    watched = watch()
    watched.arrive(FakeRequest("r"))
    empty = watched.schedule(scheduled({}))
    watched.observer.after_update(empty, runner_output(), {})
    watched.schedule(scheduled({"r": 64}, new=("r",)))
    (planned,) = watched.published.of(BatchPlanned)
    assert isinstance(planned, BatchPlanned)
    assert planned.step == 1
    assert watched.published.of(BatchFinished) == []


def test_results_find_their_batch_when_steps_overlap() -> None:
    watched = watch(kv_sequence=5)
    watched.arrive(FakeRequest("a"), FakeRequest("b"))
    first = watched.schedule(scheduled({"a": 64}, new=("a",)))
    second = watched.schedule(scheduled({"b": 64}, new=("b",)))
    for output in (first, second):
        watched.observer.after_update(output, runner_output(), {})
    finished = watched.published.of(BatchFinished)
    assert [record.step for record in finished] == [1, 2]  # type: ignore[union-attr]
    assert {record.kv_sequence for record in finished} == {5}  # type: ignore[union-attr]


def test_tokens_by_source_at_first_admission_are_the_engines_own_count() -> None:
    watched = watch(connector=object())
    request = FakeRequest("r", num_prompt_tokens=64, num_computed_tokens=63)
    request.prefill_stats = prefill_stats(local=32, external=32)
    watched.arrive(request)
    watched.schedule(scheduled({"r": 1}, new=("r",)))
    assert watched.published.of(RequestScheduled) == [
        RequestScheduled("r", watched.now, hbm_tokens=32, loaded_tokens=32)
    ]


def test_after_preemption_tokens_by_source_follow_from_the_load_that_was_ordered() -> None:
    watched = watch(connector=object())
    request = FakeRequest("r", num_prompt_tokens=256, num_preemptions=1)
    watched.arrive(request)
    watched.schedule(scheduled({}, preempted=("r",)))
    preempted_at = watched.now
    watched.schedule(scheduled({}, metadata=transfers({7: ("r", 3)}, {})))
    request.num_computed_tokens = 160
    watched.schedule(scheduled({"r": 50}, resumed=("r",)))
    assert watched.published.of(RequestPreempted) == [RequestPreempted("r", preempted_at)]
    assert watched.published.of(RequestScheduled) == [
        RequestScheduled("r", watched.now, hbm_tokens=64, loaded_tokens=96, resumed=True)
    ]


def test_copies_are_told_with_what_they_move() -> None:
    watched = watch(connector=object())
    watched.schedule(scheduled({}, metadata=transfers({4: ("a", 3)}, {5: ("b", 2)})))
    assert watched.published.of(LoadDecided) == [
        LoadDecided(4, "a", Tier.HOST, Tier.HBM, 96, 3 * BLOCK_BYTES, 96, watched.now),
        LoadDecided(5, "b", Tier.HBM, Tier.HOST, 64, 2 * BLOCK_BYTES, 64, watched.now),
    ]


def test_copies_inside_a_multi_connector_are_told_too() -> None:
    watched = watch(connector=object())
    nested = SimpleNamespace(metadata=(SimpleNamespace(), transfers({4: ("a", 1)}, {})))
    watched.schedule(scheduled({}, metadata=nested))
    (decided,) = watched.published.of(LoadDecided)
    assert isinstance(decided, LoadDecided)
    assert decided.load_id == 4


def test_without_a_mover_observer_the_end_is_told_when_all_workers_report_it() -> None:
    watched = watch(connector=object(), note_finish=True, workers=2)
    output = watched.schedule(scheduled({}, metadata=transfers({4: ("a", 3)}, {})))
    watched.observer.after_update(output, runner_output({4: 1}), {})
    assert watched.published.of(LoadFinished) == []
    watched.observer.after_update(output, runner_output({4: 1, 99: 2}), {})
    (finished,) = watched.published.of(LoadFinished)
    assert isinstance(finished, LoadFinished)
    assert (finished.load_id, finished.source, finished.destination) == (4, Tier.HOST, Tier.HBM)
    assert finished.step_quantised
    assert finished.started_seconds is None
    assert finished.payload_bytes == 3 * BLOCK_BYTES


def test_with_a_mover_observer_the_scheduler_tells_no_ends() -> None:
    watched = watch(connector=object())
    output = watched.schedule(scheduled({}, metadata=transfers({4: ("a", 3)}, {})))
    watched.observer.after_update(output, runner_output({4: 1}), {})
    assert watched.published.of(LoadFinished) == []


def test_deferrals_are_told_when_their_reason_changes() -> None:
    watched = watch(connector=object())
    loading = FakeRequest("loading", status=Status.WAITING_FOR_REMOTE_KVS)
    behind = FakeRequest("behind")
    watched.arrive(loading, behind)
    watched.scheduler.deferred_waiting = {loading, behind}
    watched.schedule(scheduled({}))
    told_at = watched.now
    watched.schedule(scheduled({}))
    deferred = watched.published.of(RequestDeferred)
    assert sorted(deferred, key=lambda record: record.request_id) == [  # type: ignore[union-attr]
        RequestDeferred("behind", told_at, DeferReason.LOAD),
        RequestDeferred("loading", told_at, DeferReason.LOAD),
    ]
    behind.num_stale_output_tokens = 1
    watched.schedule(scheduled({}))
    assert watched.published.of(RequestDeferred)[2:] == [
        RequestDeferred("behind", watched.now, DeferReason.OTHER)
    ]


def test_whom_a_policy_holds_is_told_from_whom_the_engine_passes_over() -> None:
    watched = watch(connector=object())
    held, behind = FakeRequest("held"), FakeRequest("behind")
    watched.arrive(held, behind)
    watched.scheduler.deferred_waiting = {held, behind}
    watched.scheduler.policy_hook = SimpleNamespace(held=frozenset({"held"}))  # type: ignore[attr-defined]
    watched.schedule(scheduled({}))
    reasons = {
        record.request_id: record.reason
        for record in watched.published.of(RequestDeferred)
        if isinstance(record, RequestDeferred)
    }
    assert reasons == {"held": DeferReason.HOLD, "behind": DeferReason.LOAD}


def test_a_deferral_is_told_again_after_an_admission_between() -> None:
    watched = watch(connector=object())
    request = FakeRequest("r")
    watched.arrive(request)
    watched.scheduler.deferred_waiting = {request}
    watched.schedule(scheduled({}))
    watched.scheduler.deferred_waiting = set()
    watched.schedule(scheduled({"r": 64}, new=("r",)))
    watched.schedule(scheduled({}, preempted=("r",)))
    watched.scheduler.deferred_waiting = {request}
    watched.schedule(scheduled({}))
    assert len(watched.published.of(RequestDeferred)) == 2


def test_without_a_connector_a_deferral_waits_for_no_load() -> None:
    watched = watch()
    request = FakeRequest("r")
    watched.arrive(request)
    watched.scheduler.deferred_waiting = {request}
    watched.schedule(scheduled({}))
    (deferred,) = watched.published.of(RequestDeferred)
    assert isinstance(deferred, RequestDeferred)
    assert deferred.reason is DeferReason.OTHER


def test_the_first_token_is_told_once_and_the_end_with_its_outcome() -> None:
    watched = watch()
    request = FakeRequest("r")
    watched.arrive(request)
    output = watched.schedule(scheduled({"r": 64}, new=("r",)))
    watched.observer.after_update(output, runner_output(), produced(("r", 0, None)))
    assert watched.published.of(FirstToken) == []
    for _ in range(2):
        watched.observer.after_update(output, runner_output(), produced(("r", 1, None)))
    assert len(watched.published.of(FirstToken)) == 1
    request.num_output_tokens = 3
    watched.observer.after_update(output, runner_output(), produced(("r", 1, FinishReason.LENGTH)))
    (finished,) = watched.published.of(RequestFinished)
    assert isinstance(finished, RequestFinished)
    assert (finished.outcome, finished.output_tokens) == (Outcome.FINISHED, 3)


@pytest.mark.parametrize("pause", ["UNPAUSED", "PAUSED_ALL"])
def test_results_ride_with_the_next_batch_unless_none_follows(pause: str) -> None:
    watched = watch()
    watched.arrive(FakeRequest("r"))
    watched.scheduler.pause_state = SimpleNamespace(name=pause)
    watched.scheduler.running = [watched.scheduler.requests["r"]]
    output = watched.schedule(scheduled({"r": 64}, new=("r",)))
    watched.observer.after_update(output, runner_output(), produced(("r", 1, None)))
    told_at_once = 0 if pause == "UNPAUSED" else 1
    assert len(watched.published.of(FirstToken)) == told_at_once
    output = watched.schedule(scheduled({"r": 1}))
    assert len(watched.published.of(FirstToken)) == 1
    watched.scheduler.running = []
    watched.observer.after_update(output, runner_output(), {})
    assert len(watched.published.of(BatchFinished)) == 2


@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        (Status.FINISHED_ABORTED, Outcome.ABORTED),
        (Status.FINISHED_ERROR, Outcome.FAILED),
        (Status.FINISHED_STOPPED, Outcome.FINISHED),
    ],
)
def test_an_end_from_outside_is_told_once(status: Status, outcome: Outcome) -> None:
    watched = watch()
    request = FakeRequest("r")
    watched.arrive(request)
    request.status = status
    watched.observer.after_stop([request])
    # The step that was running may still return the same end.
    watched.observer.after_update(
        scheduled({}), runner_output(), produced(("r", 0, FinishReason.ERROR))
    )
    (finished,) = watched.published.of(RequestFinished)
    assert isinstance(finished, RequestFinished)
    assert finished.outcome is outcome


def test_the_engine_describes_itself_again_for_those_who_join_late() -> None:
    watched = watch()
    for _ in range(250):  # 2.5 s of steps, 10 ms apart
        watched.schedule(scheduled({}))
    assert len(watched.published.of(EngineDescribed)) == 3


def test_a_failing_hook_is_counted_and_the_next_one_works() -> None:
    watched = watch()
    watched.arrive(FakeRequest("r"))
    watched.observer.after_schedule(SimpleNamespace(), Began(1.0, 1.0))  # not an output at all
    assert watched.published.lost == 1
    assert len(watched.published.errors) == 1
    watched.schedule(scheduled({"r": 64}, new=("r",)))
    assert len(watched.published.of(BatchPlanned)) == 1


def test_batches_whose_results_never_come_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_OPEN_STEPS", 2)
    watched = watch()
    watched.arrive(FakeRequest("r"))
    outputs = [watched.schedule(scheduled({"r": 1})) for _ in range(4)]
    for output in outputs:
        watched.observer.after_update(output, runner_output(), {})
    finished = watched.published.of(BatchFinished)
    assert [record.step for record in finished] == [3, 4]  # type: ignore[union-attr]


def test_a_priority_queue_is_told_in_the_order_of_priority() -> None:
    watched = watch()
    watched.arrive(FakeRequest("r"))
    heap = [
        SimpleNamespace(request_id=name, priority=priority, arrival_time=arrival)
        for name, priority, arrival in (("c", 2, 1.0), ("b", 1, 3.0), ("a", 1, 2.0))
    ]

    class PriorityQueue:
        """As the engine's: a heap inside."""

        def __init__(self) -> None:
            self._heap = heap

        def __len__(self) -> int:
            return len(self._heap)

    watched.scheduler.waiting = PriorityQueue()  # type: ignore[assignment]
    watched.schedule(scheduled({"r": 1}))
    (planned,) = watched.published.of(BatchPlanned)
    assert isinstance(planned, BatchPlanned)
    assert planned.waiting == ("a", "b", "c")


def test_what_the_disk_tier_did_goes_out_with_the_step_after_the_arrival_it_is_for() -> None:
    fetches = Fetches()
    watched = watch(fetches=fetches)
    request = FakeRequest("r", num_prompt_tokens=70, block_hashes=[bytes(32)])
    watched.arrive(request)
    # The tier is asked while the scheduler schedules, before the observer looks.
    fetches.decided(3, "r", True, 64, 2 * BLOCK_BYTES, 2, 100.005)
    fetches.started(3, True, 100.006)
    watched.schedule(scheduled({}))
    fetches.finished(3, True, 100.006, 100.008, 2 * BLOCK_BYTES, 2)
    watched.schedule(scheduled({}))
    kinds = [type(record) for record in watched.published.records]
    assert kinds == [RequestArrived, EngineDescribed, LoadDecided, LoadStarted, LoadFinished]
    decided, started, finished = watched.published.records[2:]
    assert decided == LoadDecided(
        FIRST_LOAD_ID + 3, "r", Tier.DISK, Tier.HOST, 64, 2 * BLOCK_BYTES, 2, 100.005
    )
    assert started == LoadStarted(FIRST_LOAD_ID + 3, Tier.DISK, Tier.HOST, 100.006)
    assert finished == LoadFinished(
        FIRST_LOAD_ID + 3, Tier.DISK, Tier.HOST, 100.006, 100.008, 2 * BLOCK_BYTES, 2
    )


def test_news_of_a_disk_tier_that_nobody_takes_is_bounded_and_its_loss_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fetches_module, "MAX_WAITING_RECORDS", 3)
    fetches = Fetches()
    watched = watch(fetches=fetches)
    for job in range(5):
        fetches.started(job, False, 1.0 + job)
    watched.schedule(scheduled({}))
    assert len(watched.published.of(LoadStarted)) == 3
    assert watched.published.lost == 2
    assert fetches.take() == ([], 0)


def test_a_ranks_disk_tier_tells_only_while_observing_is_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("KVREADY_OBSERVER", "off")
    assert fetches_module.observer(7) is None
    monkeypatch.setenv("KVREADY_OBSERVER", str(tmp_path))
    told = fetches_module.observer(7)
    assert told is not None
    assert fetches_module.fetches_of(7) is told
    assert fetches_module.fetches_of(8) is None
