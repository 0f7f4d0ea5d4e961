"""Jobs on a Ray cluster, for sweeps that one machine is too small for. Needs the `scale` extra."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Any

from kvready.advisor.version import VERSION
from kvready.advisor.whatif.jobs import Told
from kvready.advisor.whatif.summary import Summary
from kvready.advisor.whatif.sweep import Job, run_job
from kvready.collectors.errors import ServiceError, SettingsError

REACH_SECONDS = 5.0
IN_FLIGHT = 1_000  # jobs that the cluster is given at a time


def run_on_ray(address: str, jobs: Sequence[Job], told: Told) -> list[Summary]:
    """All of them, in order; equal to what one process gives. Raises `ServiceError`."""
    ray = _ray()
    _reach(address)
    try:
        ray.init(address=address, log_to_driver=False, configure_logging=False)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise ServiceError(f"cannot reach the Ray cluster at {address}: {error}") from error
    try:
        return _all(ray, ray.remote(max_retries=1)(_run), jobs, told)
    except ray.exceptions.RayTaskError as error:
        cause = error.cause
        if isinstance(cause, ServiceError | SettingsError):
            raise cause from error
        raise
    finally:
        ray.shutdown()


def _reach(address: str) -> None:
    """Raise `ServiceError` at once for what Ray itself would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not port.isdecimal():
        return  # `local`, `auto`
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=REACH_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise ServiceError(
            f"no Ray cluster answers at {address} ({error}); start one with `ray start --head`, or "
            "say --ray local"
        ) from error


def _all(ray: Any, remote: Any, jobs: Sequence[Job], told: Told) -> list[Summary]:
    results: list[Summary | None] = [None] * len(jobs)
    waiting = iter(enumerate(jobs))
    places: dict[Any, int] = {}
    done = 0
    while True:
        while len(places) < IN_FLIGHT and (following := next(waiting, None)) is not None:
            place, job = following
            places[remote.remote(job, VERSION)] = place
        if not places:
            return [one for one in results if one is not None]
        ready, _ = ray.wait(list(places), num_returns=1)
        for one in ready:
            results[places.pop(one)] = ray.get(one)
            done += 1
            told(done)


def _run(job: Job, version: str) -> Summary:
    if version != VERSION:
        raise ServiceError(
            f"a Ray node has kvready {VERSION}, this machine {version}: install the same one"
        )
    return run_job(job)


def _ray() -> Any:
    try:
        import ray
    except ModuleNotFoundError as error:
        raise ServiceError(
            f"{error.name} is not installed, which --ray needs: pip install 'kvready[scale]'"
        ) from error
    return ray
