"""The files beside the page: pictures whose words are all on them, and what pyperf reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyperf
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from test_page import HEAD, record

from fxpool.bench import plots, report
from fxpool.bench.case import Run
from fxpool.bench.results import Record, pyperf_json


def records(long: str = "a small one") -> dict[Run, Record]:
    every = [
        record(long, "inference", "eager", 4e-3),
        record(long, "inference", "fxpool", 1e-3, warm_call=0.5),
        record(long, "inference", "inductor", 2e-3, warm_call=1.5),
        record("another", "training", "eager", 2.0),
        record("another", "training", "a backend of somebody's", 2.5),
        record("broken", "training", "fxpool", None),
    ]
    return {one.run: one for one in every}


def test_lines_know_what_caches_saved() -> None:
    saved = {(line.case, line.backend): (line.warm_call, line.saved) for line in report.lines(records())}
    assert saved["a small one", "fxpool"] == (0.5, 2.5)
    assert saved["a small one", "eager"] == (None, None)
    headings = [str(column.header) for column in report.table(records()).columns]
    assert "warm" in headings and "saved" in headings


def test_what_others_may_have_made_is_drawn_as_no_lead(tmp_path: Path) -> None:
    remarks = ["other processes kept 1.0 cores busy: wait"]
    every = [
        record("a", "inference", "eager", 4e-3),
        record("a", "inference", "fxpool", 1e-3, beside=["a/inference/inductor ran: --jobs 1 measures it alone"]),
        record("a", "inference", "inductor", 2e-3, remarks=remarks),
        record("b", "inference", "inductor", 2e-3),
    ]
    lines = report.lines({one.run: one for one in every})
    ours = [line for line in lines if line.speedup is not None]
    figure = plots._figure(ours)
    plots._speedups(figure, ours)
    certain, doubtful = figure.axes[0].patches
    assert not certain.get_hatch() and doubtful.get_hatch()
    assert [text.get_text() for text in figure.axes[0].texts] == ["inductor"]
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert legend[0] == "fxpool" and legend[1].startswith("doubtful")
    assert [path.name for path in plots.draw(lines, tmp_path)] == ["speedups.png", "first-calls.png"]
    beside = [line for line in lines if line.beside]
    assert [line.backend for line in beside] == ["fxpool"]
    assert [path.name for path in plots.draw(beside, tmp_path)] == ["speedups.png"]
    assert not (tmp_path / "first-calls.png").exists(), "a picture of earlier results is left"


def test_speedups_are_drawn_from_1_on_a_logarithmic_scale() -> None:
    every = [
        record("a", "inference", "eager", 1.0),
        record("a", "inference", "fxpool", 1 / 35),
        record("a", "inference", "inductor", 50.0),
        record("b", "inference", "eager", 1.0),
        record("b", "inference", "fxpool", 0.5, state="wrong", difference=0.5),
    ]
    ours = [line for line in report.lines({one.run: one for one in every}) if line.speedup is not None]
    figure = plots._figure(ours)
    plots._speedups(figure, ours)
    (axes,) = figure.axes
    assert axes.get_xscale() == "log"
    fast, slow, wrong = axes.patches
    assert [bar.get_x() for bar in axes.patches] == pytest.approx([1.0] * 3)
    assert fast.get_width() == pytest.approx(34, rel=0.01) and slow.get_width() == pytest.approx(-0.98)
    low, high = axes.get_xlim()
    assert low < 0.02 < 35 < high
    marks = [axes.xaxis.get_major_formatter()(at, 0) for at in axes.get_xticks() if low <= at <= high]
    assert {"0.05", "1", "20"} <= set(marks), "powers are not easy to read"
    assert not fast.get_hatch() and not slow.get_hatch() and wrong.get_hatch()
    assert wrong.get_facecolor() != fast.get_facecolor()
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert legend == ["fxpool", "inductor", "wrong outputs"]


def test_pictures_are_drawn(tmp_path: Path) -> None:
    made = plots.draw(report.lines(records()), tmp_path)
    assert [path.name for path in made] == ["speedups.png", "first-calls.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in made)
    eager_only = {run: one for run, one in records().items() if run.backend == "eager"}
    assert plots.draw(report.lines(eager_only), tmp_path) == [], "a picture of nothing"


@pytest.mark.parametrize("fill", [plots._speedups, plots._first_calls])
def test_all_words_are_on_the_picture(fill: Any) -> None:
    lines = [one for one in report.lines(records("a case with a name that goes on for a while")) if one.speedup]
    figure = plots._figure(lines)
    fill(figure, lines)
    # Some releases of matplotlib have no types here.
    canvas: Any = FigureCanvasAgg(figure)
    canvas.draw()
    width, height = canvas.get_width_height()
    (axes,) = figure.axes
    low, high = axes.get_xlim()
    marks = [tick.label1 for tick in axes.xaxis.get_major_ticks() if low <= tick.get_loc() <= high]
    words = [axes.title, axes.xaxis.label, *axes.get_yticklabels(), *marks]
    words += [text for legend in figure.legends for text in legend.get_texts()]
    boxes = [(word.get_text(), word.get_window_extent()) for word in words if word.get_text()]
    assert len(boxes) > 6
    for text, box in boxes:
        assert box.x0 >= 0 and box.y0 >= 0 and box.x1 <= width and box.y1 <= height, text
    assert axes.get_window_extent().width > width / 3, "no room is left for bars"


def test_pyperf_reads_the_times(tmp_path: Path) -> None:
    path = tmp_path / "times.json"
    again = Run("a small one", "inference", "fxpool", 2)
    there = {**records(), again: record("a small one", "inference", "fxpool", 3e-3)}
    path.write_text(pyperf_json(HEAD, there))
    suite = pyperf.BenchmarkSuite.load(str(path))
    assert len(suite.get_benchmarks()) == 5
    ours = suite.get_benchmark("a small one/inference/fxpool")
    assert ours.get_nrun() == 2 and ours.get_nvalue() == 40 and ours.median() == pytest.approx(2e-3, rel=0.03)
    assert suite.get_metadata()["cpu_model_name"] == "A processor"
    assert json.loads(path.read_text())["benchmarks"][0]["runs"][0]["values"]
    with pytest.raises(ValueError, match="nothing was measured"):
        pyperf_json(HEAD, {})
