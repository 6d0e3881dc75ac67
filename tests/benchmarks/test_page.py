"""The report's page, in a real browser: Chromium from the distribution."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from chromium import chromium

from fxpool.bench import page, report
from fxpool.bench.case import Run
from fxpool.bench.results import Record

HEAD = {
    "suite": "mine",
    "machine": {"cpu": "A processor", "cores": 2, "memory": 8 << 30, "versions": {"torch": "2.13.0"}},
}
EVIL = "</script><img src=x onerror=\"document.title='broken'\">"


def record(case: str, mode: str, backend: str, median: float | None, **facts: Any) -> Record:
    measured = (
        {"median": median, "samples": [median * (1 + 0.001 * n) for n in range(20)], "remarks": []} if median else None
    )
    facts.setdefault("state", "done" if median else "failed")
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
    found: list[list[str]] = opened.execute_script(script, f"#{table} tbody tr")
    return found


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
    assert shown[1][4] == "1.00 ms" and shown[1][5].startswith("4.00 (") and shown[1][9] == "12.5 s"
    assert "in shape or" in shown[3][12] and "9000 MB" in shown[4][12]
    assert opened.find_element("id", "count").text == "6 of 6"
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
    assert opened.find_element("id", "count").text == "1 of 6"


def test_changes_are_shown(opened: Any) -> None:
    shown = rows(opened, "changes")
    assert shown[0][:3] == ["small", "inference", "fxpool"] and shown[0][6] == "slower"
    assert [row[6] for row in shown[1:]] == ["same"] * 3
    head(opened, "verdict", "changes").click()
    assert rows(opened, "changes")[0][6] == "same"


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
