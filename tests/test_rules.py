"""Alerts fire when they should and not otherwise, and each leads to a page that says what to do."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from promtool import amtool, needed, promtool
from rule_cases import CASES, WHO, Case

from dashboards import rule_file
from dashboards.generate import HERE
from kvready.advisor.demotion import MIN_MINUTES, MIN_PAIRS, NEARLY_ALL, PAIRS
from kvready.advisor.gate_accuracy import MIN_COVERAGE

RULES = rule_file.text()
ALERTS = {alert.name: alert for alert in rule_file.alerts(RULES)}
RUNBOOKS = HERE / "runbooks"
SEVERITIES = {"critical", "warning"}


# Runbooks -----------------------------------------------------------------------------------------


def test_every_alert_has_a_runbook_and_every_runbook_an_alert() -> None:
    assert {path.stem for path in RUNBOOKS.iterdir()} == set(ALERTS)
    for name, alert in ALERTS.items():
        assert alert.annotations["runbook_url"] == f"runbooks/{name}.md"


@pytest.mark.parametrize("name", sorted(ALERTS))
def test_a_runbook_says_meaning_check_and_act(name: str) -> None:
    text = (RUNBOOKS / f"{name}.md").read_text(encoding="utf-8")
    assert text.startswith(f"# {name}\n\nSeverity: {ALERTS[name].severity}.\n")
    parts = re.split(r"^## ", text, flags=re.MULTILINE)[1:]
    assert [part.partition("\n")[0] for part in parts] == ["Meaning", "Check", "Act"]
    assert all(len(part.split()) > 8 for part in parts)
    for other in re.findall(r"\bKvready[A-Z]\w+", text):
        assert other in ALERTS


@pytest.mark.parametrize("name", sorted(ALERTS))
def test_an_alert_tells_who_what_and_how_grave(name: str) -> None:
    alert = ALERTS[name]
    assert alert.severity in SEVERITIES
    assert set(alert.annotations) == {"summary", "description", "runbook_url"}
    if not alert.expression.startswith("absent"):
        assert "{{ $labels.instance }}" in alert.annotations["summary"]


# What the code says -------------------------------------------------------------------------------


def test_burn_alerts_are_those_by_which_policies_are_taken_back() -> None:
    spelled = {60: "1h", 5: "5m", 360: "6h", 30: "30m", 4_320: "3d"}
    alerts = [alert for alert in ALERTS.values() if "budget:ratio" in alert.expression]
    assert len(alerts) == len(PAIRS)
    for pair, alert in zip(PAIRS, alerts, strict=True):
        assert alert.severity == ("critical" if pair.takes_back else "warning")
        windows = re.findall(r"ratio_rate(\w+)", alert.expression)
        assert windows == [spelled[pair.long_minutes], spelled[pair.short_minutes]]
        assert f"increase{windows[0]} >= {MIN_PAIRS}" in alert.expression
        assert f"sum[{windows[0]}]) >= {MIN_MINUTES}" in alert.expression
        if pair.takes_back:
            assert f"clamp_max({pair.burn:g} * " in alert.expression
            assert f":ratio, {NEARLY_ALL:g})" in alert.expression
            assert f"max_over_time(kvready_serving_stalled[{windows[1]}])" in alert.expression
    assert {group["interval"] for group in rule_file.groups(RULES)} == {"1m"}


def test_ranges_are_alerted_of_where_the_gate_fails_them() -> None:
    assert f"< {MIN_COVERAGE:g} " in ALERTS["KvreadyForecastRangesMiss"].expression


def test_only_a_few_alerts_wake_somebody() -> None:
    critical = {name for name, alert in ALERTS.items() if alert.severity == "critical"}
    assert critical == {
        "KvreadyForecastsBadFast",
        "KvreadyForecastsBadSlow",
        "KvreadyPolicyHarm",
        "KvreadyWrongBytes",
        "KvreadyAuditRewritten",
        "KvreadyEngineStalled",
    }


def test_hastened_rules_are_the_same_but_for_durations() -> None:
    fast = rule_file.hastened(RULES, 60)
    assert len(re.findall(r"\d+ms\b", fast)) == len(rule_file._DURATION.findall(RULES))
    back = re.sub(r"(\d+)ms\b", lambda found: f"{int(found[1]) * 60 // 1000}s", fast)
    assert rule_file.hastened(back, 60) == fast
    assert not re.search(r"\d[smhd]\]", fast)
    assert [alert.name for alert in rule_file.alerts(fast)] == list(ALERTS)


# promtool -----------------------------------------------------------------------------------------


def test_prometheus_reads_the_rules(tmp_path: Path) -> None:
    needed("promtool")
    fast = tmp_path / "fast.yaml"
    fast.write_text(rule_file.hastened(RULES, 240), encoding="utf-8")
    for file in (rule_file.RULES, fast):
        done = promtool("check", "rules", "--lint=all", "--lint-fatal", file)
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_configurations_that_the_readme_shows_are_read(tmp_path: Path) -> None:
    needed("promtool", "amtool")
    readme = (HERE / "README.md").read_text(encoding="utf-8")
    shown = re.findall(r"```yaml\n# (\w+\.yml)\n(.*?)```", readme, re.DOTALL)
    for name, text in shown:
        (tmp_path / name).write_text(text, encoding="utf-8")
    (tmp_path / rule_file.RULES.name).write_text(RULES, encoding="utf-8")
    assert [name for name, _ in shown] == ["prometheus.yml", "alertmanager.yml"]
    for done in (
        promtool("check", "config", tmp_path / "prometheus.yml"),
        amtool("check-config", tmp_path / "alertmanager.yml"),
    ):
        assert done.returncode == 0, done.stdout + done.stderr
    routed = ["config", "routes", "test", f"--config.file={tmp_path / 'alertmanager.yml'}"]
    for severity, receiver in (("critical", "pager"), ("warning", "tickets")):
        assert amtool(*routed, f"severity={severity}").stdout.strip() == receiver


def test_every_alert_is_tested_both_ways() -> None:
    firing = {case.alert for case in CASES if case.fires}
    quiet = {case.alert for case in CASES if not case.fires}
    assert firing == quiet == set(ALERTS)
    assert len({(case.alert, case.why) for case in CASES}) == len(CASES)


def test_alerts_fire_when_they_should_and_not_otherwise(tmp_path: Path) -> None:
    needed("promtool")
    failed = judged(tmp_path, RULES, CASES)
    assert not failed, failed


def began(window: str) -> str:
    """Says that a sidecar was not there before a window, as the same one."""
    name = "kvready_process_start_time_seconds"
    return f"( {name} unless {name} == max_over_time({name}[{window}] offset {window}) )"


# Without any one of its guards an alert would fire in a case in which it should not.
GUARDS = {
    "50 forecasts": " and instance_target:kvready_judged_forecasts:increase1h >= 50",
    "10 minutes": " and changes(instance_target:kvready_judged_forecasts:sum[1h]) >= 10",
    "a stall": " unless ignoring (target) max_over_time(kvready_serving_stalled[5m]) > 0",
    "a start": f" unless ignoring (target) {began('5m')}",
    "a tap's start": f" unless ignoring (tap) {began('15m')}",
    "a silent tap": ' unless ignoring (tap, state) kvready_tap_state{state=~"silent|closed"} == 1',
    "a known sidecar": " and on (job, instance) max_over_time(kvready_build_info[1d])",
    "few arrivals": " and increase(kvready_first_tokens_total[1h]) >= 50",
    "an entry": " and kvready_audit_entries_total <= kvready_audit_entries_total offset 5m",
}


@pytest.mark.parametrize("guard", sorted(GUARDS))
def test_every_guard_holds_something_back(guard: str, tmp_path: Path) -> None:
    needed("promtool")
    told = yaml.safe_load(RULES)
    changed = set()
    for group in told["groups"]:
        for rule in group["rules"]:
            if GUARDS[guard] in rule["expr"]:
                rule["expr"] = rule["expr"].replace(GUARDS[guard], "")
                changed.add(rule["alert"])
    assert len(changed) == 1
    cases = [case for case in CASES if case.alert in changed]
    assert judged(tmp_path, yaml.safe_dump(told), cases)


def judged(folder: Path, rules: str, cases: Sequence[Case]) -> str:
    """What promtool finds wrong. Annotations are left out: they are the operator's words."""
    failed = ""
    for alert, step in sorted({(case.alert, case.step) for case in cases}):
        told = alone(rules, alert)
        (folder / "rules.yaml").write_text(yaml.safe_dump(told), encoding="utf-8")
        mine = [case for case in cases if (case.alert, case.step) == (alert, step)]
        asked = {
            "rule_files": ["rules.yaml"],
            "evaluation_interval": step,
            # Else promtool takes groups in any order: an alert may come before what it reads.
            "group_eval_order": [group["name"] for group in told["groups"]],
            "tests": [asked_of(case) for case in mine],
        }
        (folder / "asked.yaml").write_text(yaml.safe_dump(asked), encoding="utf-8")
        done = promtool("test", "rules", folder / "asked.yaml")
        failed += done.stderr + done.stdout if done.returncode else ""
    return failed


