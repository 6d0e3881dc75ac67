"""Results of public functions: plain data with types, and their looks in a terminal and a notebook."""

from __future__ import annotations

import json
import pickle
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from sources import ROOT

import fxpool
from fxpool import counters, notices
from fxpool.bench import report
from fxpool.bench.case import Run
from fxpool.bench.measurement.result import Measurement
from fxpool.bench.results import Record
from fxpool.codecache.explain.comparison import Difference
from fxpool.codecache.explain.misses import FailedGuard, MissExplanation
from fxpool.codecache.explain.nearest import NEAREST, Comparison
from fxpool.explanation import process
from fxpool.explanation.process import CountedReason, ProcessExplanation
from fxpool.results import data, markup
from fxpool.results.result_display import ShownGraphs, ShownStats
from fxpool.torch_compat.dynamo.traced_functions import Traced

EVIL = "<script>alert('&')</script>"
GRAPH = {
    "label": f"graph 0 {EVIL}", "state": "failed", "error": f"KilledError: {EVIL}\nmore", "stage": None,
    "stages": {0: "failed"}, "eager_calls": 3, "compiled_calls": 0, "swaps": 0, "outside_guards": 0,
}  # fmt: skip
COMPARISON = Comparison(
    "2a74" * 16, "2316" * 16, "f, a.py:3", "f, a.py:3", ("inputs",), (Difference("graph", EVIL, None, EVIL),), NEAREST
)
MISS = MissExplanation("graph 0", "2316" * 16, "f", "miss", 0.0, EVIL, (FailedGuard(EVIL, {"s1": 5}),), COMPARISON)
REASON = CountedReason("fallbacks", EVIL, 2, EVIL, "Do it.", "pool.md", EVIL, (EVIL,))
RESULTS: dict[str, Any] = {
    "graphs": ShownGraphs([GRAPH]),
    "explanation": ProcessExplanation((MISS,), (REASON,), process.why_no_graph(Traced(3, 1, 0, (EVIL,)))),
    "nothing": ProcessExplanation((), ()),
    "comparison": COMPARISON,
    "measurement": Measurement([0.004] * 9, 0.004, 0.0039, 0.0041, 1, "cpu", remarks=[EVIL]),
    "report": report.Report(
        EVIL, {Run(EVIL, "training", "eager"): Record(Run(EVIL, "training", "eager"), "done", "", 1.0, 0.0, 1 << 20,
        {"median": 0.1, "samples": [0.1], "remarks": [EVIL]})}
    ),
}  # fmt: skip


class _Text(HTMLParser):
    """The text of a page; fails if an element is not closed."""

    def __init__(self) -> None:
        super().__init__()
        self.opened: list[str] = []
        self.tags: set[str] = set()
        self.text = ""

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.opened.append(tag)
        self.tags.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.opened.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def _text(html: str) -> str:
    parser = _Text()
    parser.feed(html)
    parser.close()
    assert not parser.opened and parser.tags <= {"div", "b", "table", "thead", "tbody", "tr", "th", "td"}
    return parser.text


def counted() -> Any:
    counters.count("hits", n=2)
    counters.count("misses")
    counters.count("fallbacks", EVIL)
    counters.count("remote", "hits")
    return fxpool.stats()


@pytest.mark.parametrize("name", RESULTS)
def test_the_html_of_a_result_has_its_text_escaped(name: str) -> None:
    shown = RESULTS[name]
    text = _text(shown._repr_html_())
    assert "script" not in text.replace(EVIL, "")
    assert (EVIL in text) == (EVIL in repr(shown)) == (name != "nothing")


def test_stats_are_plain_data_that_reads_well() -> None:
    stats = counted()
    plain = dict(stats)
    assert stats == plain and stats["hits"] == 2 and json.loads(json.dumps(stats)) == json.loads(json.dumps(plain))
    copied = pickle.loads(pickle.dumps(stats))
    assert type(copied) is dict and copied == stats and type(copied["background"]) is list
    assert repr(stats).startswith("fxpool in this process: 2 hits of 3 graphs (67 %), 1 miss\n")
    assert f"fallbacks        {EVIL} 1" in repr(stats) and "hits 1" in repr(stats)
    assert EVIL in _text(ShownStats(stats)._repr_html_())
    assert max(map(len, repr(fxpool.stats()).splitlines())) <= 120


def test_the_types_name_each_item_of_the_results() -> None:
    stats = fxpool.stats()
    assert set(stats) == set(data.Stats.__annotations__)
    assert set(stats["compiles"]) == set(data.Compiles.__annotations__)
    assert set(stats["host"]) == set(data.HostStats.__annotations__)
    assert set(GRAPH) == set(data.BackgroundGraph.__annotations__)
    page = (ROOT / "docs" / "counters.md").read_text()
    assert [name for name in stats if f"`{name}`" not in page] == []


