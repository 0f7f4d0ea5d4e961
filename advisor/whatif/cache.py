"""HBM, host memory and disk as one simulated cache of prefixes.

Blocks that requests hold stay in HBM; what is not a whole block yet (a prompt's tail, room for
its output) counts in tokens. Blocks go down by the backup policy and reach the disk when host
memory evicts them; writing to disk costs nothing here.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import filterfalse, islice
from typing import NamedTuple

from kvready.advisor.whatif.live_request import LiveRequest
from kvready.advisor.whatif.scenario import Backup, Tiers
from kvready.advisor.whatif.tier import Tier


class Match(NamedTuple):
    """How much of a chain is resident, block by block from its beginning."""

    blocks: int  # resident in HBM or host memory before the first that is in neither
    load_blocks: tuple[int, ...]  # of those, in host memory alone
    disk_blocks: tuple[int, ...]  # that follow, on disk


class Cache:
    """Which block is where, and what HBM has room for."""

    def __init__(self, tiers: Tiers, token_bytes: int, block_tokens: int) -> None:
        block_bytes = token_bytes * block_tokens
        self.block_tokens = block_tokens
        self.hbm_tokens = tiers.hbm_bytes // token_bytes
        self.hbm = Tier(self.hbm_tokens // block_tokens)
        self.host = Tier(tiers.host_bytes // block_bytes)
        self.disk = Tier(tiers.disk_bytes // block_bytes if self.host.capacity_blocks else 0)
        self.private_tokens = 0
        self.duplicate_blocks = 0  # computed beside somebody who brings them, or has brought them
        self.computing: dict[int, int] = {}  # how many admitted requests will bring a block
        self._backup = tiers.backup if self.host.capacity_blocks else None
        self._uses: dict[int, int] = {}  # of blocks in HBM, for a selective backup
        self._backup_uses = tiers.backup_uses
        self._writing: set[int] = set()  # on their way to the host
        self._evicted: list[int] = []  # from HBM, to be written back
        self.changed: list[int] | None = None  # blocks that came or went, where somebody asks

    @property
    def room_tokens(self) -> int:
        """Of HBM, that no request holds."""
        return self.hbm_tokens - self.private_tokens - len(self.hbm.holds) * self.block_tokens

    def match(self, blocks: Sequence[int], below_hbm: bool = True) -> Match:
        """What a chain finds now, in HBM and perhaps below."""
        count = len(self.hbm.leading(blocks))
        if not below_hbm:
            return Match(count, (), ())
        loads: list[int] = []
        while below := self.host.leading(islice(blocks, count, None)):
            count += len(below)
            loads.extend(filterfalse(self.hbm.blocks.__contains__, below))
            count += len(self.hbm.leading(islice(blocks, count, None)))
        disk = self.disk.leading(islice(blocks, count, None)) if self.disk.blocks else ()
        return Match(count, tuple(loads), disk)

    def residency(self, blocks: Sequence[int], below_hbm: bool) -> tuple[int, int]:
        """Of a chain, without a gap from its start: blocks in HBM, and in HBM or host memory."""
        in_hbm = len(self.hbm.leading(blocks))
        return in_hbm, self.match(blocks[in_hbm:], below_hbm).blocks + in_hbm

    def has_room(self, live: LiveRequest, match: Match) -> bool:
        """Whether it can be admitted: all it reserves, but for blocks that others hold already."""
        needed, room = live.reserved_tokens, self.room_tokens
        if needed <= room:
            return True
        holds = self.hbm.holds
        held = sum(map(holds.__contains__, live.request.blocks[: match.blocks]))
        return needed - held * self.block_tokens <= room

    def admit(self, live: LiveRequest, match: Match) -> list[int]:
        """Reserve its HBM. What it loads is in HBM from now on, what it computes once it has.

        Returns the blocks that its hits want backed up.
        """
        request = live.request
        hits = request.blocks[: match.blocks]
        self._note(match.load_blocks)
        live.held_blocks = list(hits)
        live.new_blocks = list(request.blocks[match.blocks :])
        live.private_tokens = live.reserved_tokens - len(hits) * self.block_tokens
        self.private_tokens += live.private_tokens
        self.hbm.hold(hits)
        self.host.hold(match.load_blocks)
        self.host.use(hits)
        self._make_room()
        self._will_compute(live, match.blocks)
        return self._used(hits)

    def loaded(self, blocks: Sequence[int]) -> None:
        """A load is done: host memory may evict the copies that it held for it."""
        self.host.release(blocks)
        self._gone_from_host(self.host.evict(len(self.host) - self.host.capacity_blocks))

    def fetched(self, blocks: Sequence[int]) -> None:
        """A chain has come from disk; host memory keeps it until `loaded`."""
        self._note(blocks)
        self.host.hold(blocks)
        self._gone_from_host(self.host.evict(len(self.host) - self.host.capacity_blocks))

    def computed(self, live: LiveRequest) -> list[int]:
        """Its prefill is done: its blocks can be found. Returns those to be backed up."""
        computing = self.computing
        for block in live.new_blocks:
            if computing[block] == 1:
                del computing[block]
            else:
                computing[block] -= 1
        return self._brought(live, live.new_blocks)

    def finished(self, live: LiveRequest) -> list[int]:
        """It leaves: its blocks, its output's too, stay until evicted. Returns those to back up."""
        backups = self._brought(live, live.request.output_blocks)
        if self._backup is Backup.SELECTIVE and live.request.output_tokens > 1:
            # SGLang's counter goes up on every insertion, and a request that decodes inserts what
            # it computed twice: after its prefill, and at its end.
            backups += self._used(live.new_blocks)
        self.hbm.release(live.held_blocks)
        self.private_tokens -= live.private_tokens
        live.held_blocks = []
        live.private_tokens = 0
        return backups

    def written(self, blocks: Sequence[int]) -> None:
        """A copy into host memory is done."""
        self._writing.difference_update(blocks)
        if self._backup is not Backup.EVICTED:
            self.hbm.release(blocks)
        self.to_host(blocks)

    def to_host(self, blocks: Sequence[int]) -> None:
        """A chain comes into host memory."""
        self._note(blocks)
        self._gone_from_host(self.host.put(blocks))

    def take_evicted(self) -> list[int]:
        """Blocks that HBM gave up and that have to be written back first."""
        evicted, self._evicted = self._evicted, []
        return evicted

    def _brought(self, live: LiveRequest, blocks: Sequence[int]) -> list[int]:
        self.hbm.hold(blocks)
        self._note(blocks)
        live.held_blocks.extend(blocks)
        tokens = len(blocks) * self.block_tokens
        live.private_tokens -= tokens
        self.private_tokens -= tokens
        return self._used(blocks)

    def _used(self, blocks: Sequence[int]) -> list[int]:
        """Count a use of each; returns those due for a backup, which hold on to HBM until then."""
        if self._backup is None or self._backup is Backup.EVICTED:
            return []
        due: Sequence[int] = blocks
        if self._backup is Backup.SELECTIVE:
            uses, threshold = self._uses, self._backup_uses
            due = []
            for block in blocks:
                count = uses.get(block, 0) + 1
                uses[block] = count
                if count >= threshold:
                    due.append(block)
        writing = self._writing
        wanted = list(filterfalse(self.host.blocks.__contains__, due))
        if writing:
            wanted = list(filterfalse(writing.__contains__, wanted))
        self.hbm.hold(wanted)
        writing.update(wanted)
        return wanted

    def _will_compute(self, live: LiveRequest, matched: int) -> None:
        computing = self.computing
        hbm, host, disk = self.hbm.blocks, self.host.blocks, self.disk.blocks
        for block in live.findable_blocks[matched:]:
            if block in computing or block in hbm or block in host or block in disk:
                self.duplicate_blocks += 1
        for block in live.new_blocks:
            computing[block] = computing.get(block, 0) + 1

    def _make_room(self) -> None:
        hbm = self.hbm
        resident = len(hbm) * self.block_tokens + self.private_tokens
        excess = resident - self.hbm_tokens
        if excess <= 0:
            return
        evicted = hbm.evict(-(-excess // self.block_tokens))
        self._note(evicted)
        for block in evicted:
            self._uses.pop(block, None)
        if self._backup is Backup.EVICTED:
            host, writing = self.host, self._writing
            lost = [block for block in evicted if block not in host and block not in writing]
            writing.update(lost)
            self._evicted.extend(reversed(lost))

    def _gone_from_host(self, evicted: list[int]) -> None:
        self._note(evicted)
        if evicted and self.disk.capacity_blocks:
            evicted.reverse()
            self.disk.put(evicted)

    def _note(self, blocks: Sequence[int]) -> None:
        if self.changed is not None:
            self.changed.extend(blocks)
