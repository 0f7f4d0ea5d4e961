"""Dashboards are what the code says, ask only for what is exported, and lead to runbooks."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from promtool import needed, promtool

from dashboards import rule_file
from dashboards.board import ANNOTATIONS, Board
from dashboards.generate import BOARDS, HERE, documents
from dashboards.grafana_alerts import uid
from dashboards.panel import Needs, Panel, expanded
from kvready.advisor.service.catalogue import by_name
from kvready.advisor.service.metric import BOUNDED, Kind, Metric

DOCUMENTS = documents()
PARTS = ("_bucket", "_sum", "_count")
ALERTS = {alert.name: alert for alert in rule_file.alerts(rule_file.text())}
# Prometheus' own, of which targets it could scrape.
FOREIGN = {"up"}


def expressions() -> Iterator[tuple[str, str]]:
    """Every expression of the house, and where it stands."""
    for board in BOARDS:
        for panel in board.panels():
            for query in panel.queries:
                yield f"{board.name}: {panel.title}", plain(query.expression)
    for name, expression, _, _ in ANNOTATIONS:
        yield name, re.sub(r"\$\w+", "5m", expression)
    for group in rule_file.groups(rule_file.text()):
        for rule in group["rules"]:
            yield rule.get("alert") or rule["record"], rule["expr"]


def plain(expression: str) -> str:
    return expanded(expression, 'job=~".+"', "5m", "1h")


def metric_of(name: str) -> Metric | None:
    known = by_name()
    for part in PARTS:
        base = name.removesuffix(part)
        if base != name and base in known and known[base].kind is Kind.HISTOGRAM:
            return known[base]
    return known.get(name)


# Texts --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(DOCUMENTS))
def test_what_is_committed_is_what_the_code_writes(name: str) -> None:
    assert (HERE / name).read_text(encoding="utf-8") == DOCUMENTS[name], "make dashboards"


def test_no_dashboard_is_left_from_before() -> None:
    written = {path.relative_to(HERE).as_posix() for path in (HERE / "grafana").rglob("*.*")}
    assert written == {name for name in DOCUMENTS if name.startswith("grafana/")}


def test_places_of_an_operator_go_everywhere() -> None:
    told = documents(runbooks="https://wiki.example/kv", datasource_uid="mimir")
    for name in ("rules/kvready.rules.yaml", "grafana/alerting/kvready.yaml"):
        assert told[name].count("https://wiki.example/kv/Kvready") == len(ALERTS)
        assert " runbooks/" not in told[name]
    provisioned = yaml.safe_load(told["grafana/alerting/kvready.yaml"])
    rules = [rule for group in provisioned["groups"] for rule in group["rules"]]
    assert {rule["data"][0]["datasourceUid"] for rule in rules} == {"mimir"}
    (variable,) = [
        one
        for one in json.loads(told["grafana/waits.json"])["templating"]["list"]
        if one["name"] == "runbooks"
    ]
    assert variable["query"] == "https://wiki.example/kv"


# Names --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("where", "expression"), list(expressions()))
def test_every_name_and_label_value_is_one_that_is_exported(where: str, expression: str) -> None:
    recorded = rule_file.recorded(rule_file.text())
    names = re.findall(r"[a-z_]+:kvready_\w+:\w+|\bkvready_\w+|\bup\b", expression)
    assert names
    for name in names:
        assert name in recorded | FOREIGN or metric_of(name) is not None, f"{where}: {name}"
    for name, matchers in re.findall(r"\b(kvready_\w+)\{([^}]*)\}", expression):
        metric = metric_of(name)
        if metric is None:
            continue  # a part of a recorded name
        labels = {label.name: label for label in metric.labels}
        for label, operator, value in re.findall(r'(\w+)(=~|=)"([^"]*)"', matchers):
            if label in ("job", "instance"):
                continue
            assert label in labels, f"{where}: {name} has no label {label}"
            allowed = labels[label].values
            values = value.split("|") if operator == "=~" else [value]
            for one in values:
                pattern = re.compile(one if operator == "=~" else re.escape(one))
                assert labels[label].source == BOUNDED or any(map(pattern.fullmatch, allowed))


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.name)
def test_what_legends_name_survives_the_aggregation(board: Board) -> None:
    for panel in board.panels():
        for query in panel.queries:
            kept = {
                label.strip()
                for labels in re.findall(r"by \(([^)]*)\)", query.expression)
                for label in labels.split(",")
            }
            kept |= {"instance"} if "by (" not in query.expression else set()
            named = set(re.findall(r"\{\{(\w+)\}\}", query.legend))
            assert named <= kept, f"{panel.title}: {named - kept}"


def test_prometheus_reads_every_query(tmp_path: Path) -> None:
    needed("promtool")
    rules = [{"record": f"asked:{n}", "expr": text} for n, (_, text) in enumerate(expressions())]
    rules = [one | {"labels": {"number": one["record"]}, "record": "asked:once"} for one in rules]
    file = tmp_path / "asked.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "asked", "rules": rules}]}))
    done = promtool("check", "rules", file)
    assert done.returncode == 0, done.stderr


# Boards -------------------------------------------------------------------------------------------


def told(board: Board) -> dict[str, Any]:
    text = (HERE / "grafana" / f"{board.name}.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)
    return found


def test_boards_differ_and_find_each_other() -> None:
    boards = [told(board) for board in BOARDS]
    assert len({board["uid"] for board in boards}) == len({b["title"] for b in boards}) == 6
    for board in boards:
        (link,) = board["links"]
        assert (link["type"], link["tags"]) == ("dashboards", board["tags"])
        assert link["includeVars"]
        assert link["keepTime"]


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.name)
def test_a_board_names_no_data_source_of_its_own(board: Board) -> None:
    shown = told(board)
    variables = {one["name"]: one for one in shown["templating"]["list"]}
    assert list(variables) == ["datasource", "job", "instance", "runbooks"]
    assert (variables["datasource"]["type"], variables["datasource"]["query"]) == (
        "datasource",
        "prometheus",
    )
    asking = [panel for panel in shown["panels"] if panel["type"] not in ("row", "text")]
    for panel in asking:
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        for target in panel["targets"]:
            assert target["datasource"] == panel["datasource"]
            assert not re.search(r"SCOPE|WINDOW|RANGE", target["expr"])
            assert 'instance=~"$instance"' in target["expr"]
    assert len({panel["id"] for panel in shown["panels"]}) == len(shown["panels"])
    marks = {one["name"]: one for one in shown["annotations"]["list"]}
    assert "kvready_policy_transitions_total" in marks["Policies that moved"]["expr"]


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.name)
def test_panels_lie_beside_each_other_without_holes(board: Board) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in told(board)["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells
    for panel in told(board)["panels"]:
        x, y = panel["gridPos"]["x"], panel["gridPos"]["y"]
        assert y == 0 or any((at, y - 1) in taken for at in range(x, x + panel["gridPos"]["w"]))


def test_every_panel_says_what_it_shows_in_a_unit() -> None:
    for board in BOARDS:
        titles = [panel.title for row in board.rows for panel in row.panels if not panel.text]
        assert len(set(titles)) == len(titles)
        for panel in board.panels():
            assert bool(panel.queries) != bool(panel.text), panel.title
            if "seconds" in "".join(query.expression for query in panel.queries):
                assert panel.unit != "short" or is_share(panel), panel.title


def is_share(panel: Panel) -> bool:
    """Whether its seconds are divided by seconds, or belong to something else beside them."""
    return any("/" in query.expression or "batch" in query.expression for query in panel.queries)


def test_every_alert_is_one_click_from_a_panel() -> None:
    linked = {alert for board in BOARDS for panel in board.panels() for alert in panel.alerts}
    assert linked == set(ALERTS)
    text = json.dumps([told(board) for board in BOARDS])
    for alert in ALERTS:
        assert f"${{runbooks}}/{alert}.md" in text


def test_the_path_of_the_diagnosis_names_what_it_decides() -> None:
    (board,) = [one for one in BOARDS if one.name == "diagnosis"]
    for row in board.rows:
        assert any(panel.text for panel in row.panels), row.title
    said = " ".join(panel.text for panel in board.panels())
    for change in ("admission", "placement", "link reservation", "slo isolation"):
        assert change in said.lower()
    asked = " ".join(query.expression for panel in board.panels() for query in panel.queries)
    for step in ("prefix_length", "reuse_distance", "initial_state", "beside", "reason", "served"):
        assert step in asked


def test_few_panels_need_what_not_every_machine_has() -> None:
    rare = [p.title for b in BOARDS for p in b.panels() if p.needs is not Needs.NOTHING]
    assert len(rare) <= 2, rare


# Grafana's copy of the alerts ---------------------------------------------------------------------


def test_grafana_gets_every_alert_with_its_query_and_nothing_to_interpolate() -> None:
    text = (HERE / "grafana/alerting/kvready.yaml").read_text(encoding="utf-8")
    found = [rule for group in yaml.safe_load(text)["groups"] for rule in group["rules"]]
    assert [rule["title"] for rule in found] == list(ALERTS)
    assert len({rule["uid"] for rule in found}) == len(found)
    for rule in found:
        alert = ALERTS[rule["title"]]
        asked, fires = rule["data"]
        assert asked["model"]["expr"] == alert.expression
        assert (rule["for"], rule["labels"]["severity"]) == (alert.holds_for, alert.severity)
        assert fires["model"]["expression"] == asked["refId"]
        assert rule["condition"] == fires["refId"]
        assert "$" not in json.dumps({key: rule[key] for key in rule if key != "annotations"})
        assert "$value " not in json.dumps(rule["annotations"])
        assert len(uid(alert)) <= 40
