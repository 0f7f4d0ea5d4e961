"""Queries that a page of the documentation gives: they parse, and name what there is."""

from __future__ import annotations

import re
from pathlib import Path

import promtool
import yaml

from kvready.advisor.service.catalogue import by_name
from kvready.advisor.service.metric import Kind
from kvready.advisor.service.metric_questions import QUESTIONS

SUFFIX = re.compile(r"_(bucket|sum|count)$")


def test_every_metric_and_label_value_that_is_asked_for_exists() -> None:
    catalogue = by_name()
    for asked in QUESTIONS:
        names = re.findall(r"kvready_\w+", asked.query)
        assert names, asked.question
        for name in names:
            metric = catalogue[SUFFIX.sub("", name)]
            assert (metric.kind is Kind.HISTOGRAM) is bool(SUFFIX.search(name)), name
            assert ("rate(" + name in asked.query) is (metric.kind is not Kind.GAUGE), name
        for name, selector in re.findall(r"(kvready_\w+)\{([^}]*)\}", asked.query):
            labels = {label.name: label.values for label in catalogue[name].labels}
            for label, values in re.findall(r'(\w+)=~?"([^"]*)"', selector):
                assert set(values.split("|")) <= set(map(str, labels[label])), asked.question
        for group in re.findall(r"by \(([^)]*)\)", asked.query):
            known = {
                label.name for name in names for label in catalogue[SUFFIX.sub("", name)].labels
            }
            assert set(group.split(", ")) <= known | {"le"}, asked.question


def test_prometheus_can_read_every_query(tmp_path: Path) -> None:
    promtool.needed("promtool")
    rules = [
        {"record": f"question:{number}:answer", "expr": asked.query}
        for number, asked in enumerate(QUESTIONS)
    ]
    file = tmp_path / "questions.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "questions", "rules": rules}]}))
    checked = promtool.promtool("check", "rules", file)
    assert checked.returncode == 0, checked.stderr
    assert f"{len(QUESTIONS)} rules found" in checked.stdout + checked.stderr
