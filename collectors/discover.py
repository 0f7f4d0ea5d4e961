"""What an engine tells about itself over HTTP, and which taps that leaves open.

GETs only. What an engine does not answer is unknown, and said so: an older vLLM has no
`/kv_event_sources`, so whether it publishes KV events cannot be told from outside.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from kvready.collectors.http_get import Answer, engine_url, get
from kvready.collectors.metrics_page import read_page
from kvready.collectors.observer_tap import SOCKET_PATTERN
from kvready.collectors.rank_sources import rank_source
from kvready.collectors.surfaces import RankSource, Surfaces

VLLM_PREFIX = "vllm:"
MAX_RANKS = 64
MAX_TEXT_CHARACTERS = 200

Get = Callable[[str, str], Answer]


def discover(url: str, observer_dir: Path | None = None, ask: Get = get) -> Surfaces:
    """Ask an engine what it is. Raises TapError only where `url` is no address at all."""
    url = engine_url(url)
    version_answer = ask(url, "/version")
    metrics = ask(url, "/metrics")
    health = ask(url, "/health")
    version = _text(_json(version_answer), "version")
    page = None
    page_problem = _why_not(metrics, "/metrics")
    if metrics.ok:
        page = read_page(metrics.body.decode("utf-8", "replace"), version)
    is_vllm = page is not None and any(name.startswith(VLLM_PREFIX) for name in page.names)
    if page is not None and not is_vllm:
        page_problem = "/metrics shows no vllm: metric; was it started with --disable-log-stats?"
        page = None
    problem = ""
    if not any(answer.status for answer in (version_answer, metrics, health)):
        problem = (
            f"no engine answers at {url} ({_reason(health)}); check that it runs and that "
            "host and port are those of its HTTP server"
        )
    elif version is None and not is_vllm:
        problem = (
            f"what answers at {url} is not a vLLM server: no /version and no vllm: metric; "
            "name the engine itself, not a gateway before it"
        )
    sources_answer = Answer(0, b"") if problem else ask(url, "/kv_event_sources")
    models_answer = Answer(0, b"") if problem else ask(url, "/v1/models")
    sources = _sources(_json(sources_answer), urlsplit(url).hostname or "")
    folder = _observer_folder(observer_dir, sources)
    return Surfaces(
        url=url,
        problem=problem,
        engine=None if problem else "vllm",
        version=version,
        models=_models(_json(models_answer)) or (page.models if page else ()),
        is_healthy=health.status == 200,
        page=page,
        page_problem="" if page is not None else page_problem,
        tells_sources=isinstance(_json(sources_answer), dict),
        sources=sources,
        observer_dir=str(folder) if folder else None,
        observer_sockets=_sockets(folder),
    )


def _sources(answer: object, host: str) -> tuple[RankSource, ...]:
    if not isinstance(answer, dict):
        return ()
    found = []
    for key, given in list(answer.items())[:MAX_RANKS]:
        if not str(key).isdecimal() or not isinstance(given, dict):
            continue
        endpoint = _text(given, "endpoint")
        # A publisher of its own kind, or none, opens no socket.
        if endpoint is None or given.get("publisher") != "zmq":
            continue
        if given.get("enable_kv_cache_events") is False:
            continue
        found.append(
            rank_source(
                int(key),
                endpoint,
                _text(given, "replay_endpoint"),
                _text(given, "topic") or "",
                host,
            )
        )
    return tuple(sorted(found, key=lambda source: source.rank))


def _observer_folder(given: Path | None, sources: tuple[RankSource, ...]) -> Path | None:
    """The folder to look for the observer in: the given one, else beside the KV events' socket."""
    if given is not None:
        return given
    for source in sources:
        if source.configured.startswith("ipc://"):
            beside = Path(source.configured.removeprefix("ipc://")).parent
            if _sockets(beside):
                return beside
    return None


def _sockets(folder: Path | None) -> tuple[str, ...]:
    if folder is None or not folder.is_dir():
        return ()
    return tuple(sorted(path.name for path in folder.glob(SOCKET_PATTERN)))


def _models(answer: object) -> tuple[str, ...]:
    listed = answer.get("data") if isinstance(answer, dict) else None
    if not isinstance(listed, list):
        return ()
    names = (_text(model, "id") for model in listed[:MAX_RANKS])
    return tuple(name for name in names if name)


def _json(answer: Answer) -> object:
    if not answer.ok:
        return None
    try:
        return json.loads(answer.body)
    except ValueError:
        return None


def _text(value: Any, key: str) -> str | None:
    found = value.get(key) if isinstance(value, dict) else None
    return found[:MAX_TEXT_CHARACTERS] if isinstance(found, str) and found else None


def _why_not(answer: Answer, path: str) -> str:
    if answer.ok:
        return ""
    return answer.problem or f"{path} answers {answer.status}"


def _reason(answer: Answer) -> str:
    return answer.problem.rpartition(": ")[2] or f"status {answer.status}"
