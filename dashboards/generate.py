"""Writes what is generated here: Grafana's dashboards and its copy of the alerts.

`python -m dashboards.generate` rewrites what is committed. To deploy, name a folder and what your
own places are called:

`python -m dashboards.generate --out DIR --runbooks https://HOST/runbooks --datasource-uid UID`
"""

from __future__ import annotations

import argparse
from pathlib import Path

from dashboards import (
    diagnosis,
    load_or_recompute,
    policies,
    prediction_error,
    rule_file,
    taps,
    waits,
)
from dashboards.board import DEFAULT_RUNBOOKS, Board, rendered
from dashboards.grafana_alerts import provisioned

BOARDS: tuple[Board, ...] = (
    prediction_error.BOARD,
    waits.BOARD,
    policies.BOARD,
    taps.BOARD,
    diagnosis.BOARD,
    load_or_recompute.BOARD,
)
HERE = Path(__file__).parent
DEFAULT_DATASOURCE = "prometheus"


def documents(
    runbooks: str = DEFAULT_RUNBOOKS, datasource_uid: str = DEFAULT_DATASOURCE
) -> dict[str, str]:
    """Every generated file, by its path."""
    rules = rule_file.text().replace(f" {DEFAULT_RUNBOOKS}/", f" {runbooks}/")
    found = {f"grafana/{board.name}.json": rendered(board, runbooks) for board in BOARDS}
    found["grafana/alerting/kvready.yaml"] = provisioned(rule_file.alerts(rules), datasource_uid)
    found["rules/kvready.rules.yaml"] = rules
    return found


def main() -> None:
    """Write all files."""
    parser = argparse.ArgumentParser(description="Write dashboards, and alerts for Grafana.")
    parser.add_argument("--out", type=Path, default=HERE, help="folder; default: this one")
    parser.add_argument("--runbooks", default=DEFAULT_RUNBOOKS, help="where runbooks are read")
    parser.add_argument("--datasource-uid", default=DEFAULT_DATASOURCE, help="Grafana's, of alerts")
    given = parser.parse_args()
    for name, text in documents(given.runbooks.rstrip("/"), given.datasource_uid).items():
        path = given.out / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
