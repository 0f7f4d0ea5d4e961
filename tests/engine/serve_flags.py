"""A sidecar's flags in a process of its own, to be killed, frozen and told to misbehave.

Prints its URL; reads lines of JSON, `{"on": {"dedup": true}}` or `{"behave": WORD}`, and prints a
line once each of them is done.
"""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))

from flag_server import FlagServer

FLAP_SECONDS = 0.1
BYTE_SECONDS = 0.05  # between two bytes of a slow answer


def lies(server: FlagServer) -> bytes:
    """Another answer under the revision that was told before, for a lease without an end."""
    body = json.dumps({"flags": [{"key": "dedup", "value": True, "metadata": {"split_seed": 7}}]})
    return server.message(200, body.encode() * 2, Kvready_Lease_Seconds="inf")


def main() -> None:
    server = FlagServer()
    server.on = {}
    print(server.url, flush=True)
    flapping = threading.Event()

    def flap() -> None:
        while not flapping.wait(FLAP_SECONDS):
            server.on = {"dedup": not server.on.get("dedup", False), "balance": True}
            server.revision += 1

    for line in sys.stdin:
        told = json.loads(line)
        flapping.set()
        if "on" in told:
            server.on = told["on"]
            server.revision += 1
        word = told.get("behave", "well")
        server.byte_seconds = BYTE_SECONDS if word == "slow" else 0.0
        server.behave = (lambda _: lies(server)) if word == "lie" else server.answer
        if word == "flap":
            flapping.clear()
            threading.Thread(target=flap, daemon=True).start()
        print("done", flush=True)
    server.end()


if __name__ == "__main__":
    main()
