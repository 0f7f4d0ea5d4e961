"""When will a LoRA adapter be ready in HBM? Asked of a running kvready, or of a recording.

    python examples/lora_readiness.py --url http://127.0.0.1:8430
    python examples/lora_readiness.py --recording examples/recordings/vllm-0.32-cpu-kv-heavy.kvr

An adapter of rank r adds two thin matrices to each adapted one, so that it moves as
`2 * modules * layers` pieces of `rank * hidden` numbers. It takes the path that KV takes; that no
adapter was ever seen to end its load shows in the width of the range.
"""

from __future__ import annotations

import argparse
import json
import os
import urllib.request
from pathlib import Path
from typing import Any

BYTES_PER_NUMBER = 2  # bf16


def question(arguments: argparse.Namespace) -> dict[str, Any]:
    """The adapter as a candidate of the readiness contract."""
    fragments = 2 * arguments.modules * arguments.layers
    size = fragments * arguments.rank * arguments.hidden * BYTES_PER_NUMBER
    resource = {
        "kind": "lora_adapter",
        "payload_bytes": {arguments.tier: size},
        "fragments": fragments,
    }
    candidate = {"id": "adapter", "resource": resource}
    if arguments.within_seconds is not None:
        candidate["deadline_seconds"] = arguments.within_seconds
    return {"candidates": [candidate]}


def over_http(url: str, asked: dict[str, Any]) -> dict[str, Any]:
    """The answer of a running sidecar, or of anything that speaks the contract."""
    headers = {"content-type": "application/json"}
    if os.environ.get("READINESS_TOKEN"):
        headers["authorization"] = f"Bearer {os.environ['READINESS_TOKEN']}"
    call = urllib.request.Request(
        f"{url.rstrip('/')}/v1/readiness", json.dumps(asked).encode(), headers
    )
    with urllib.request.urlopen(call, timeout=10.0) as response:
        answer: dict[str, Any] = json.load(response)["answers"][0]
    return answer


def in_process(recording: Path, asked: dict[str, Any]) -> dict[str, Any]:
    """The answer at the end of a recording."""
    import msgspec

    from kvready.advisor.contract import Question
    from kvready.advisor.playback import play

    pipeline = play(recording).pipeline
    answers = pipeline.readiness.ask(msgspec.convert(asked, Question), pipeline.moment)
    answer: dict[str, Any] = msgspec.to_builtins(answers.answers[0])
    return answer


def described(asked: dict[str, Any], answer: dict[str, Any]) -> str:
    """The answer in words, with all that a reader must know to judge it."""
    resource = asked["candidates"][0]["resource"]
    ((tier, size),) = resource["payload_bytes"].items()
    lines = [f"adapter: {size / 2**20:.1f} MiB in {resource['fragments']} pieces, in {tier}"]
    ready = answer["ready_seconds"]
    if ready is None:
        return "\n".join([*lines, f"ready: cannot be said ({answer['reason']})"])
    low, middle, high = (ready[bound] * 1e3 for bound in ("low", "p50", "high"))
    share = f"{answer['nominal_coverage']:.0%}"
    lines.append(f"ready: in {middle:.1f} ms; {share} interval {low:.1f} to {high:.1f} ms")
    lines.append(f"decision: {answer['decision']} ({answer['reason']})")
    if answer["in_time"]:
        seconds = asked["candidates"][0]["deadline_seconds"]
        lines.append(f"within {seconds:g} s: {answer['in_time']}")
    basis = "a link profile" if answer["calibration_id"] else "this engine's loads of KV, if any"
    lines.append(
        f"evidence: {answer['evidence']}; by {basis}: no adapter was seen to end its load here"
    )
    return "\n".join(lines)


def main() -> None:
    """Ask and print."""
    parser = argparse.ArgumentParser(description="When will a LoRA adapter be ready in HBM?")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--url", help="a running kvready")
    source.add_argument("--recording", type=Path, help="a recording to ask at its end")
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--hidden", type=int, default=4096)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--modules", type=int, default=4, help="adapted matrices per layer")
    parser.add_argument("--tier", choices=("hbm", "host", "disk", "remote"), default="host")
    parser.add_argument("--within-seconds", type=float, help="a deadline to judge")
    arguments = parser.parse_args()
    asked = question(arguments)
    answer = (
        over_http(arguments.url, asked) if arguments.url else in_process(arguments.recording, asked)
    )
    print(described(asked, answer))


if __name__ == "__main__":
    main()
