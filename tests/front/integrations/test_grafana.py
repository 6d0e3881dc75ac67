"""The dashboard for Grafana shows exactly the metrics that fxpool exports, and has what Grafana requires."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner
from sources import ROOT

from fxpool.commands.main import main

parser = pytest.importorskip("prometheus_client.parser")

DASHBOARD: dict[str, Any] = json.loads((ROOT / "examples" / "grafana" / "fxpool.json").read_text())
#: The names of samples by a family's type, as far as queries need them.
SAMPLES = {"gauge": ("",), "counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}


def exported() -> dict[str, str]:
    """Each name that a query may have, with the name of its family; families are named without a server, too."""
    text = CliRunner().invoke(main, ["metrics"]).output
    return {
        f"{family.name}{suffix}": family.name
        for family in parser.text_string_to_metric_families(text)
        for suffix in SAMPLES[family.type]
    }


def queries() -> Iterator[str]:
    for panel in DASHBOARD["panels"]:
        yield from (target["expr"] for target in panel.get("targets", ()))
    yield from (variable["query"]["query"] for variable in variables().values() if variable["type"] == "query")


def variables() -> dict[str, dict[str, Any]]:
    return {variable["name"]: variable for variable in DASHBOARD["templating"]["list"]}


def test_it_shows_all_metrics_and_no_others() -> None:
    names = {name for query in queries() for name in re.findall(r"\bfxpool_\w+", query)}
    known = exported()
    assert names <= known.keys()
    assert {known[name] for name in names} == {*known.values()}


def test_the_page_lists_all_metrics_and_no_others() -> None:
    page = (ROOT / "docs" / "dashboard.md").read_text().partition("## Metrics for Prometheus")[2].partition("###")[0]
    known = exported()
    listed = set(re.findall(r"\bfxpool_\w+", page))
    assert listed <= {*known, *known.values()}
    assert {known.get(name, name) for name in listed} == {*known.values()}


def test_it_has_what_grafana_requires() -> None:
    assert DASHBOARD["title"] and DASHBOARD["schemaVersion"] >= 36 and "id" not in DASHBOARD
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        own = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert own and not own & cells and max(x for x, _ in own) < 24, f"{panel['title']} lies on another"
        cells |= own
        if panel["type"] == "row":
            continue
        assert panel["type"] in ("stat", "timeseries") and panel["title"] and panel["description"]
        assert panel["fieldConfig"]["defaults"]["unit"] and panel["fieldConfig"]["overrides"] == []
        for target in (panel, *panel["targets"]):
            assert target["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        references = [target["refId"] for target in panel["targets"]]
        assert references and len(set(references)) == len(references)


def test_its_variables_are_known_and_its_parentheses_match() -> None:
    for query in queries():
        assert set(re.findall(r"\$(\w+)", query)) <= {*variables(), "__rate_interval"}, query
        assert all(query.count(opening) == query.count(closing) for opening, closing in ("()", "{}", "[]")), query
    assert variables()["datasource"]["type"] == "datasource" and variables()["datasource"]["query"] == "prometheus"
