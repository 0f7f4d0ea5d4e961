"""The simulated engine: what its surfaces say fits together, and can be predicted."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import msgspec
import pytest

from kvready.advisor.contract import Evidence
from kvready.advisor.ledger import Pair, PairState, Target
from kvready.advisor.pipeline import Pipeline
from kvready.advisor.playback import play
from kvready.advisor.whatif.sim_engine.clock import DURATIONS, MOMENTS, WALL_MOMENTS, Clock
from kvready.advisor.whatif.sim_engine.engine import SimEngine
from kvready.advisor.whatif.sim_engine.faults import Faults, parse_fault
from kvready.advisor.whatif.sim_engine.flags import Flags, parse_flags
from kvready.advisor.whatif.sim_engine.hidden import COMPUTE_SPREAD, LINK_SPREAD, Hidden
from kvready.advisor.whatif.sim_engine.machine import vllm_like
from kvready.advisor.whatif.sim_engine.mix import mix
from kvready.advisor.whatif.sim_engine.recorded import RecordedSink, write
from kvready.advisor.whatif.workload import SimRequest, Workload
from kvready.collectors.errors import SettingsError
from kvready.collectors.names import CopyMethod, Tier
from kvready.collectors.recorder import Recorder
from kvready.collectors.recording import Provenance, read_recording
from kvready.collectors.records import (
    BatchFinished,
    BatchPlanned,
    BlocksRemoved,
    BlocksStored,
    FirstToken,
    Ingested,
    LoadFinished,
    Observed,
    RequestArrived,
    RequestDeferred,
    RequestFinished,
    RequestScheduled,
    TapEvent,
    TapStatus,
    Tick,
)

BEGIN = 1_000.0
WALL = 1.7e9
SMALL = vllm_like("llama-3.1-8b", "h200", hbm_gib=4, host_gib=16, page_tokens=32)


def engine(
    requests: int = 200,
    rate: float = 8.0,
    seed: int = 1,
    faults: tuple[str, ...] = (),
    flags: Flags | None = None,
    workload: Workload | None = None,
) -> SimEngine:
    asked = workload or mix(rate, requests, seed)
    return SimEngine(SMALL, asked, Faults(map(parse_fault, faults)), flags or Flags(), seed)


def told(simulated: SimEngine, pipeline: Pipeline | None = None) -> list[Ingested]:
    """All records of a run, which a pipeline takes as they come."""
    items: list[Ingested] = []

    def take(item: Ingested) -> None:
        items.append(item)
        if pipeline is not None:
            pipeline.ingest(item)

    clock = Clock(BEGIN, WALL, speed=1.0)
    recorder = Recorder(take, started_seconds=BEGIN)
    assert simulated.run(clock, RecordedSink(recorder, clock, simulated.described.block_tokens))
    return items


@pytest.fixture(scope="module")
def items() -> list[Ingested]:
    return told(engine())


def of_kind(items: list[Ingested], kind: type) -> list[Ingested]:
    return [item for item in items if isinstance(item.record, kind)]


# What it tells fits together -------------------------------------------------------------------


def test_a_request_goes_through_all_its_moments_in_order(items: list[Ingested]) -> None:
    moments: dict[str, list[float]] = {}
    for item in items:
        match item.record:
            case RequestArrived(request_id=name, arrived_seconds=at):
                moments[name] = [at]
            case RequestScheduled(request_id=name, scheduled_seconds=at):
                moments[name].append(at)
            case FirstToken(request_id=name, first_token_seconds=at):
                moments[name].append(at)
            case RequestFinished(request_id=name, finished_seconds=at):
                moments[name].append(at)
            case _:
                pass
    assert len(moments) == 200
    for name, times in moments.items():
        assert len(times) == 4, name
        assert times == sorted(times)


def test_tokens_of_batches_add_up_to_what_a_request_found_computed_and_said(
    items: list[Ingested],
) -> None:
    arrived = {one.record.request_id: one.record for one in of_kind(items, RequestArrived)}
    found = {
        one.record.request_id: one.record.hbm_tokens + one.record.loaded_tokens
        for one in of_kind(items, RequestScheduled)
    }
    prefilled: Counter[str] = Counter()
    said: Counter[str] = Counter()
    for item in of_kind(items, BatchPlanned):
        for member in item.record.members:
            name, prompt = member.request_id, arrived[member.request_id].prompt_tokens
            if member.is_prefill:
                assert member.context_tokens == found[name] + prefilled[name]
                prefilled[name] += member.new_tokens
            else:
                assert member.context_tokens == prompt + said[name]
                said[name] += 1
    for item in of_kind(items, RequestFinished):
        name = item.record.request_id
        assert found[name] + prefilled[name] == arrived[name].prompt_tokens
        assert said[name] == item.record.output_tokens - 1  # the first comes with the prefill


def test_every_batch_and_every_copy_that_began_ended_once(items: list[Ingested]) -> None:
    planned = [one.record.step for one in of_kind(items, BatchPlanned)]
    assert planned == [one.record.step for one in of_kind(items, BatchFinished)]
    assert planned == list(range(1, len(planned) + 1))
    kinds = Counter(str(one.record.__struct_config__.tag) for one in items)
    finished = kinds["load_finished"]
    # The run ends with its last request, and does not wait for that one's backup.
    assert 0 < finished <= kinds["load_started"] <= kinds["load_decided"] <= finished + 1


def test_copies_of_one_direction_come_one_after_another(items: list[Ingested]) -> None:
    free: dict[Tier, float] = {}
    for item in of_kind(items, LoadFinished):
        copy = item.record
        assert copy.started_seconds is not None
        assert copy.started_seconds >= free.get(copy.destination, 0.0) - 1e-9
        assert copy.ready_seconds > copy.started_seconds
        free[copy.destination] = copy.ready_seconds


def test_no_block_is_stored_twice_nor_removed_unseen_and_tiers_hold_what_they_can(
    items: list[Ingested],
) -> None:
    live: dict[Tier, set[int]] = {Tier.HBM: set(), Tier.HOST: set()}
    described = engine(1).described
    room = {
        Tier.HBM: described.hbm_blocks,
        Tier.HOST: described.host_bytes // described.kv_bytes_per_token // described.block_tokens,
    }
    removed = 0
    for item in items:
        if isinstance(item.record, BlocksStored):
            assert live[item.record.tier].isdisjoint(item.record.block_hashes)
            live[item.record.tier].update(item.record.block_hashes)
        elif isinstance(item.record, BlocksRemoved):
            assert live[item.record.tier].issuperset(item.record.block_hashes)
            live[item.record.tier].difference_update(item.record.block_hashes)
            removed += len(item.record.block_hashes)
    assert removed > 0
    assert all(len(blocks) <= room[tier] for tier, blocks in live.items())


def test_whoever_runs_finds_what_the_events_said_is_in_hbm(items: list[Ingested]) -> None:
    pipeline = Pipeline()
    for item in items:
        pipeline.ingest(item)
    totals = pipeline.totals
    assert totals.lost_hit_tokens <= 0.02 * totals.nominal_hit_tokens
    assert totals.hbm_hit_tokens + totals.loaded_tokens > 0.2 * totals.prompt_tokens
    assert totals.unattributed_seconds == pytest.approx(0.0, abs=1e-6)


def test_ticks_come_each_second_and_in_order_of_ingestion(items: list[Ingested]) -> None:
    received = [item.received_seconds for item in items]
    assert received == sorted(received)
    ticks = [one.record.tick_seconds for one in of_kind(items, Tick)]
    assert ticks == [BEGIN + 1 + number for number in range(len(ticks))]


def test_a_record_has_no_time_that_a_clock_would_leave_as_it_is() -> None:
    mapped = MOMENTS | WALL_MOMENTS | DURATIONS
    for kind in Observed.__subclasses__():
        for name in kind.__struct_fields__:
            assert not name.endswith("_seconds") or name in mapped, f"{kind.__name__}.{name}"


def test_at_another_speed_only_the_seconds_differ() -> None:
    record = BatchFinished(3, finished_seconds=10.0, duration_seconds=4.0)
    quick = Clock(BEGIN, WALL, speed=4.0).told(record)
    assert quick == msgspec.structs.replace(
        record, finished_seconds=BEGIN + 2.5, duration_seconds=1.0
    )


# It can be predicted, and only by learning -----------------------------------------------------


def test_after_two_thousand_forecasts_intervals_cover_what_they_say() -> None:
    # Questions to documents with short answers: as many forecasts in less time.
    asked = mix(9.0, 3_000, 3)
    short = tuple(
        msgspec.structs.replace(request, output_tokens=min(request.output_tokens, 4))
        for request in asked.requests
        if request.request_class == "document"
    )
    pairs: list[Pair] = []
    told(engine(workload=msgspec.structs.replace(asked, requests=short)), Pipeline(pairs.append))
    scored = [
        pair
        for pair in pairs
        if pair.forecast.target is Target.TTFT and pair.state is PairState.PAIRED
    ]
    assert len(scored) >= 2_000
    assert 0.87 <= sum(bool(pair.covered) for pair in scored) / len(scored) <= 0.93


def test_true_costs_are_drawn_by_seed_and_lie_off_what_a_profile_says() -> None:
    factors = []
    for seed in range(40):
        hidden = Hidden(seed, Faults())
        batches = [hidden.batch_seconds(1.0, 0.0) for _ in range(200)]
        copies = [hidden.copy_seconds(1.0, "gather", 0.0) for _ in range(200)]
        factors.append((sorted(batches)[100], sorted(copies)[100]))
    for number, spread in enumerate((COMPUTE_SPREAD, LINK_SPREAD)):
        drawn = [factor[number] for factor in factors]
        assert min(drawn) < 0.9 / 1.1 < 1.1 < max(drawn)
        assert max(max(drawn), 1.0 / min(drawn)) < spread * 1.1
    again = Hidden(7, Faults())
    assert [again.batch_seconds(1.0, 0.0) for _ in range(3)] == [
        one.batch_seconds(1.0, 0.0) for one in [Hidden(7, Faults())] for _ in range(3)
    ]


# Recordings -------------------------------------------------------------------------------------


def test_a_recording_is_simulated_by_its_header_and_the_same_for_the_same_seed(
    tmp_path: Path,
) -> None:
    paths = [tmp_path / "one.kvr", tmp_path / "two.kvr"]
    for path in paths:
        write(path, engine(40), "mix", 1)
    assert paths[0].read_bytes() == paths[1].read_bytes()
    assert read_recording(paths[0]).header.provenance is Provenance.SIMULATED
    played = play(paths[0])
    assert played.damage is None
    assert played.pipeline.evidence is Evidence.SIMULATED
    assert played.pipeline.totals.first_tokens == 40


# Faults -----------------------------------------------------------------------------------------


def service_seconds(items: list[Ingested], begin: float, end: float) -> list[float]:
    """Seconds a byte of loads that ended between two simulated moments."""
    return [
        (one.record.ready_seconds - one.record.started_seconds) / one.record.payload_bytes
        for one in of_kind(items, LoadFinished)
        if one.record.destination is Tier.HBM and begin <= one.record.ready_seconds - BEGIN < end
    ]


def test_a_slow_link_slows_loads_while_it_lasts() -> None:
    seen = told(engine(160, faults=("slow_link@10:10",)))
    quiet, slow = service_seconds(seen, 0, 10), service_seconds(seen, 11, 20)
    median = sorted(slow)[len(slow) // 2] / sorted(quiet)[len(quiet) // 2]
    assert 2.0 < median < 4.5  # three times, with noise


def test_an_erratic_machine_is_slow_by_turns_and_well_again_afterwards() -> None:
    def slowness(now: float) -> float:
        erratic, well = Hidden(7, Faults([parse_fault("erratic@10:20")])), Hidden(7, Faults())
        return erratic.batch_seconds(1.0, now) / well.batch_seconds(1.0, now)

    during = [slowness(10.25 + 0.5 * turn) for turn in range(40)]
    assert during == pytest.approx([20.0, 1.0] * 20)
    assert [slowness(9.9), slowness(30.1)] == pytest.approx([1.0, 1.0])


def test_a_stall_plans_nothing_and_serves_all_later() -> None:
    seen = told(engine(100, faults=("stall@5:4",)))
    planned = [one.record.planned_seconds - BEGIN for one in of_kind(seen, BatchPlanned)]
    assert not [at for at in planned if 5.5 < at < 9.0]
    assert len(of_kind(seen, FirstToken)) == 100


def test_a_convoy_is_many_requests_of_one_document_at_once() -> None:
    seen = told(engine(60, faults=("convoy@4",)))
    convoy = [
        one.record
        for one in of_kind(seen, RequestArrived)
        if one.record.request_id.startswith("convoy")
    ]
    assert len(convoy) > 16
    assert len({one.block_hashes for one in convoy}) == 1
    assert max(one.arrived_seconds for one in convoy) - BEGIN < 6.0


def test_a_restart_is_another_incarnation_with_empty_caches() -> None:
    pipeline = Pipeline()
    seen = told(engine(120, faults=("restart@6",)), pipeline)
    epochs = [one for one in of_kind(seen, TapStatus) if one.record.event is TapEvent.EPOCH]
    assert len(epochs) == 3  # each stream says so
    after = seen[epochs[-1].ingest :]
    assert of_kind(after, BlocksStored)[0].record.sequence == 0
    assert of_kind(after, BatchPlanned)[0].record.step == 1
    begun = {one.record.request_id for one in of_kind(after, FirstToken)}
    assert begun == {one.record.request_id for one in of_kind(after, RequestArrived)}
    assert pipeline.totals.arrivals == len(of_kind(seen, RequestArrived)) == 120


@pytest.mark.parametrize("text", ["slow@3", "stall", "stall@x", "stall@-1", "gap@1:-2", "gap@nan"])
def test_a_fault_that_is_none_is_refused_with_the_form(text: str) -> None:
    with pytest.raises(SettingsError, match="NAME@SECONDS"):
        parse_fault(text)


# Policies ---------------------------------------------------------------------------------------


def crowd(requests: int = 16, tokens: int = 12_800) -> Workload:
    """Requests of one document that nobody has asked for, together."""
    return Workload(
        name="crowd",
        source="a test",
        block_tokens=32,
        requests=tuple(
            SimRequest(f"r{n}", 1e-3 * n, tokens + 40, 4, tuple(range(1, tokens // 32 + 1)))
            for n in range(requests)
        ),
    )


def computed_tokens(items: list[Ingested]) -> int:
    return sum(
        member.new_tokens
        for one in of_kind(items, BatchPlanned)
        for member in one.record.members
        if member.is_prefill
    )


def test_dedup_on_computes_a_shared_document_once() -> None:
    flags = parse_flags(["dedup=on"])
    together = told(engine(workload=crowd(), flags=flags))
    assert computed_tokens(together) == 12_800 + 16 * 40
    assert of_kind(together, RequestDeferred)
    assert computed_tokens(told(engine(workload=crowd()))) >= 2 * 12_800


def test_flags_are_read_at_each_step_of_a_run() -> None:
    flags = Flags()
    simulated = engine(160, flags=flags)
    items: list[Ingested] = []
    clock = Clock(BEGIN, WALL, speed=1.0)

    def take(item: Ingested) -> None:
        items.append(item)
        late = item.received_seconds - BEGIN > 10.0
        flags.gpu_copy = flags.dedup = flags.balance = late

    recorder = Recorder(take, started_seconds=BEGIN)
    simulated.run(clock, RecordedSink(recorder, clock, simulated.described.block_tokens))
    methods = [
        (one.record.ready_seconds - BEGIN, one.record.method)
        for one in of_kind(items, LoadFinished)
    ]
    assert {method for at, method in methods if at < 10.0} == {CopyMethod.DMA_PER_PAGE}
    assert {method for at, method in methods if at > 12.0} == {CopyMethod.GATHER}
    assert len(of_kind(items, RequestFinished)) == 160


@pytest.mark.parametrize("text", ["dedup", "dedup=1", "speed=on", "=on"])
def test_a_switch_that_is_none_is_refused_with_the_form(text: str) -> None:
    with pytest.raises(SettingsError, match="dedup=on"):
        parse_flags([text])
