"""Which policies a simulated engine obeys, read at each step: fixed, or as a sidecar says."""

from __future__ import annotations

from typing import Protocol

from kvready.advisor.hooks.flag_client import FlagClient
from kvready.advisor.ledger import Target
from kvready.advisor.policies import Policy
from kvready.advisor.shape_cells import inflight_cell, told_cell
from kvready.collectors.errors import SettingsError
from kvready.collectors.names import CopyMethod

ON_OFF = {"on": True, "off": False}


class Obeyed(Protocol):
    """What an engine reads of its switches."""

    @property
    def dedup(self) -> bool:
        """Whether anybody may be held."""

    @property
    def balance(self) -> bool:
        """Whether batches are Strata's."""

    @property
    def copy_method(self) -> CopyMethod:
        """The mover that loads and backups go by."""

    def may_hold(self, prefix_group: int | None, awaited_tokens: int) -> bool:
        """Whether those whose prompts begin with this block may be held for so many tokens."""


class Flags:
    """The policies' switches. All off unless told otherwise."""

    def __init__(self, dedup: bool = False, balance: bool = False, gpu_copy: bool = False) -> None:
        self.dedup = dedup
        self.balance = balance
        self.gpu_copy = gpu_copy

    @property
    def copy_method(self) -> CopyMethod:
        """The mover that loads and backups go by."""
        return _copy_method(self.gpu_copy)

    def may_hold(self, prefix_group: int | None, awaited_tokens: int) -> bool:
        """Whether those whose prompts begin with this block may be held for so many tokens."""
        return self.dedup


class LiveFlags:
    """The same, as a sidecar says at this moment; OFF once it no longer does."""

    def __init__(self, client: FlagClient) -> None:
        self._client = client

    @property
    def dedup(self) -> bool:
        """Whether anybody may be held."""
        return self._client.is_on(Policy.DEDUP) or self._client.is_split(Policy.DEDUP)

    @property
    def balance(self) -> bool:
        """Whether batches are Strata's."""
        return self._client.is_on(Policy.BALANCE)

    @property
    def copy_method(self) -> CopyMethod:
        """The mover that loads and backups go by."""
        return _copy_method(self._client.is_on(Policy.GPU_COPY))

    def may_hold(self, prefix_group: int | None, awaited_tokens: int) -> bool:
        """Whether those whose prompts begin with this block may be held for so many tokens."""
        cell = told_cell(Target.INFLIGHT_READY, inflight_cell("batch", awaited_tokens))
        return self._client.treats(Policy.DEDUP, prefix_group, cell)


def _copy_method(gathers: bool) -> CopyMethod:
    return CopyMethod.GATHER if gathers else CopyMethod.DMA_PER_PAGE


def parse_flags(texts: list[str]) -> Flags:
    """From `POLICY=on|off`. Raises `SettingsError` that names the form."""
    flags = Flags()
    for text in texts:
        name, _, value = text.partition("=")
        if name not in vars(flags) or value not in ON_OFF:
            raise SettingsError(
                f"{text!r} is no policy's switch; write one of "
                f"{', '.join(f'{policy}=on' for policy in vars(flags))}, or =off"
            )
        setattr(flags, name, ON_OFF[value])
    return flags
