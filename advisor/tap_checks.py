"""What a doctor finds in what the taps delivered while it watched."""

from __future__ import annotations

from collections.abc import Iterator

from kvready.advisor.counter_change import increment
from kvready.advisor.diagnosis import Evidence, Finding, Severity, TapEvidence
from kvready.collectors.records import TapEvent, TapState, Tier

SELF_DESCRIBING = (
    '"self_describing_kv_events": true in kv_connector_extra_config of --kv-transfer-config'
)


def tap_findings(evidence: Evidence, busy_ranks: frozenset[int]) -> Iterator[Finding]:
    """All of them. Ranks that are busy did enough for a silent tap to mean something."""
    for tap in evidence.kv_taps + evidence.observer_taps:
        if tap.coverage is None:
            yield _cannot_open(tap)
            continue
        if tap.coverage.state is TapState.CLOSED:
            # An observer shows itself by its first message, which an idle engine does not send.
            if tap not in evidence.observer_taps or tap.rank in busy_ranks:
                yield _closed(tap)
            continue
        if tap.rank in busy_ranks and not tap.coverage.messages:
            yield _silent(tap, evidence)
        yield from _losses(tap)
    yield from _missing_tier(evidence)
    yield from _placeholders(evidence)


def _cannot_open(tap: TapEvidence) -> Finding:
    return Finding(
        "tap-cannot-open",
        Severity.CRITICAL,
        f"{tap.tap} of rank {tap.rank} cannot be opened",
        tap.problem,
        "nothing is seen of it",
        "where another kvready is attached, stop it or ask its /v1/status instead; else give the "
        "engine an ipc:// endpoint",
    )


def _closed(tap: TapEvidence) -> Finding:
    return Finding(
        "tap-closed",
        Severity.CRITICAL,
        f"nobody publishes where {tap.tap} of rank {tap.rank} listens",
        f"no publisher answered at {tap.address}",
        "nothing is seen of it",
        "check host, port (base port plus rank) or path against the engine's own setting; a "
        "container must share the socket's folder with the engine",
    )


def _silent(tap: TapEvidence, evidence: Evidence) -> Finding:
    return Finding(
        "silent-tap",
        Severity.CRITICAL,
        f"{tap.tap} of rank {tap.rank} is silent while the engine works",
        f"no message in {evidence.seconds:.0f} s; /metrics counted new prompt tokens meanwhile",
        "what it should show is unknown, and looks like an empty cache to whoever trusts it",
        "check that prefix caching is on and the topic is right; some hybrid models publish "
        "nothing at all",
    )


def _losses(tap: TapEvidence) -> Iterator[Finding]:
    coverage = tap.coverage
    assert coverage is not None
    # A gap that starts at the first message is how joining in mid-life looks.
    gaps = [n for n in tap.news if n.event is TapEvent.GAP and n.first_missing]
    dropped = [n for n in tap.news if n.event is TapEvent.DROPPED]
    lost_later = [n for n in dropped if n.first_missing]
    if gaps or lost_later:
        count = sum(n.count for n in gaps) or sum(n.count for n in lost_later)
        yield Finding(
            "gaps",
            Severity.WARNING,
            f"{tap.tap} of rank {tap.rank} lost messages",
            f"{count} messages in {len(gaps) or len(lost_later)} gaps"
            + (f"; given up: {lost_later[-1].detail}" if lost_later else "; made good by replay"),
            "forecasts that lean on the lost part are marked; given up, blocks from before are "
            "unknown",
            "give kvready more CPU, or raise the engine's hwm in --kv-events-config",
        )
    elif dropped:
        yield Finding(
            "history-gone",
            Severity.NOTE,
            f"{tap.tap} of rank {tap.rank} knows nothing from before it joined",
            dropped[-1].detail,
            "blocks from before are unknown, not absent, until the engine restarts or reuses them",
            "nothing; attach right after the engine starts, or raise buffer_steps",
        )
    if coverage.decode_errors:
        details = [n.detail for n in tap.news if n.event is TapEvent.DECODE_ERROR and n.detail]
        yield Finding(
            "unreadable-messages",
            Severity.WARNING,
            f"{tap.tap} of rank {tap.rank} sends messages that kvready cannot read",
            f"{coverage.decode_errors} of {coverage.messages}; last: {(details or ['?'])[-1]}",
            "what they told is unknown",
            "use a kvready that knows this engine's version",
        )


def _missing_tier(evidence: Evidence) -> Iterator[Finding]:
    before, after = evidence.before, evidence.after
    taps = [tap for tap in evidence.kv_taps if tap.coverage is not None and tap.coverage.messages]
    if before is None or after is None or not taps:
        return
    stored = increment(before, after, lambda e: e.store_bytes)
    seen = any(tap.seen.get(Tier.HOST) for tap in taps)
    if stored and not seen:
        yield Finding(
            "missing-tier",
            Severity.WARNING,
            "the host tier fills, and no KV event tells of it",
            f"vllm:kv_offload_store_bytes grew by {stored:,.0f}; no event named the CPU tier",
            "host hits cannot be told from misses",
            SELF_DESCRIBING + "; connectors other than OffloadingConnector may publish no host "
            "events",
        )


def _placeholders(evidence: Evidence) -> Iterator[Finding]:
    count = sum(tap.placeholders.get(Tier.HOST, 0) for tap in evidence.kv_taps)
    if count:
        yield Finding(
            "placeholder-events",
            Severity.WARNING,
            "KV events of the host tier do not say what the blocks hold",
            f"{count} stores without tokens, block size or parent",
            "a host block counts only where its hash was seen in HBM first",
            SELF_DESCRIBING,
        )
