"""Commands that read recordings: `replay`, `report`, `share` and `demo`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn

from kvready.advisor.commands import options
from kvready.advisor.ledger import Pair, PairState
from kvready.advisor.playback import PROGRESS_RECORDS, Playback, play
from kvready.advisor.report import Report, build_report
from kvready.advisor.report_text import print_report
from kvready.advisor.service import runner
from kvready.advisor.service.sidecar import Replayed, Sidecar
from kvready.advisor.service.tally import PairTally
from kvready.collectors.errors import RecordingError, SettingsError
from kvready.collectors.recording import Provenance, RecordingWriter, read_recording
from kvready.collectors.records import Ingested
from kvready.collectors.salting import Salter
from kvready.collectors.slicing import Slice, slice_of

FOUND = 1
BUNDLED = Path("examples/recordings/vllm-0.32-cpu-kv-heavy.kvr")
EVIDENCE = {Provenance.REAL: "measured", Provenance.SIMULATED: "simulated"}

File = Annotated[Path, typer.Argument(help="A recording (.kvr).")]


class Summary(msgspec.Struct, frozen=True):
    """What `replay` prints."""

    recording: str
    provenance: Provenance
    records: int
    pairs: int
    scored: int  # of those; the others came late, were cut off or were pushed out
    digest: str
    damage: str | None


def replay(
    file: File,
    pairs: Annotated[
        Path | None, typer.Option("--pairs", help="Write each pair to this file, a line each.")
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Play FILE through the whole pipeline; the digest is equal exactly when all pairs are."""
    with ExitStack() as stack:
        played = _play(file, _keeper(stack, pairs) if pairs else None)
    summary = Summary(
        recording=file.name,
        provenance=played.header.provenance,
        records=played.records,
        pairs=played.pairs,
        scored=sum(
            count
            for (_, state), count in played.pipeline.ledger.counts.items()
            if state is PairState.PAIRED
        ),
        digest=played.digest,
        damage=played.damage,
    )
    if as_json:
        typer.echo(msgspec.json.encode(summary))
    else:
        typer.echo(
            f"{summary.records} records, {summary.pairs} pairs ({summary.provenance}), of which "
            f"{summary.scored} are scored and {summary.pairs - summary.scored} are not\n"
            f"digest {summary.digest}"
        )
    _exit_by(played)


def report(file: File, as_json: options.AsJson = False) -> None:
    """Play FILE and print what was predicted, what happened, and where the wait went."""
    played = _play(file)
    _print(_report(file, played), as_json)
    _exit_by(played)


def share(
    file: File,
    out: Annotated[Path, typer.Argument(help="New recording; never overwritten.")],
    condition: Annotated[
        list[str] | None,
        typer.Option("--condition", help="What a reader must know, NAME=VALUE; repeatable."),
    ] = None,
    part: Annotated[
        str | None,
        typer.Option(
            "--slice",
            help="Copy SECONDS from START on, and what the caches held before.",
            metavar="START:SECONDS",
        ),
    ] = None,
) -> None:
    """Copy FILE to OUT with hashes, ids, tenants and classes replaced and wall clocks set back.

    What stays: timing, sizes, token counts, the names of taps, what the engine is and where its
    loads start from.
    """
    source = read_recording(file)
    salter = Salter()
    cut = part_of(part) if part is not None else None
    header = msgspec.structs.replace(
        source.header,
        salted=True,
        created_wall_seconds=salter.wall(source.header.created_wall_seconds),
        conditions=source.header.conditions
        | ({"slice": cut.described} if cut is not None else {})
        | _named(condition or []),
    )
    writer = RecordingWriter(out, header)
    try:
        with _progress(file) as on_progress:
            _copy(source if cut is None else cut.of(source), salter, writer, on_progress)
    except BaseException:
        writer.discard()  # half a copy would only take the name
        raise
    typer.echo(
        f"{out}: {writer.written_bytes:,} bytes; hashes, ids, tenants, classes and adapters are "
        "replaced and wall clocks set back; timing, sizes and the engine's description are not"
    )
    if source.damage:
        print(f"warning: {source.damage}; what is left was copied", file=sys.stderr)
        raise typer.Exit(FOUND)


