"""Names of hosts that nobody knows, found out before ZeroMQ tries them for ever."""

from __future__ import annotations

import re
import socket

from kvready.collectors.endpoint import WILDCARDS

NUMERIC_HOST = re.compile(r"[0-9.]+|[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*(?:%\w+)?")


def unresolvable(address: str) -> str | None:
    """The host in an address that names no machine, if so; numbers are not looked up."""
    scheme, _, rest = address.partition("://")
    host = rest.rpartition(":")[0].strip("[]")
    if scheme != "tcp" or host in WILDCARDS or NUMERIC_HOST.fullmatch(host):
        return None
    try:
        socket.getaddrinfo(host, None)
    except socket.gaierror as error:
        return host if error.errno == socket.EAI_NONAME else None
    except UnicodeError:
        return host
    return None
