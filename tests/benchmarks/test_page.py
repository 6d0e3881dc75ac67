"""The report's page, in a real browser: Chromium from the distribution."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from chromium import chromium

from fxpool.bench import page, report
from fxpool.bench.case import Run
from fxpool.bench.measurement.result import in_seconds
from fxpool.bench.results import Record

HEAD = {
    "suite": "mine",
    "machine": {"cpu": "A processor", "cores": 2, "memory": 8 << 30, "versions": {"torch": "2.13.0"}},
}
EVIL = "</script><img src=x onerror=\"document.title='broken'\">"


def record(case: str, mode: str, backend: str, median: float | None, **facts: Any) -> Record:
    measured = None
    if median:
        samples = [median * (1 + 0.001 * n) for n in range(20)]
        measured = {"median": median, "samples": samples, "remarks": facts.pop("remarks", [])}
    facts = {"state": "done" if median else "failed", "beside": [], "warm_beside": [], **facts}
    return Record(Run(case, mode, backend), measured=measured, first_call=3.0, **facts)


def records() -> dict[Run, Record]:
    every = [
        record("small", "inference", "eager", 4e-3),
        record("small", "inference", "fxpool", 1e-3, stats={"seconds_saved": 12.5}),
        record("large", "training", "eager", 2.0),
        record("large", "training", "inductor", 2.5, state="wrong", difference=float("inf")),
        record("large", "training", "fxpool", None, state="memory", reason="it took 9000 MB of 8000"),
        record("odd", "dynamic", "fxpool", None, reason=f"ValueError: {EVIL}\nTraceback, line two"),
    ]
    return {one.run: one for one in every}


def test_the_page_is_one_file_and_says_all() -> None:
    text = page.page(HEAD, records())
    assert "@DATA@" not in text and EVIL not in text
    inner = text.split('<script type="application/json" id="data">')[1].split("</script>")[0]
    data = json.loads(inner)
    assert [(line["case"], line["backend"], line["state"]) for line in data["lines"]] == [
        ("small", "eager", "done"),
        ("small", "fxpool", "done"),
        ("large", "eager", "done"),
        ("large", "inductor", "wrong"),
        ("large", "fxpool", "memory"),
        ("odd", "fxpool", "failed"),
    ]
    assert data["lines"][1]["saved"] == 12.5 and data["lines"][5]["reason"].startswith(f"ValueError: {EVIL}")
    assert data["machine"] == "A processor; 2 cores; 8 GB; torch 2.13.0"
    assert "http://" not in text and "https://" not in text


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with chromium(tmp_path_factory.mktemp("chromium"), 1500, 1000) as driver:
        yield driver


@pytest.fixture
def opened(browser: Any, tmp_path: Path) -> Any:
    new = records()
    old = dict(new)
    old[Run("small", "inference", "fxpool")] = record("small", "inference", "fxpool", 0.5e-3)
    path = tmp_path / "report.html"
    path.write_text(page.page(HEAD, new, report.changes(old, new, 0.02)), encoding="utf-8")
    browser.get(path.as_uri())
    return browser


def rows(opened: Any, table: str = "cases") -> list[list[str]]:
    script = "return [...document.querySelectorAll(arguments[0])].map(r => [...r.cells].map(c => c.innerText.trim()))"
    found: list[list[str]] = opened.execute_script(script, f"#{table} tbody tr:not(.notes)")
    return found


def notes(opened: Any) -> list[str]:
    """The notes below the rows that have any."""
    return [cell.text for cell in opened.find_elements("css selector", "#cases tr.notes td")]


def head(opened: Any, title: str, table: str = "cases") -> Any:
    (found,) = [cell for cell in opened.find_elements("css selector", f"#{table} th") if cell.text.startswith(title)]
    return found


def test_every_case_is_in_it(opened: Any) -> None:
    shown = rows(opened)
    assert [row[:4] for row in shown] == [
        ["small", "inference", "eager", "done"],
        ["small", "inference", "fxpool", "done"],
        ["large", "training", "eager", "done"],
        ["large", "training", "inductor", "wrong"],
        ["large", "training", "fxpool", "memory"],
        ["odd", "dynamic", "fxpool", "failed"],
    ]
    assert shown[1][4] == "1.00 ms" and shown[1][5].startswith("4.00 (") and shown[1][7] == "12.5 s"
    wrong, killed, failed = notes(opened)
    assert "in shape or" in wrong and "9000 MB" in killed and failed.startswith("ValueError")
    assert opened.find_element("id", "count").text == "6 of 6 rows"
    assert opened.find_element("id", "title").text == "mine: 3 cases, 6 runs"
    assert opened.title == "mine, fxpool bench", "what a case raised was run"


def test_columns_sort(opened: Any) -> None:
    head(opened, "per call").click()
    assert [row[4] for row in rows(opened)] == ["1.00 ms", "4.00 ms", "2.00 s", "2.50 s", "", ""]
    head(opened, "per call").click()
    assert [row[4] for row in rows(opened)] == ["2.50 s", "2.00 s", "4.00 ms", "1.00 ms", "", ""]
    assert head(opened, "per call").get_attribute("aria-sort") == "descending"
    head(opened, "case").click()
    assert [row[0] for row in rows(opened)] == ["large"] * 3 + ["odd"] + ["small"] * 2


def test_rows_are_filtered(opened: Any) -> None:
    text = opened.find_element("id", "text")
    text.send_keys("TRACEBACK")
    assert [row[0] for row in rows(opened)] == ["odd"]
    text.clear()
    text.send_keys("x")
    text.send_keys("\b")
    for name, value, expected in (("backend", "fxpool", 3), ("mode", "training", 1), ("state", "memory", 1)):
        opened.execute_script(
            "const s = document.getElementById(arguments[0]); s.value = arguments[1];"
            "s.dispatchEvent(new Event('input', {bubbles: true}))",
            name,
            value,
        )
        assert len(rows(opened)) == expected
    assert opened.find_element("id", "count").text == "1 of 6 rows"


def test_changes_are_shown(opened: Any) -> None:
    shown = rows(opened, "changes")
    assert shown[0][:3] == ["small", "inference", "fxpool"] and shown[0][6] == "slower"
    assert [row[6] for row in shown[1:]] == ["same"] * 3
    head(opened, "verdict", "changes").click()
    assert rows(opened, "changes")[0][6] == "same"


@pytest.fixture
def sized(opened: Any) -> Iterator[Callable[[int, str], None]]:
    """Sets the browser's width and colour scheme for one test."""

    def size(width: int, scheme: str = "light") -> None:
        metrics = {"width": width, "height": 1000, "deviceScaleFactor": 1, "mobile": False}
        opened.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        opened.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    yield size
    opened.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    opened.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


