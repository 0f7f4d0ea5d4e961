"""What a process did to the world, read from a trace of its system calls."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

# What can carry bytes out of a process, or act on another one.
TRACED = (
    "trace=%network,write,writev,pwrite64,pwritev,pwritev2,sendfile,splice,tee,vmsplice,"
    "copy_file_range,openat,open,creat,unlink,unlinkat,rename,renameat2,kill,tkill,tgkill,"
    "pidfd_send_signal,ptrace,process_vm_writev,memfd_create"
)
STRACE = ("strace", "-f", "-q", "-D", "-yy", "-x", "-s", "65536", "-e", TRACED, "-o")

_CALL = re.compile(r"^(?P<pid>\d+) +(?P<name>\w+)\((?P<rest>.*)$")
_SOCKET = re.compile(r"^\d+<(?P<kind>[\w-]+):\[(?P<inode>[^\]]*)\]>")
_PATH = re.compile(r'sun_path=(?P<at>@?)"(?P<path>[^"]*)"')
_ADDRESS = re.compile(r'inet_addr\("(?P<address>[^"]+)"\)')
_PORT = re.compile(r"sin6?_port=htons\((?P<port>\d+)\)")
_STRING = re.compile(r'"(?P<text>(?:[^"\\]|\\.)*)"(?P<cut>\.\.\.)?')
_WRITING = re.compile(r"O_WRONLY|O_RDWR|O_CREAT|O_TRUNC|O_APPEND")


@dataclass
class Connection:
    """A stream to a socket of another process, and all bytes that went out on it."""

    path: str
    sent: bytearray = field(default_factory=bytearray)


@dataclass
class Trace:
    """What left the process, by destination."""

    connections: list[Connection] = field(default_factory=list)
    addresses_connected: list[Connection] = field(default_factory=list)  # path is host:port
    addresses_listened: list[str] = field(default_factory=list)
    sent_to_addresses: list[str] = field(default_factory=list)
    written_files: set[str] = field(default_factory=set)
    acts_on_processes: list[str] = field(default_factory=list)
    cut_strings: int = 0
    calls: int = 0


SENDING = frozenset({"sendto", "sendmsg", "sendmmsg", "write", "writev", "sendfile", "splice"})
ON_PROCESSES = frozenset(
    {"kill", "tkill", "tgkill", "pidfd_send_signal", "ptrace", "process_vm_writev"}
)


def read_trace(file: Path) -> Trace:
    """Everything that matters of a trace by `STRACE`."""
    trace = Trace()
    by_inode: dict[str, Connection] = {}
    for line in file.read_text(encoding="utf-8").splitlines():
        call = _CALL.match(line)
        if call is None:
            continue
        trace.calls += 1
        _account(trace, by_inode, call["name"], call["rest"])
    return trace


def _account(trace: Trace, by_inode: dict[str, Connection], name: str, rest: str) -> None:
    socket = _SOCKET.match(rest)
    inode, _, peer = socket["inode"].partition("->") if socket else ("", "", "")
    if peer and inode not in by_inode:
        _settle_address(trace, by_inode, inode, peer)
    if name == "connect":
        path, address, port = _PATH.search(rest), _ADDRESS.search(rest), _PORT.search(rest)
        if path is not None:
            by_inode[inode] = Connection(path["at"] + path["path"])
            trace.connections.append(by_inode[inode])
        else:
            named = f"{address['address']}:{port['port']}" if address and port else rest
            by_inode[inode] = Connection(named)
            trace.addresses_connected.append(by_inode[inode])
    elif name == "bind":
        address = _ADDRESS.search(rest)
        trace.addresses_listened.append(address["address"] if address else rest)
    elif name in SENDING and inode in by_inode:
        by_inode[inode].sent += _bytes(trace, rest)
    elif name == "sendto" and socket is None:
        trace.sent_to_addresses.append(rest)
    elif name in ON_PROCESSES:
        trace.acts_on_processes.append(f"{name}({rest}")
    elif name in ("open", "openat", "creat") and (_WRITING.search(rest) or name == "creat"):
        text = _STRING.search(rest)
        trace.written_files.add(text["text"] if text else rest)
    elif name in ("unlink", "unlinkat", "rename", "renameat2"):
        trace.written_files.add(rest)


def _settle_address(trace: Trace, by_inode: dict[str, Connection], local: str, peer: str) -> None:
    """A connected socket is named by its two addresses from now on, no more by its number.

    Answers to our own clients are named so too; no connection of ours leads to their ports.
    """
    for connection in trace.addresses_connected:
        if connection.path == peer and not any(one is connection for one in _settled(by_inode)):
            by_inode[local] = connection
            return


def _settled(by_inode: dict[str, Connection]) -> list[Connection]:
    """Connections whose socket is known by its address."""
    return [connection for name, connection in by_inode.items() if ":" in name]


def _bytes(trace: Trace, rest: str) -> bytes:
    """The bytes of a call's buffers. strace escapes as C does, which Python reads as it is."""
    sent = b""
    for text in _STRING.finditer(rest):
        trace.cut_strings += text["cut"] is not None
        sent += text["text"].encode("latin-1").decode("unicode_escape").encode("latin-1")
    return sent