def part_of(text: str) -> Slice:
    """What `--slice` names. Raises `SettingsError`."""
    found = slice_of(text)
    if found is None:
        raise SettingsError(f"--slice {text!r} is no part; write it as START:SECONDS, as in 60:300")
    return found


def _copy(
    source: Iterable[Ingested],
    salter: Salter,
    writer: RecordingWriter,
    on_progress: Callable[[int], None] | None,
) -> None:
    for number, item in enumerate(source):
        salted = msgspec.structs.replace(item, record=salter(item.record))
        with _writing(writer.path):
            if not writer.write(salted):
                raise RecordingError(
                    f"{writer.path} reached its size limit after {number:,} records; "
                    "share a shorter recording"
                )
        if on_progress is not None and number % PROGRESS_RECORDS == 0:
            on_progress(number)
    with _writing(writer.path):
        writer.close()


def _named(pairs: list[str]) -> dict[str, str]:
    named = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise SettingsError(f"--condition {pair!r} has no '='; write it as NAME=VALUE")
        named[name] = value
    return named


def demo(
    file: Annotated[
        Path | None, typer.Argument(help="A recording; else the one in examples/recordings.")
    ] = None,
    serve: Annotated[
        bool, typer.Option("--serve", help="Leave the page and /metrics up until stopped.")
    ] = False,
    port: options.Port = None,
    as_json: options.AsJson = False,
) -> None:
    """Play the bundled recording of a real engine and print its report."""
    file = file or _bundled()
    tally = PairTally()
    played = _play(file, lambda pair, line: tally(pair))
    _print(_report(file, played), as_json)
    if serve:
        _serve(file, played, tally, port)
    _exit_by(played)


def _bundled() -> Path:
    if not BUNDLED.is_file():
        raise RecordingError(
            f"no recording at {BUNDLED}; run this in a clone of kvready, or name a recording"
        )
    return BUNDLED


def _play(file: Path, on_pair: Callable[[Pair, bytes], None] | None = None) -> Playback:
    with _progress(file) as on_progress:
        return play(file, on_pair, on_progress)


@contextmanager
def _progress(file: Path) -> Iterator[Callable[[int], None] | None]:
    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(f"playing {file.name}", total=None)
        yield lambda records: progress.update(
            task, description=f"playing {file.name}: {records:,} records"
        )


def _keeper(stack: ExitStack, path: Path) -> Callable[[Pair, bytes], None]:
    with _writing(path):
        file = path.open("wb")

    def end() -> None:
        with _writing(path):
            file.close()

    stack.callback(end)

    def keep(pair: Pair, line: bytes) -> None:
        with _writing(path):
            file.write(line)

    return keep


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RecordingError(
            f"cannot write {path}: {error.strerror}; free some space, or name a file in another, "
            "writable folder"
        ) from None


def _report(file: Path, played: Playback) -> Report:
    header = played.header
    origin = {"recording": f"{file.name}, {header.provenance}"}
    return build_report(played.pipeline, EVIDENCE[header.provenance], origin | header.conditions)


def _print(report: Report, as_json: bool) -> None:
    if as_json:
        typer.echo(msgspec.json.encode(report))
    else:
        print_report(report, Console())


def _serve(file: Path, played: Playback, tally: PairTally, port: int | None) -> None:
    settings = options.effective(None, api__port=port).settings
    replayed = Replayed(
        recording=file.name,
        evidence=EVIDENCE[played.header.provenance],
        conditions=played.header.conditions,
        damage=played.damage,
    )
    sidecar = Sidecar(settings, played.pipeline, tally, replayed=replayed)
    with runner.listening(settings) as listener:
        sidecar.start()
        try:
            runner.answer(sidecar, listener, lambda text: typer.echo(text, err=True))
        finally:
            sidecar.stop()


def _exit_by(played: Playback) -> None:
    if played.damage:
        print(f"warning: {played.damage}; what is left was used", file=sys.stderr)
        raise typer.Exit(FOUND)
