"""Blocks that requests hold, against plain sets; and what an idle hit takes in a roll forward."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kvready.advisor.held_blocks import HeldBlocks
from kvready.advisor.jobs import Job, Limits
from kvready.advisor.rollforward import roll_forward

# Chains as a tree gives them: a block's hash stands for all before it.
CHAINS = st.lists(st.integers(0, 1), max_size=8).map(
    lambda turns: tuple(hash(tuple(turns[: i + 1])) for i in range(len(turns)))
)


@given(
    st.lists(st.tuples(st.integers(0, 4), CHAINS, st.booleans()), max_size=30),
    CHAINS,
    st.integers(0, 9),
    st.integers(1, 3),
)
def test_held_blocks_are_those_of_the_chains_that_are_held(
    steps: list[tuple[int, tuple[int, ...], bool]], asked: tuple[int, ...], end: int, by: int
) -> None:
    held = HeldBlocks()
    chains: dict[str, tuple[int, ...]] = {}
    for number, chain, takes in steps:
        name = str(number)
        if takes:
            held.hold(name, chain)
            chains.setdefault(name, chain)
        else:
            held.release(name)
            chains.pop(name, None)
    expected = sum(sum(block in chain for chain in chains.values()) >= by for block in asked[:end])
    assert held.held(asked, end, by) == expected
    assert len(held) == len({block for chain in chains.values() for block in chain})


def question(name: str, *, needs: int, idle: int, running: bool = False, holds: int = 0) -> Job:
    return Job(
        name,
        prompt_tokens=100,
        context_tokens=99,
        output_left=4,
        load_seconds=0.0,
        usable_after_seconds=0.0,
        running=running,
        blocks_needed=needs,
        blocks_held=holds,
        idle_blocks=idle,
        family=7,
    )


def step_seconds(members: object) -> float:
    return 1.0


def scheduled(jobs: list[Job], subject: str, free_blocks: int) -> float | None:
    limits = Limits(batch_tokens=512, batch_requests=16, free_blocks=free_blocks)
    return roll_forward(jobs, subject, limits, step_seconds).scheduled_seconds


def test_a_hit_on_idle_blocks_takes_them_from_the_free_ones() -> None:
    busy = question("busy", needs=0, idle=0, running=True, holds=5)
    waits = [busy, question("asked", needs=1, idle=5)]
    assert scheduled(waits, "asked", free_blocks=6) == 0.0
    # One short: it waits until the running request has ended, after its four tokens.
    assert scheduled(waits, "asked", free_blocks=5) == 4.0


def test_the_second_of_a_family_finds_held_what_the_first_has_taken() -> None:
    both = [question("first", needs=1, idle=5), question("second", needs=1, idle=5)]
    assert scheduled(both, "second", free_blocks=7) == 0.0
