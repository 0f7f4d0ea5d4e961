"""The flags of `kvready whatif`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from kvready.advisor.whatif.jobs import MAX_JOBS
from kvready.advisor.whatif.machines import PUBLISHED_MACHINES
from kvready.advisor.whatif.questions import Initial, Order
from kvready.advisor.whatif.shapes import ShapeName
from kvready.advisor.whatif.summary import CountedFrom
from kvready.collectors.names import OverlapMode

MAX_SEEDS = 100


class SuiteName(StrEnum):
    """A paper that the simulator is held against."""

    STRATA = "strata"


Suite = Annotated[
    SuiteName | None,
    typer.Option(
        "--suite",
        help="Hold the simulator against a paper, claim by claim; takes minutes, wants --jobs.",
    ),
]

Trace = Annotated[
    Path | None, typer.Argument(help="A trace or a recording to replay.", metavar="[TRACE]")
]
Workload = Annotated[
    ShapeName | None,
    typer.Option("--workload", help="A published shape of requests, drawn, in place of a trace."),
]
Requests = Annotated[int, typer.Option("--requests", help="So many requests; 0: all.", min=0)]
Ordered = Annotated[
    Order, typer.Option("--order", help="How far apart a document's questions come.")
]
Initially = Annotated[
    Initial, typer.Option("--initial", help="What host memory holds at the start.")
]
Rate = Annotated[
    str,
    typer.Option("--rate", help="Requests per second; several with commas, for curves."),
]
Model = Annotated[str, typer.Option("--model", help="A preset, or a config.json.")]
TensorParallel = Annotated[
    int, typer.Option("--tensor-parallel", help="GPUs that share the model.", min=1)
]
Machine = Annotated[
    str | None,
    typer.Option(
        "--machine",
        help=f"{' or '.join(PUBLISHED_MACHINES)}, links as published; {PUBLISHED_MACHINES[0]} "
        "if nothing is named.",
    ),
]
Profile = Annotated[
    str | None,
    typer.Option(
        "--profile",
        help="Link profile in place of a machine's, as `kvready calibrate` writes it, or "
        "published:NAME; needs --gpu and --host-gib.",
        metavar="FILE",
    ),
]
Gpu = Annotated[
    str | None, typer.Option("--gpu", help="GPU whose data sheet counts beside --profile.")
]
HbmGib = Annotated[
    float | None,
    typer.Option("--hbm-gib", help="HBM for KV on each GPU; else what weights leave.", min=0),
]
HostGib = Annotated[
    float | None,
    typer.Option("--host-gib", help="Host memory for KV, of all GPUs together.", min=0),
]
DiskGib = Annotated[
    float, typer.Option("--disk-gib", help="Disk for KV, of all GPUs together.", min=0)
]
Compare = Annotated[
    str,
    typer.Option(
        "--compare",
        help="Policies, with commas; ratios are to the first. +dedup, +balance and +decode-fill "
        "may be added to any.",
        metavar="A,B,...",
    ),
]
TtftTarget = Annotated[
    float,
    typer.Option("--ttft-target", help="Seconds to the first token of a good request.", min=0),
]
TpsTarget = Annotated[
    float | None,
    typer.Option("--tps-target", help="Tokens per second that a good request gets.", min=0),
]
TtftFrom = Annotated[
    CountedFrom, typer.Option("--ttft-from", help="Where a time to first token begins.")
]
Page = Annotated[int, typer.Option("--page", help="Tokens in a page.", min=1)]
Overlap = Annotated[
    OverlapMode, typer.Option("--overlap", help="How the engine overlaps loads with compute.")
]
InFlight = Annotated[
    int, typer.Option("--in-flight", help="Requests let in at a time; 0: all.", min=0)
]
Seeds = Annotated[
    int,
    typer.Option("--seeds", help="Draws; intervals need several.", min=1, max=MAX_SEEDS),
]
Jobs = Annotated[int, typer.Option("--jobs", help="Processes to run on.", min=1, max=MAX_JOBS)]
Ray = Annotated[
    str | None,
    typer.Option("--ray", help="Ray cluster to run on, or `local`.", metavar="ADDRESS"),
]
Plot = Annotated[
    Path | None, typer.Option("--plot", help="Draw the curves into this .svg or .png.")
]
Html = Annotated[Path | None, typer.Option("--html", help="Write a report as one HTML file.")]
