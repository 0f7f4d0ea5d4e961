"""The alerts of the rule file as Grafana provisions them.

Grafana interpolates variables of its environment (`$NAME`) in everything but annotations, so no
query and no expression here has a `$`. An alert of Prometheus fires for whatever its expression
returns; none here returns anything below zero, so a threshold of -1 says the same.
"""

from __future__ import annotations

import re
from typing import Any

import yaml

from dashboards.rule_file import Alert

FOLDER = "kvready"
LOOKBACK_SECONDS = 600
NOTE = (
    "# Generated from ../../rules/kvready.rules.yaml by `make dashboards`; edit that instead.\n"
    "# Prometheus must evaluate the recording rules of that file: the queries read them.\n"
)


def provisioned(alerts: list[Alert], datasource_uid: str) -> str:
    """One file for `provisioning/alerting`."""
    groups: dict[str, dict[str, Any]] = {}
    for alert in alerts:
        group = groups.setdefault(
            alert.group,
            {
                "orgId": 1,
                "name": alert.group,
                "folder": FOLDER,
                "interval": alert.interval,
                "rules": [],
            },
        )
        group["rules"].append(_rule(alert, datasource_uid))
    told = {"apiVersion": 1, "groups": list(groups.values())}
    written: str = yaml.safe_dump(told, sort_keys=False, width=100)
    return NOTE + written


def uid(alert: Alert) -> str:
    """Stable, at most 40 characters."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "-", alert.name).lower()


def _rule(alert: Alert, datasource_uid: str) -> dict[str, Any]:
    return {
        "uid": uid(alert),
        "title": alert.name,
        "condition": "fires",
        "data": [
            {
                "refId": "query",
                "relativeTimeRange": {"from": LOOKBACK_SECONDS, "to": 0},
                "datasourceUid": datasource_uid,
                "model": {
                    "refId": "query",
                    "expr": alert.expression,
                    "instant": True,
                    "range": False,
                },
            },
            {
                "refId": "fires",
                "relativeTimeRange": {"from": LOOKBACK_SECONDS, "to": 0},
                "datasourceUid": "__expr__",
                "model": {
                    "refId": "fires",
                    "type": "threshold",
                    "expression": "query",
                    "conditions": [{"evaluator": {"type": "gt", "params": [-1]}}],
                },
            },
        ],
        "noDataState": "OK",  # nothing returned is nothing wrong, as in Prometheus
        "execErrState": "Error",
        "for": alert.holds_for,
        "labels": {"severity": alert.severity},
        "annotations": {key: _for_grafana(text) for key, text in alert.annotations.items()},
    }


def _for_grafana(template: str) -> str:
    """Grafana's `$value` is a text of all values; the number is under the query's name."""
    return re.sub(r"\$value\b", "$values.query.Value", template)
