"""A dashboard: rows of panels, and what all dashboards share."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DashboardLinkType,
    GridPos,
    VariableOption,
    VariableRefresh,
    VariableSort,
)

from dashboards.panel import CHOSEN, DATASOURCE, Panel, built

TAG = "kvready"
COLUMNS = 24
NEW_SECONDS = 60  # a sidecar that began so lately is marked; it may have been away for longer
DEFAULT_RUNBOOKS = "runbooks"


class Row(NamedTuple):
    """A heading and its panels, 24 columns wide."""

    title: str
    panels: tuple[Panel, ...]


class Board(NamedTuple):
    """One dashboard, which answers one question."""

    name: str  # of its file, and of its uid
    title: str
    about: str
    rows: tuple[Row, ...]

    def panels(self) -> Iterator[Panel]:
        """All of them, in order."""
        for row in self.rows:
            yield from row.panels


# What changed while one looks: policies that moved, sidecars that began anew.
ANNOTATIONS = (
    (
        "Policies that moved",
        "sum by (instance, policy, trigger) "
        f"(increase(kvready_policy_transitions_total{{{CHOSEN}}}[$__rate_interval])) > 0",
        "{{policy}}: {{trigger}}",
        "blue",
    ),
    (
        "Kill switch",
        f"max by (instance, holder) (kvready_kill_switch_active{{{CHOSEN}}}) > 0",
        "killed by {{holder}}",
        "red",
    ),
    (
        "Sidecar began anew",
        f"time() - kvready_process_start_time_seconds{{{CHOSEN}}} < {NEW_SECONDS}",
        "sidecar began anew",
        "orange",
    ),
)


def rendered(board: Board, runbooks: str = DEFAULT_RUNBOOKS) -> str:
    """The dashboard as JSON that Grafana imports."""
    made = (
        dashboard.Dashboard(board.title)
        .uid(f"kvready-{board.name.replace('_', '-')}")
        .description(board.about)
        .tags([TAG])
        .refresh("30s")
        .time("now-3h", "now")
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .readonly()
    )
    for variable in _variables(runbooks):
        made = made.with_variable(variable)
    made = made.link(_others()).annotations([_annotation(one) for one in ANNOTATIONS])
    numbers = itertools.count(1)
    top = 0
    for row in board.rows:
        heading = dashboard.Row(row.title).id(next(numbers))
        made = made.with_row(heading.grid_pos(GridPos(x=0, y=top, w=COLUMNS, h=1)))
        places = placed(row.panels, top + 1)
        for panel, place in zip(row.panels, places, strict=True):
            made = made.with_panel(built(panel, next(numbers)).grid_pos(place))
        top = max(place.y + place.h for place in places)
    told: dict[str, Any] = json.loads(json.dumps(made.build(), cls=JSONEncoder))
    # The SDK's annotations have no place for what a marker says.
    written = told["annotations"]["list"]
    for annotation, (_, _, title, _) in zip(written, ANNOTATIONS, strict=True):
        annotation["titleFormat"] = title
        annotation["textFormat"] = "{{instance}}"
    return json.dumps(told, indent=1, sort_keys=True) + "\n"


def placed(panels: Sequence[Panel], top: int) -> list[GridPos]:
    """Where each panel lies: in order, as high as it can, then as far to the left."""
    skyline = [top] * COLUMNS
    places = []
    for panel in panels:
        room = range(COLUMNS - panel.width + 1)
        height, left = min((max(skyline[x : x + panel.width]), x) for x in room)
        skyline[left : left + panel.width] = [height + panel.height] * panel.width
        places.append(GridPos(x=left, y=height, w=panel.width, h=panel.height))
    return places


def _variables(runbooks: str) -> Iterator[Any]:
    yield dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus")
    yield _chosen("job", "label_values(kvready_build_info, job)")
    yield _chosen("instance", 'label_values(kvready_build_info{job=~"$job"}, instance)')
    yield dashboard.TextBoxVariable("runbooks").label("Runbooks at").default_value(runbooks)


def _chosen(name: str, query: str) -> dashboard.QueryVariable:
    made = dashboard.QueryVariable(name).datasource(DATASOURCE).query(query)
    made = made.multi(True).include_all(True).all_value(".+").sort(VariableSort.ALPHABETICAL_ASC)
    made = made.current(VariableOption(text="All", value="$__all", selected=True))
    return made.refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)


def _others() -> dashboard.DashboardLink:
    link = dashboard.DashboardLink("kvready").type(DashboardLinkType.DASHBOARDS).tags([TAG])
    return link.as_dropdown(False).include_vars(True).keep_time(True)


def _annotation(told: tuple[str, str, str, str]) -> dashboard.AnnotationQuery:
    name, expression, _, color = told
    made = dashboard.AnnotationQuery().name(name).datasource(DATASOURCE).expr(expression)
    return made.enable(True).icon_color(color)