@pytest.mark.parametrize("width", [1024, 1280, 1440])
def test_every_column_fits(opened: Any, sized: Callable[[int, str], None], tmp_path: Path, width: int) -> None:
    """With all columns, doubts and a long name."""
    beside = ["scaled_dot_product/training/inductor, softmax/dynamic/fxpool ran: --jobs 1 times it alone"]
    every = [
        record("scaled_dot_product", "inference", "eager", 4e-3, peak=123 << 30),
        record("scaled_dot_product", "inference", "inductor", 2.222e-5, warm_call=222.0, beside=beside, peak=123 << 30),
        record("scaled_dot_product", "inference", "fxpool", 1e-5, warm_call=2.0, difference=1e-7, remarks=["x " * 200]),
    ]
    path = tmp_path / "wide.html"
    path.write_text(page.page(HEAD, {one.run: one for one in every}), encoding="utf-8")
    for scheme in ("light", "dark"):
        sized(width, scheme)
        opened.get(path.as_uri())
        assert rows(opened)[1][6:8] == ["3.00 s*", "222 s*"]
        over = "const s = document.querySelector('.scroll'); return s.scrollWidth - s.clientWidth"
        assert opened.execute_script(over) == 0
        assert opened.execute_script("return document.documentElement.scrollWidth") <= width
        if place := os.environ.get("SCREENSHOTS"):
            opened.save_screenshot(str(Path(place) / f"report-{width}-{scheme}.png"))


def test_figures_that_others_may_have_made_are_no_leads(opened: Any, tmp_path: Path) -> None:
    every = [
        record("a", "inference", "eager", 4e-3, remarks=["other processes kept 1.0 cores busy: wait"]),
        record("a", "inference", "inductor", 1e-3, beside=["a/inference/fxpool ran: --jobs 1 times it alone"]),
        record("b", "inference", "eager", 4e-3),
        record("b", "inference", "fxpool", 1e-3),
        record("c", "inference", "fxpool", 1e-3, beside=None),
    ]
    path = tmp_path / "report.html"
    path.write_text(page.page(HEAD, {one.run: one for one in every}), encoding="utf-8")
    opened.get(path.as_uri())
    speedups = [row[5].split("\n")[0] for row in rows(opened)]
    assert [text[:5] for text in speedups] == ["", "~4.00", "", "4.00 ", ""]
    assert [row[6] for row in rows(opened)] == ["3.00 s", "3.00 s*", "3.00 s", "3.00 s", "3.00 s*"]
    bars = opened.find_elements("css selector", ".bar i")
    assert [bar.get_attribute("class") for bar in bars] == ["doubtful", ""]
    assert notes(opened)[1] == "during the first call, a/inference/fxpool ran: --jobs 1 times it alone"
    assert "measure again" in notes(opened)[2]


