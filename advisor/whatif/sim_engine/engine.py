"""One simulated engine, from its first incarnation to its end, into whatever sink it is given."""

from __future__ import annotations

import msgspec

from kvready.advisor.whatif.sim_engine.clock import Clock
from kvready.advisor.whatif.sim_engine.faults import FaultName, Faults
from kvready.advisor.whatif.sim_engine.flags import Obeyed
from kvready.advisor.whatif.sim_engine.hidden import Hidden
from kvready.advisor.whatif.sim_engine.machine import SimMachine, described
from kvready.advisor.whatif.sim_engine.narrator import Narrator, Sink, Stopped
from kvready.advisor.whatif.sim_engine.watched_run import WatchedRun
from kvready.advisor.whatif.sim_engine.workloads import left_after, with_convoys
from kvready.advisor.whatif.workload import Workload


class _Restarted(Exception):
    """The incarnation ends here."""


class SimEngine:
    """Runs a workload. The flags may be changed while it runs; they are read at each step."""

    def __init__(
        self,
        machine: SimMachine,
        workload: Workload,
        faults: Faults,
        flags: Obeyed,
        seed: int,
    ) -> None:
        self.flags = flags
        self.described = described(machine, workload.block_tokens, flags)
        self.requests = len(workload.requests)
        self.now = 0.0  # simulated seconds
        self._machine = machine
        self._workload = with_convoys(workload, faults, seed)
        self._faults = faults
        self._hidden = Hidden(seed, faults)
        self._arrived: set[str] = set()
        self._restarts = [fault.begin_seconds for fault in faults.named(FaultName.RESTART)]

    def run(self, clock: Clock, sink: Sink) -> bool:
        """Until all is served: True; False where the clock said to stop."""
        while True:
            narrator = self._narrator(clock, sink)
            try:
                if self._workload.requests:
                    self._incarnation(narrator).run()
            except Stopped:
                return False
            except _Restarted:
                sink.restart()
                self._workload = left_after(self._workload, self._arrived, self.now)
                continue
            return True

    def turn(self, now: float) -> None:
        """Time passed. Raises where this incarnation ends."""
        self.now = now
        if self._restarts and now >= self._restarts[0]:
            self._restarts.pop(0)
            raise _Restarted

    def _narrator(self, clock: Clock, sink: Sink) -> Narrator:
        flags = self.flags
        told = msgspec.structs.replace(self.described, load_method=flags.copy_method)
        return Narrator(told, clock, sink, lambda: flags.copy_method, self.turn, self._arrived.add)

    def _incarnation(self, narrator: Narrator) -> WatchedRun:
        machine = self._machine
        return WatchedRun(
            self._workload,
            machine.scenario,
            narrator,
            self._hidden,
            self._faults,
            self.flags,
            machine.loads,
            machine.backups,
        )
