"""The part of the catalogue that tells how KV moves: how fast, beside what, usable when."""

from __future__ import annotations

from kvready.advisor.copy_account import AWAITED, Beside, CopyPath, CopySize
from kvready.advisor.distribution import COPY_BUCKETS
from kvready.advisor.interference import BatchKind
from kvready.advisor.link_use import Idle
from kvready.advisor.readiness import UNTOLD
from kvready.advisor.service.metric import BOUNDS, Label, at, counter, gauge, histogram
from kvready.collectors.collector import Level
from kvready.collectors.records import CopyMethod, Tier

SOURCE = Label("source", tuple(Tier))
DESTINATION = Label("destination", tuple(Tier))
METHOD = Label("method", (*CopyMethod, UNTOLD))
PATH = Label("path", tuple(CopyPath))
AWAITED_PATH = Label("path", tuple(AWAITED))
CELL = (PATH, Label("size", tuple(CopySize)), Label("beside", tuple(Beside)))

MOVEMENT = (
    *at(
        Level.OBSERVER,
        counter("transfer_bytes_total", "bytes",
                "KV bytes of copies whose start was told, by the size of the copy and by what went "
                "on beside it: nothing, a batch, or copies of another direction on its link. Over "
                "the seconds: effective bandwidth, alone and contended.", *CELL),
        counter("transfer_seconds_total", "seconds",
                "Time of the same copies, from the mover's start until usable.", *CELL),
        counter("untimed_transfers_total", "copies",
                "Copies whose start nobody told: no bandwidth is made of them.", PATH),
        counter("mover_fragments_total", "fragments",
                "Scattered pieces that copies were made of, by the mover that made them.",
                PATH, METHOD),
        counter("mover_bytes_total", "bytes", "KV bytes of the same copies.", PATH, METHOD),
        counter("mover_seconds_total", "seconds",
                "Time of the same copies; over the fragments: what gathering a page costs.",
                PATH, METHOD),
        gauge("gather_workers", "workers",
              "Threads or SMs that gather; absent where the engine does not tell.", sparse=True),
        histogram("decision_to_usable_seconds", "seconds",
                  "From the order of a copy that requests wait for until it is usable.",
                  COPY_BUCKETS, AWAITED_PATH),
        counter("decision_to_start_seconds_total", "seconds",
                "Of that, until the mover began, where it told.", AWAITED_PATH),
        counter("link_busy_seconds_total", "seconds",
                "Time in which something was copied into HBM, summed over ranks."),
        counter("link_idle_seconds_total", "seconds",
                "Time in which nothing was, by why: a load is ordered and not begun, its data is "
                "on the way from below, no room for who waits for one, passed over with room, or "
                "nobody waits for one.", Label("reason", tuple(Idle))),
        counter("link_untold_seconds_total", "seconds",
                "Time in which it is unknown whether anything was: a mover does not tell when it "
                "begins, or the observer's stream was not whole."),
        counter("copies_total", "copies", "Copies of KV between tiers that finished.",
                SOURCE, DESTINATION),
        counter("copy_bytes_total", "bytes", "KV bytes that those copies moved.",
                SOURCE, DESTINATION),
        counter("copy_seconds_total", "seconds", "Time that those copies took.",
                SOURCE, DESTINATION),
        gauge("load_factor_ratio", "ratio",
              "Fitted time of copies over what the link profile, or the generic link, says of "
              "them; of several ranks the one furthest from 1.",
              SOURCE, DESTINATION, METHOD, sparse=True),
        gauge("load_calibration_stale", "",
              "1 while that factor of a link profile's path is outside 0.5 to 2, else 0.",
              SOURCE, DESTINATION, METHOD, sparse=True),
        gauge("load_slowdown_ratio", "ratio",
              "Time of batches beside a load over that of quiet ones, with the bounds of its 95 % "
              "interval; of several ranks the slowest. Absent until there were 30 of either.",
              Label("batch", tuple(BatchKind)), Label("bound", BOUNDS), sparse=True),
        counter("checked_loads_total", "copies",
                "Copies whose bytes were compared with a per-page copy of the same pages."),
        counter("mismatched_loads_total", "copies",
                "Of those, copies that differed and were repaired; the mover then stays off."),
        counter("exposed_load_seconds_total", "seconds",
                "Load time in which the engine could have run the request otherwise."),
        counter("hidden_load_seconds_total", "seconds",
                "Load time that cost nothing: the engine could not have run the request."),
    ),
)  # fmt: skip
