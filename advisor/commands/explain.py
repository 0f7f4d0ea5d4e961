"""`explain`: the story of one request, one batch or one verdict, from a recording or a sidecar."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from kvready.advisor.commands.gate import From, latest_reports, print_reports, served_reports
from kvready.advisor.commands.options import AsJson
from kvready.advisor.commands.policy import URL, Token, Url
from kvready.advisor.commands.policy_client import PolicyClient
from kvready.advisor.compute import ComputePrior
from kvready.advisor.evidence_bundle import is_bundle
from kvready.advisor.explanation import BatchTeller, RequestTeller, tell
from kvready.advisor.explanation_text import batch_lines, pair_line, request_lines
from kvready.advisor.ledger import Pair
from kvready.advisor.load_priors import LoadPriors
from kvready.advisor.pipeline import Pipeline
from kvready.advisor.playback import play
from kvready.advisor.policies import ORDER
from kvready.advisor.verdicts import GateReport
from kvready.collectors.errors import RecordingError, ServiceError
from kvready.collectors.recording import read_recording
from kvready.collectors.service_targets import NO_TARGETS

MAX_REPORTS = 100  # that a sidecar is asked for, of each policy
MAX_PAIRS = 1_000
VERDICT = re.compile(r"(?:verdict:)?([0-9a-f]{32})")
BATCH = re.compile(r"(?:batch:)?(?:([0-9]{1,4}):)?([0-9]{1,12})")
REQUEST = "request:"


def explain(
    what: Annotated[
        str,
        typer.Argument(
            metavar="REQUEST|BATCH|VERDICT",
            help="A request's id, a batch's number (RANK:STEP beyond rank 0) or a report's id; "
            "request:, batch: or verdict: before it where that is not plain.",
        ),
    ],
    source: From = None,
    url: Url = URL,
    token_file: Token = None,
    as_json: AsJson = False,
) -> None:
    """Tell what happened, what was foreseen, and what Strata would have done, or why a verdict is.

    A recording tells all of it; a sidecar keeps verdicts and the latest forecasts alone.
    """
    if verdict := VERDICT.fullmatch(what):
        print_reports([_verdict(verdict[1], source, url, token_file)], as_json)
        return
    if source is None:
        _ask(what, PolicyClient(url, token_file), as_json)
        return
    if is_bundle(source):
        raise RecordingError(f"{source} is a bundle: it explains its verdicts, by their ids")
    batch = BATCH.fullmatch(what)
    if batch is not None:
        told = _batch(int(batch[2]), int(batch[1] or 0), source)
    else:
        told = _request(what.removeprefix(REQUEST), source)
    body, lines = told
    typer.echo(body if as_json else "\n".join(lines))


def _verdict(report_id: str, source: Path | None, url: str, token_file: Path | None) -> GateReport:
    found: list[GateReport] = []
    if source is None:
        client = PolicyClient(url, token_file)
        found = [one for p in ORDER for one in served_reports(client, p, MAX_REPORTS)]
    elif is_bundle(source):
        found = latest_reports(source, url, token_file)
    else:

        def heard(report: GateReport) -> None:
            if report.report_id == report_id:
                found.append(report)

        play(source, on_report=heard)
    for one in found:
        if one.report_id == report_id:
            return one
    raise RecordingError(
        f"no verdict {report_id} here; `kvready gate report` lists the latest ones"
    )


def _request(request_id: str, source: Path) -> tuple[bytes, list[str]]:
    told = _told(source, lambda pipeline: RequestTeller(pipeline, request_id))
    assert isinstance(told, RequestTeller)
    story = told.story
    if story is None:
        raise RecordingError(
            f"no request {request_id!r} arrived in {source}; ids are the engine's own, or the new "
            "ones of a shared recording"
        )
    return msgspec.json.encode(story), request_lines(story)


def _batch(step: int, rank: int, source: Path) -> tuple[bytes, list[str]]:
    told = _told(source, lambda pipeline: BatchTeller(pipeline, step, rank))
    assert isinstance(told, BatchTeller)
    story = told.story
    if story is None:
        raise RecordingError(f"no batch {step} of rank {rank} was planned in {source}")
    return msgspec.json.encode(story), batch_lines(story)


def _told(
    source: Path, make: Callable[[Pipeline], RequestTeller | BatchTeller]
) -> RequestTeller | BatchTeller:
    recording = read_recording(source)
    header = recording.header
    heard: list[RequestTeller | BatchTeller] = []

    def settled(pair: Pair) -> None:
        heard[0].pair(pair)

    pipeline = Pipeline(
        settled,
        LoadPriors.of_told(header.load_start),
        compute_prior=ComputePrior.of_told(header.compute_start),
        targets=header.targets or NO_TARGETS,
    )
    heard.append(make(pipeline))
    tell(heard[0], recording)
    return heard[0]


def _ask(what: str, client: PolicyClient, as_json: bool) -> None:
    """What a sidecar still knows: the latest forecasts of a request or a batch."""
    subject = what.removeprefix(REQUEST).removeprefix("batch:")
    pairs = [one for one in client.get("/v1/pairs", limit=MAX_PAIRS) if one["subject"] == subject]
    if not pairs:
        raise ServiceError(
            f"none of the latest {MAX_PAIRS:,} forecasts is of {subject!r}; play a recording with "
            "--from to look further back"
        )
    if as_json:
        typer.echo(msgspec.json.encode(pairs))
        return
    lines = [
        pair_line(p["target"], p["p50_seconds"], p["low_seconds"], p["high_seconds"],
                  p["actual_seconds"], p["covered"])
        for p in reversed(pairs)
    ]  # fmt: skip
    lines.append("where its wait went, and what Strata would have done, tells a recording: --from")
    typer.echo("\n".join(lines))
