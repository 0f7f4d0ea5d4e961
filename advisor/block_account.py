"""Free blocks of HBM as a rolled scheduler counts them: what an admission takes, what comes back.

An engine either takes blocks for a whole request when it lets it in, or, as vLLM, asks whether its
prompt would fit and takes blocks as they are computed or loaded. Here a prompt's blocks are taken
at once in either case; what the engine would not have taken yet counts as promised.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kvready.advisor.jobs import UNBOUNDED, Job, Limits
from kvready.advisor.shared_loads import common_blocks

MAX_HOLDERS = 64  # of chains that begin alike, the latest: whom a chain is compared with


class BlockAccount:
    """Of one roll."""

    def __init__(self, limits: Limits, jobs: Iterable[Job]) -> None:
        self.free = UNBOUNDED if limits.free_blocks is None else limits.free_blocks
        self._limits = limits
        self._lent = 0
        # By family, idle blocks that an admission took: the next of it finds them held, until one
        # of them ends.
        self._woken: dict[int, int] = {}
        self._loaded: dict[int, int] = {}  # by family, blocks that loads bring
        self._holders: dict[int, list[Job]] = {}  # by the first block of their chains
        for job in jobs:
            if job.blocks_held:
                self._hold(job)

    @property
    def own(self) -> int:
        """What is left of those that it began with; below none where more were promised."""
        return self.free - self._lent

    def lend(self, blocks: int) -> None:
        """So many more than are accounted for are free now; fewer, if negative."""
        self.free += blocks - self._lent
        self._lent = blocks

    def taken(self, job: Job, brought_tokens: int = 0) -> int:
        """Of the free ones, by its admission: new blocks, and what it finds that nobody holds.

        `brought_tokens`: of its prompt, that one who holds them has computed meanwhile.
        """
        taken = job.blocks_needed
        if job.chain:
            taken += max(0, job.hbm_blocks - self._shared(job))
        elif job.idle_blocks:
            taken += max(0, job.idle_blocks - self._woken.get(job.family, 0))
        brought = brought_tokens // self._limits.block_tokens
        return max(0, taken - brought - self._loaded_by_others(job))

    def fits(self, job: Job, taken: int, promised: int) -> bool:
        """Whether it can be let in. Others' promised blocks are in its way only where it loads."""
        if self._limits.reserves_output:
            return taken <= self.free
        if taken > self.free + promised:
            return False
        return job.load_seconds <= 0.0 or taken - self.to_compute(job) <= self.free

    def take(self, job: Job, taken: int) -> None:
        """It is let in, or its load is ordered."""
        self.free -= taken
        job.blocks_held += job.blocks_needed + job.hbm_blocks if job.chain else taken
        self._hold(job)
        if job.idle_blocks and job.family:
            self._woken[job.family] = max(job.idle_blocks, self._woken.get(job.family, 0))
        if job.load_seconds > 0.0 and job.family:
            loaded = job.load_tokens // self._limits.block_tokens
            self._loaded[job.family] = max(loaded, self._loaded.get(job.family, 0))
        job.blocks_needed = job.idle_blocks = job.hbm_blocks = 0

    def give_back(self, job: Job) -> None:
        """It ended: what nobody else holds is free."""
        if job.chain:
            holders = self._holders.get(job.chain[0], [])
            holders[:] = [one for one in holders if one is not job]
        self._loaded.pop(job.family, None)
        self._woken.pop(job.family, None)
        self.free += max(0, job.blocks_held - self._shared(job))

    def grow(self, job: Job, tokens: int) -> None:
        """It computed so many tokens: the answer needs blocks that were not reserved."""
        if self._limits.reserves_output or job.context_tokens <= job.prompt_tokens:
            return
        before = max(job.prompt_tokens, job.context_tokens - tokens)
        grown = self._blocks(job.context_tokens) - self._blocks(before)
        self.free -= grown
        job.blocks_held += grown

    def to_compute(self, job: Job, tokens: int = 0) -> int:
        """Blocks of its prompt after so many tokens more: taken here, by an engine later."""
        if self._limits.reserves_output:
            return 0
        found = job.context_tokens if job.running else max(job.context_tokens, job.promised_tokens)
        computed = min(job.prompt_tokens, found + tokens)
        return self._blocks(job.prompt_tokens) - self._blocks(computed)

    def promised(
        self, running: Iterable[Job], loading: Iterable[Job], shares: Mapping[str, int]
    ) -> int:
        """Blocks of prompts that are in, or being loaded, which the engine has not taken yet."""
        if self._limits.reserves_output:
            return 0
        computing = (job for job in running if job.prefill_left > 0)
        return sum(self.to_compute(job, shares.get(job.request_id, 0)) for job in computing) + sum(
            map(self.to_compute, loading)
        )

    def _hold(self, job: Job) -> None:
        if job.chain:
            holders = self._holders.setdefault(job.chain[0], [])
            if not any(one is job for one in holders):
                holders.append(job)

    def _shared(self, job: Job) -> int:
        """Blocks from the beginning of its chain that somebody else holds."""
        chain = job.chain
        best = 0
        holders = self._holders.get(chain[0], ()) if chain else ()
        for other in holders[-MAX_HOLDERS:]:
            most = min(len(chain), len(other.chain))
            if other is not job and most > best:
                best = max(best, common_blocks(chain, other.chain, 0, most))
        return best

    def _loaded_by_others(self, job: Job) -> int:
        """Blocks of its load that another of its family loads; who has their names waits for it."""
        if job.load_hashes or job.load_seconds <= 0.0:
            return 0
        own = job.load_tokens // self._limits.block_tokens
        return min(own, self._loaded.get(job.family, 0))

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self._limits.block_tokens)