def test_wrong_results_do_not_look_good(opened: Any, tmp_path: Path) -> None:
    """And bars begin at 1, on a scale on which slow results have a length, too."""
    every = [
        record("a", "inference", "eager", 1.0),
        record("a", "inference", "fxpool", 0.02),
        record("a", "inference", "inductor", 50.0),
        record("b", "inference", "eager", 1.0),
        record("b", "inference", "fxpool", 0.1, state="wrong", difference=0.5),
    ]
    path = tmp_path / "report.html"
    path.write_text(page.page(HEAD, {one.run: one for one in every}), encoding="utf-8")
    opened.get(path.as_uri())
    bars = opened.find_elements("css selector", ".bar i")
    assert [bar.get_attribute("class") for bar in bars] == ["", "slow", "wrong"]
    fast, slow, wrong = (bar.rect for bar in bars)
    (middle, *_) = (mark.rect["x"] for mark in opened.find_elements("css selector", ".bar u"))
    assert fast["x"] == pytest.approx(middle, abs=1) == pytest.approx(slow["x"] + slow["width"], abs=1)
    assert fast["width"] == pytest.approx(slow["width"], rel=0.05) and wrong["width"] > fast["width"] / 2
    colours = [bar.value_of_css_property("background-color") for bar in bars]
    assert len(set(colours)) == 3, "a wrong result is as green as a fast one"
    assert "its outputs are wrong" in opened.find_element("css selector", ".help").text


def test_marks_and_columns_are_explained_if_they_are_there(opened: Any, tmp_path: Path) -> None:
    help_of_hits = opened.find_element("css selector", ".help").text
    assert "saved: " in help_of_hits and "warm: " not in help_of_hits and "its outputs are wrong" in help_of_hits
    path = tmp_path / "report.html"
    for stats, warm, expected in (({}, None, []), ({"seconds_saved": 0.0}, 1.0, ["warm", "saved"])):
        one = record("a", "inference", "fxpool", 1.0, warm_call=warm, stats=stats)
        path.write_text(page.page(HEAD, {one.run: one}), encoding="utf-8")
        opened.get(path.as_uri())
        shown = opened.find_element("css selector", ".help").text
        assert [name for name in ("warm", "saved") if f"{name}: " in shown] == expected
        assert "its outputs are wrong" not in shown
    nothing = record("a", "inference", "fxpool", 1.0, stats={"seconds_saved": 0.0})
    path.write_text(page.page(HEAD, {nothing.run: nothing}), encoding="utf-8")
    opened.get(path.as_uri())
    assert rows(opened)[0][7] == "0 s" == in_seconds(0.0)


def test_notes_can_be_read_on_a_phone(opened: Any, sized: Callable[[int, str], None], tmp_path: Path) -> None:
    long = ["other processes kept 1.2 cores busy, most of them cc1plus (pid 71): measure when it is idle"]
    every = [
        record("scaled_dot_product", "inference", "eager", 4e-3, peak=123 << 30, remarks=long),
        record("scaled_dot_product", "inference", "fxpool", 1e-5, warm_call=2.0, peak=123 << 30, remarks=long),
        record("scaled_dot_product", "training", "fxpool", None, reason="ValueError: " + "on purpose " * 20),
    ]
    path = tmp_path / "report.html"
    path.write_text(page.page(HEAD, {one.run: one for one in every}), encoding="utf-8")
    sized(390, "light")
    opened.get(path.as_uri())
    for left in (0, 200):
        opened.execute_script("document.querySelector('.scroll').scrollLeft = arguments[0]", left)
        boxes = [note.rect for note in opened.find_elements("css selector", "#cases tr.notes td > div")]
        assert len(boxes) == 3 and all(box["x"] >= 0 and box["x"] + box["width"] <= 390 for box in boxes), boxes


def test_nothing_leaves_the_page_and_nothing_is_wrong_with_it(opened: Any, tmp_path: Path) -> None:
    opened.get_log("performance")
    opened.refresh()
    asked = []
    for entry in opened.get_log("performance"):
        message = json.loads(entry["message"])["message"]
        if message["method"] == "Network.requestWillBeSent":
            asked.append(message["params"]["request"]["url"])
    assert asked and all(address.startswith("file:") and address.endswith("report.html") for address in asked)
    assert opened.get_log("browser") == []
    if place := os.environ.get("SCREENSHOTS"):
        opened.save_screenshot(str(Path(place) / "report.png"))