def alone(rules: str, alert: str) -> dict[str, Any]:
    """One alert with the recording rules that it reads: promtool evaluates all that it is given."""
    told: dict[str, Any] = yaml.safe_load(rules)
    every = [rule for group in told["groups"] for rule in group["rules"]]
    (asked,) = [rule for rule in every if rule.get("alert") == alert]
    asked.pop("annotations")
    for group in told["groups"]:
        group["rules"] = [
            rule
            for rule in group["rules"]
            if rule is asked or rule.get("record", "-") in asked["expr"]
        ]
    told["groups"] = [group for group in told["groups"] if group["rules"]]
    return told


def asked_of(case: Case) -> dict[str, Any]:
    """One case as promtool reads it."""
    fires = [{"exp_labels": labels_of(case.alert, labels)} for labels in case.fires]
    return {
        "name": f"{case.alert}: {case.why}",
        "interval": case.step,
        "input_series": [{"series": name, "values": v} for name, v in case.series.items()],
        "alert_rule_test": [{"alertname": case.alert, "eval_time": case.at, "exp_alerts": fires}],
    }


def labels_of(alert: str, labels: Mapping[str, str]) -> dict[str, str]:
    """Those that an alert carries; of nobody in particular where it says so."""
    mine = {} if "everyone" in labels else WHO | dict(labels)
    return {"severity": ALERTS[alert].severity} | mine
