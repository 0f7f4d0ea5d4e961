"""The flags that commands share, one per setting, and the settings that they lead to."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kvready.advisor.settings import EffectiveSettings, flag_name, load_settings

Config = Annotated[
    Path | None, typer.Option("--config", help="TOML file with settings; flags override it.")
]
KvEvents = Annotated[
    list[str] | None,
    typer.Option("--kv-events", help="Endpoint of KV events, once per rank.", metavar="ENDPOINT"),
]
Replay = Annotated[
    list[str] | None,
    typer.Option(
        "--replay",
        help="Replay endpoint, once per rank, in the order of --kv-events.",
        metavar="ENDPOINT",
    ),
]
ObserverDir = Annotated[
    Path | None, typer.Option("--observer-dir", help="Directory of the observer's sockets.")
]
ContentKeys = Annotated[
    bool | None,
    typer.Option("--content-keys/--no-content-keys", help="Hash each block's tokens on arrival."),
]
Publisher = Annotated[
    str | None, typer.Option("--publisher", help="Name that this engine's blocks get.")
]
SilenceSeconds = Annotated[
    float | None,
    typer.Option("--silence-seconds", help="A tap that delivered nothing for so long is silent."),
]
Host = Annotated[str | None, typer.Option("--host", help="Address to listen on.")]
Port = Annotated[int | None, typer.Option("--port", help="Port to listen on.")]
RecordingPath = Annotated[
    Path | None, typer.Option("--recording", help="File that gets every record.")
]
Dedup = Annotated[
    str | None, typer.Option("--dedup", help="Mode of the dedup policy.", metavar="MODE")
]
Balance = Annotated[
    str | None, typer.Option("--balance", help="Mode of the balance policy.", metavar="MODE")
]
GpuCopy = Annotated[
    str | None, typer.Option("--gpu-copy", help="Mode of the gpu_copy policy.", metavar="MODE")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]


def effective(config: Path | None, **given: object) -> EffectiveSettings:
    """Settings from all layers; `given` are flags by the setting's dotted name, `.` as `__`."""
    flags = {name.replace("__", "."): value or None for name, value in given.items()}
    # A switch that is off was given all the same.
    flags |= {
        name.replace("__", "."): value for name, value in given.items() if isinstance(value, bool)
    }
    return load_settings(config, flags)


def flags_of_settings(names: tuple[str, ...]) -> list[str]:
    """The flag of each setting."""
    return [f"--{flag_name(name)}" for name in names]
