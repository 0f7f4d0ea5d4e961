"""Which end of a socket is ours, and whether an address can ever deliver.

vLLM binds its KV-event socket only to a wildcard, ipc or inproc address and *connects* to any
other, so that the subscriber must bind there. A replay address is always bound by the engine.
"""

from __future__ import annotations

from typing import NamedTuple

from kvready.collectors.errors import TapError

MAX_IPC_PATH_BYTES = 107  # sun_path less its terminating zero
MAX_PORT = 65_535
LOOPBACK = "127.0.0.1"
WILDCARDS = ("*", "[::]", "::")


class Endpoint(NamedTuple):
    """An address as we use it: bound by us or connected to."""

    address: str
    we_bind: bool


def live_endpoint(address: str, *, engine_binds: bool | None = None) -> Endpoint:
    """Our end of a KV-event socket configured in the engine as `address`.

    `engine_binds` overrides vLLM's rule, for an engine that binds a plain host address.
    Raises TapError for an address that can never deliver.
    """
    scheme, rest = _split(address)
    if scheme == "ipc":
        return Endpoint(_ipc(rest), we_bind=engine_binds is False)
    host, port = _host_and_port(address, rest)
    if engine_binds is None:
        if host == "0.0.0.0":
            raise TapError(
                f"{address}: vLLM connects to this address instead of binding it; give the engine "
                f"tcp://*:{port} (it binds) or tcp://{LOOPBACK}:{port} (we bind)"
            )
        engine_binds = host in WILDCARDS or "::" in host
    if not engine_binds:
        return Endpoint(f"tcp://{host}:{port}", we_bind=True)
    return Endpoint(f"tcp://{_reachable(host)}:{port}", we_bind=False)


def replay_endpoint(address: str) -> Endpoint:
    """Our end of a replay socket, which the engine always binds. Raises TapError as above."""
    scheme, rest = _split(address)
    if scheme == "ipc":
        return Endpoint(_ipc(rest), we_bind=False)
    host, port = _host_and_port(address, rest)
    return Endpoint(f"tcp://{_reachable(host)}:{port}", we_bind=False)


def of_rank(address: str, rank: int) -> str:
    """The address on which a data-parallel rank publishes, where rank 0 was given `address`.

    Raises TapError where vLLM itself gives that rank no address.
    """
    scheme, rest = _split(address)
    if rank == 0:
        return address
    if scheme == "ipc":
        raise TapError(
            f"{address}: vLLM refuses an ipc endpoint for ranks above 0; give the engine a tcp "
            "endpoint and keep the network from it, or name each rank's endpoint yourself"
        )
    host, port = _host_and_port(address, rest)
    if port + rank > MAX_PORT:
        raise TapError(f"{address}: rank {rank} would be past port {MAX_PORT}; use lower ports")
    return f"tcp://{host}:{port + rank}"


def bracketed(host: str) -> str:
    """A host as addresses spell it: IPv6 in brackets."""
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def _split(address: str) -> tuple[str, str]:
    scheme, separator, rest = address.partition("://")
    if not separator or scheme not in ("ipc", "tcp") or not rest:
        raise TapError(
            f"{address!r} is no address another process can reach; use ipc:///path/to.sock or "
            "tcp://host:port"
        )
    return scheme, rest


def _ipc(path: str) -> str:
    size = len(path.encode())
    if size > MAX_IPC_PATH_BYTES:
        raise TapError(
            f"ipc path of {size} bytes is too long ({MAX_IPC_PATH_BYTES} at most); "
            f"put the socket in a shorter directory: {path}"
        )
    return f"ipc://{path}"


def _host_and_port(address: str, rest: str) -> tuple[str, int]:
    host, _, port = rest.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) <= MAX_PORT:
        raise TapError(
            f"{address}: no usable port; give tcp://host:port with a port from 1 to 65535 "
            "(where the engine picks it, read it from the engine's /kv_event_sources)"
        )
    return host, int(port)


def _reachable(host: str) -> str:
    return LOOPBACK if host in WILDCARDS or host == "0.0.0.0" else host
