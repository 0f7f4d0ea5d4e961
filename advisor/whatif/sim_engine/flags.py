"""Which policies a simulated engine obeys, read at each step."""

from __future__ import annotations

from kvready.collectors.errors import SettingsError
from kvready.collectors.names import CopyMethod

ON_OFF = {"on": True, "off": False}


class Flags:
    """The policies' switches. All off unless told otherwise."""

    def __init__(self, dedup: bool = False, balance: bool = False, gpu_copy: bool = False) -> None:
        self.dedup = dedup
        self.balance = balance
        self.gpu_copy = gpu_copy

    @property
    def copy_method(self) -> CopyMethod:
        """The mover that loads and backups go by."""
        return CopyMethod.GATHER if self.gpu_copy else CopyMethod.DMA_PER_PAGE


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
