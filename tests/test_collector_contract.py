"""Both taps keep every collector's promises, over real sockets and a publisher under control."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
import pytest
from kv_publisher import KvPublisher
from observer_publisher import TOPIC, ObserverPublisher

from kvready.collectors import contract
from kvready.collectors.collector import Collector, Coverage, Level, Sink, Stability
from kvready.collectors.kv_events import KvEventTap
from kvready.collectors.observer_tap import ObserverTap
from kvready.collectors.records import TapState

PublisherUnderTest = KvPublisher | ObserverPublisher

GARBAGE: dict[str, Callable[[bytes], list[Sequence[bytes]]]] = {
    "kv_events": lambda topic: [
        [topic],
        [topic, b"short", b""],
        [topic, bytes(8), b"", b"four frames"],
        [topic, (1).to_bytes(8, "big"), b"\xc1 no msgpack"],
        [topic, (2).to_bytes(8, "big"), msgspec.msgpack.encode({"a": "map"})],
    ],
}
GARBAGE["observer"] = GARBAGE["kv_events"]


@pytest.fixture(params=["kv_events", "observer"])
def rig(request: pytest.FixtureRequest, short_dir: Path) -> Iterator[PublisherUnderTest]:
    made = KvPublisher(short_dir) if request.param == "kv_events" else ObserverPublisher(short_dir)
    yield made
    made.end()


@pytest.mark.parametrize(
    "check",
    [
        contract.check_delivery,
        contract.check_loss,
        contract.check_duplicate,
        contract.check_restart,
    ],
    ids=lambda check: check.__name__,
)
def test_a_tap_keeps_its_promises(
    check: Callable[[contract.Rig], None], rig: PublisherUnderTest
) -> None:
    check(rig)


def test_garbage_is_counted_and_survived(rig: PublisherUnderTest) -> None:
    topic = b"kv" if isinstance(rig, KvPublisher) else TOPIC
    contract.check_garbage(rig, GARBAGE["kv_events"](topic))


@pytest.mark.parametrize("kind", ["kv_events", "observer"])
def test_a_tap_lives_and_waits_without_a_publisher(kind: str, short_dir: Path) -> None:
    def make() -> Collector:
        if kind == "observer":
            return ObserverTap("observer", short_dir)
        return KvEventTap("engine", f"ipc://{short_dir}/a.sock", f"ipc://{short_dir}/b.sock")

    contract.check_lifecycle(make)
    contract.check_no_data_is_not_failure(make)


def test_endpoints_that_can_never_deliver_are_refused_at_start(short_dir: Path) -> None:
    contract.check_impossible_endpoints(
        [
            lambda: KvEventTap("engine", "http://host:1"),
            lambda: KvEventTap("engine", "ipc://" + "x" * 200),
            lambda: KvEventTap("engine", "ipc:///tmp/a.sock", "nonsense"),
            lambda: ObserverTap("observer", short_dir / ("d" * 120)),
        ]
    )


class Careless:
    """A collector that breaks one promise, told by name, to see that the kit finds it."""

    def __init__(self, flaw: str) -> None:
        self.name = "careless"
        self._flaw = flaw
        self._state = TapState.CLOSED

    def start(self, sink: Sink) -> None:
        self._state = TapState.LIVE

    def poll(self, budget_seconds: float) -> int:
        return 1 if self._flaw == "takes what is not there" else 0

    def stop(self) -> None:
        if self._flaw == "stops only when started" and self._state is TapState.CLOSED:
            raise RuntimeError("not started")
        if self._flaw != "never closes":
            self._state = TapState.CLOSED

    def coverage(self) -> Coverage:
        heard = 1.0 if self._flaw == "claims to have heard" else None
        return Coverage(self.name, Level.METRICS, self._state, Stability.BETA, 0, 0, 0, 0, 0, heard)


@pytest.mark.parametrize(
    "flaw",
    ["takes what is not there", "stops only when started", "never closes", "claims to have heard"],
)
def test_the_kit_finds_a_careless_collector(flaw: str) -> None:
    with pytest.raises((contract.ContractBroken, RuntimeError)):
        contract.check_lifecycle(lambda: Careless(flaw))
    contract.check_lifecycle(lambda: Careless("none"))
