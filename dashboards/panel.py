"""A panel: the question, the queries that answer it, and how it is drawn."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Any, NamedTuple

from grafana_foundation_sdk.builders import (
    bargauge,
    common,
    dashboard,
    heatmap,
    prometheus,
    stat,
    statetimeline,
    text,
    timeseries,
)
from grafana_foundation_sdk.models import heatmap as heatmap_model
from grafana_foundation_sdk.models import text as text_model
from grafana_foundation_sdk.models.common import (
    BigValueGraphMode,
    GraphDrawStyle,
    GraphTresholdsStyleMode,
    LegendDisplayMode,
    LegendPlacement,
    SortOrder,
    StackingMode,
    TooltipDisplayMode,
    VisibilityMode,
)
from grafana_foundation_sdk.models.dashboard import (
    DashboardLinkType,
    DataSourceRef,
    Threshold,
    ThresholdsMode,
    ValueMap,
    ValueMappingResult,
)
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

# Placeholders of expressions: what the variables of a dashboard choose, and the window of a rate.
SCOPE, WINDOW, RANGE = "SCOPE", "WINDOW", "RANGE"
CHOSEN = 'job=~"$job",instance=~"$instance"'
DATASOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")

HEIGHT = 8
TEXT = "text"


class Draw(StrEnum):
    """How a panel is drawn."""

    LINES = "lines"
    STACKED = "stacked"
    NUMBER = "number"
    BARS = "bars"
    STATES = "states"  # one row a series, 1 while it is in that state
    HEAT = "heat"  # a histogram's buckets over time


class Needs(StrEnum):
    """What a panel needs that not every machine has."""

    NOTHING = "nothing"
    GPU = "gpu"  # an engine that tells of the gather's workers
    NO_OBSERVER = "no_observer"  # a sidecar that sees requests only once they have ended


class Query(NamedTuple):
    """PromQL with placeholders, and what its series are called."""

    expression: str
    legend: str = ""


class Panel(NamedTuple):
    """One panel. `text` instead of queries: words beside the panels that decide."""

    title: str
    queries: tuple[Query, ...] = ()
    unit: str = "short"
    draw: Draw = Draw.LINES
    about: str = ""
    width: int = 12
    height: int = HEIGHT
    alerts: tuple[str, ...] = ()  # whose runbooks it links to
    limit: float | None = None  # drawn as a line, and red beyond
    needs: Needs = Needs.NOTHING
    text: str = ""


def words(title: str, content: str, width: int = 12, height: int = HEIGHT) -> Panel:
    """A panel of text (Markdown)."""
    return Panel(title, text=content, width=width, height=height)


def ask(expression: str, legend: str = "") -> tuple[Query, ...]:
    """A single query."""
    return (Query(expression, legend),)


def expanded(expression: str, scope: str, window: str, whole: str) -> str:
    """The expression with its placeholders replaced."""
    for placeholder, value in ((SCOPE, scope), (WINDOW, window), (RANGE, whole)):
        expression = expression.replace(placeholder, value)
    return expression


def built(panel: Panel, number: int) -> Any:
    """The builder of one panel. `number`: its id on the dashboard."""
    made = _text(panel) if panel.text else _PLOTS[panel.draw](panel)
    made = made.id(number).title(panel.title)
    if panel.about:
        made = made.description(panel.about)
    return made.links([_runbook(alert) for alert in panel.alerts])


def _text(panel: Panel) -> Any:
    return text.Panel().mode(text_model.TextMode.MARKDOWN).content(panel.text).transparent(True)


def _asked(panel: Panel, made: Any) -> Any:
    made = made.datasource(DATASOURCE).unit(panel.unit)
    for index, query in enumerate(panel.queries):
        one = prometheus.Dataquery()
        one = one.expr(expanded(query.expression, CHOSEN, "$__rate_interval", "$__range"))
        one = one.ref_id(chr(ord("A") + index)).datasource(DATASOURCE)
        one = one.instant() if panel.draw in (Draw.NUMBER, Draw.BARS) else one.range()
        if query.legend:
            one = one.legend_format(query.legend)
        if panel.draw is Draw.HEAT:
            one = one.format(PromQueryFormat.HEATMAP)
        made = made.with_target(one)
    if panel.limit is not None:
        made = made.thresholds(_limit(panel.limit))
    return made


def _lines(panel: Panel) -> Any:
    made = timeseries.Panel().fill_opacity(0).line_width(1).show_points(VisibilityMode.NEVER)
    made = made.draw_style(GraphDrawStyle.LINE).span_nulls(False)
    if panel.draw is Draw.STACKED:
        made = made.fill_opacity(40)
        made = made.stacking(common.StackingConfig().mode(StackingMode.NORMAL))
    if panel.limit is not None:
        made = made.thresholds_style(
            common.GraphThresholdsStyleConfig().mode(GraphTresholdsStyleMode.DASHED)
        )
    return _asked(panel, made.legend(_legend()).tooltip(_tooltip()))


def _number(panel: Panel) -> Any:
    return _asked(panel, stat.Panel().graph_mode(BigValueGraphMode.NONE))


def _bars(panel: Panel) -> Any:
    return _asked(panel, bargauge.Panel().min(0.0))


def _states(panel: Panel) -> Any:
    made = statetimeline.Panel().show_value(VisibilityMode.NEVER).merge_values(True)
    made = made.row_height(0.8).line_width(0).fill_opacity(80).legend(_legend())
    return _asked(panel, made.mappings([_ONE_IS_ON]))


def _heat(panel: Panel) -> Any:
    made = heatmap.Panel().calculate(False).show_legend().hide_y_histogram()
    color = heatmap.HeatmapColorOptions().mode(heatmap_model.HeatmapColorMode.SCHEME)
    made = made.color(color.scheme("Blues").steps(64))
    return _asked(panel, made.y_axis(heatmap.YAxisConfig().unit(panel.unit)))


_PLOTS: dict[Draw, Callable[[Panel], Any]] = {
    Draw.LINES: _lines,
    Draw.STACKED: _lines,
    Draw.NUMBER: _number,
    Draw.BARS: _bars,
    Draw.STATES: _states,
    Draw.HEAT: _heat,
}


def _runbook(alert: str) -> dashboard.DashboardLink:
    link = dashboard.DashboardLink(f"Runbook {alert}").type(DashboardLinkType.LINK)
    return link.url(f"${{runbooks}}/{alert}.md").target_blank(True)


def _legend() -> common.VizLegendOptions:
    made = common.VizLegendOptions().display_mode(LegendDisplayMode.LIST).show_legend(True)
    return made.placement(LegendPlacement.BOTTOM)


def _tooltip() -> common.VizTooltipOptions:
    return common.VizTooltipOptions().mode(TooltipDisplayMode.MULTI).sort(SortOrder.DESCENDING)


def _limit(value: float) -> dashboard.ThresholdsConfig:
    steps = [Threshold(value=None, color="green"), Threshold(value=value, color="red")]
    return dashboard.ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(steps)


_ONE_IS_ON = ValueMap(
    options={
        "0": ValueMappingResult(text="no", color="transparent", index=0),
        "1": ValueMappingResult(text="yes", color="blue", index=1),
    }
)