def test_background_graphs_in_a_terminal() -> None:
    first, head, row = repr(ShownGraphs([GRAPH])).splitlines()
    assert first == "graphs compiled in the background: failed 1"
    assert row.startswith(f"graph 0 {EVIL}  failed  eager            3               0  ") and row.endswith(
        f"KilledError: {EVIL}"
    )
    assert head.index("error") == row.index("KilledError")
    assert repr(fxpool.wait()) == "graphs compiled in the background: none"
    assert "the first 20:" in repr(ShownGraphs([GRAPH] * 30)) and len(repr(ShownGraphs([GRAPH] * 30)).split("\n")) == 22


def test_a_comparison_says_which_side_is_this_graph() -> None:
    assert repr(COMPARISON).splitlines() == [
        "nearest entry  2a742a742a74  f, a.py:3",
        "this graph     231623162316  f, a.py:3",
        f"  graph: {EVIL}: added: {EVIL}",
        "  equal: inputs",
    ]
    unnamed = Comparison("2a74" * 16, "2316" * 16, "f", "g", (), ())
    assert str(unnamed).splitlines() == ["2a742a742a74  f", "231623162316  g", "  only the function differs"]


def test_tables_have_aligned_columns() -> None:
    assert markup.text_table(("a", "b"), [("long", "x"), ("y", "")]) == "a     b\nlong  x\ny"
    assert markup.text_table((), []) == ""
    assert markup.text_table(("a", "n"), [("x", "10"), ("y", "5")], ("n",)) == "a   n\nx  10\ny   5"
    assert markup.grid(("a", "n"), [("x", "10")], ("n",)).count("text-align:right") == 2


def test_results_of_a_suite_are_read_for_a_notebook(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    line = {"case": "mlp", "mode": "training", "backend": "eager", "repetition": 1, "state": "done"}
    line["measured"] = {"median": 0.5, "samples": [0.5], "remarks": []}
    path.write_text(json.dumps({"format": 1, "suite": "mine"}) + "\n" + json.dumps(line) + "\n")
    found = report.read(path)
    assert repr(found).startswith("mine: 1 run; ") and re.search(r"^mlp +training +eager +500 ms", repr(found), re.M)


def test_the_report_in_a_notebook_has_footnotes_and_the_order_of_its_suite(tmp_path: Path) -> None:
    ended = [
        ("b", "training", "fxpool"),
        ("a", "dynamic", "other"),
        ("b", "training", "eager"),
        ("a", "dynamic", "eager"),
    ]
    lines: list[dict[str, Any]] = [{"format": 1, "suite": "mine", "cases": ["b", "a"]}]
    for case, mode, backend in ended:
        line = {"case": case, "mode": mode, "backend": backend, "repetition": 1, "state": "done", "first_call": 2.0}
        lines.append(
            line | {"measured": {"median": 0.5, "samples": [0.5], "remarks": ["calls vary: wait"]}, "beside": []}
        )
    path = tmp_path / "results.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    shown = repr(report.read(path))
    rows = [tuple(row.split()[:3]) for row in shown.splitlines()[2:6]]
    assert rows == [
        ("b", "training", "eager"),
        ("b", "training", "fxpool"),
        ("a", "dynamic", "eager"),
        ("a", "dynamic", "other"),
    ]
    assert shown.splitlines()[6:] == ["~  doubtful: see the notes of this row and of eager's", "1  calls vary: wait"]
    html = _text(report.read(path)._repr_html_())
    assert "doubtful: see" in html and html.endswith("1calls vary: wait")
    path.write_text("\n".join(map(json.dumps, [{"format": 1, "suite": "mine"}, *lines[1:]])))
    assert [row.split()[0] for row in repr(report.read(path)).splitlines()[2:6]] == ["b", "b", "a", "a"]


def test_each_refusal_is_explained_by_its_own_warning() -> None:
    with pytest.warns(RuntimeWarning):
        notices.switched_off("cache_directory_refused", "/a belongs to alice", about="/a")
        notices.switched_off("cache_directory_refused", "/b is not a directory", about="/b")
    counters.count("bypasses", "cache_directory_refused", n=3)
    counters.count("bypasses", "cache_off", n=3)
    (reason,) = fxpool.explain().reasons
    assert reason.counter == "switched_off" and reason.texts == ("/a belongs to alice", "/b is not a directory")
    assert "  /a belongs to alice\n  /b is not a directory\n" in str(reason) and reason.meaning


@pytest.mark.parametrize(
    ("traced", "why", "advice"),
    [
        (Traced(), "traced no function", "torch.compile alone traces nothing"),
        (Traced(2, 2), "compute nothing with tensors", "that does"),
        (Traced(3, 1, 0, ("a", "b", "c", "d")), "stopped while it traced 2 functions (of 3)", "fullgraph=True"),
        (Traced(3, 3, 2), "made 2 graphs, but gave none to fxpool", 'backend="fxpool"'),
        (Traced(3, 3, 2, (), "TORCH_COMPILE_DISABLE=1"), "TORCH_COMPILE_DISABLE=1 turns", "Remove"),
    ],
)
def test_why_no_graph_came(traced: Traced, why: str, advice: str) -> None:
    explained = process.why_no_graph(traced)
    assert why in explained.why and advice in explained.advice
    assert explained.breaks == (("a", "b", "c", "1 more") if traced.breaks else ())
    counters.record_graph({"label": "graph 0"})
    assert fxpool.explain().no_graph is None
