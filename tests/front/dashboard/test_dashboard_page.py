"""The dashboard in a real browser: Chromium from the distribution. With SCREENSHOTS set it leaves pictures there."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from chromium import chromium
from dashboard_place import EVIL, Place, dashboard, fill, place, pool

from fxpool.pool import JobSpec

COUNT = 1000
#: Schemes of inline data, and of icons that Chromium draws its controls with.
OF_THE_BROWSER = ("data:", "chrome:")


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with chromium(tmp_path_factory.mktemp("chromium"), 1280, 800) as driver:
        yield driver


@pytest.fixture(scope="module")
def here() -> Iterator[Place]:
    with place() as made:
        fill(made, COUNT - 1)
        fill(made, 1, first=5001, label=EVIL)
        yield made


@pytest.fixture(scope="module")
def address(here: Place) -> Iterator[str]:
    with dashboard(here) as found:
        yield found


@pytest.fixture
def sized(browser: Any) -> Iterator[Callable[[int, str], None]]:
    """Sets the width and the colour scheme for one test."""

    def size(width: int, scheme: str) -> None:
        media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
        metrics = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": False}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        wait(lambda: browser.execute_script("return innerWidth") == width)

    yield size
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


@pytest.fixture
def page(browser: Any, address: str) -> Iterator[Any]:
    """The page, with all entries; afterwards nothing was wrong with it, and nothing was asked of anybody else."""
    browser.get_log("performance")
    browser.get_log("browser")
    browser.get(address)
    wait(lambda: browser.execute_script("return state.rows.size") == COUNT)
    yield browser
    assert browser.get_log("browser") == []
    asked = []
    for entry in browser.get_log("performance"):
        message = json.loads(entry["message"])["message"]
        if message["method"] == "Network.requestWillBeSent":
            asked.append(message["params"]["request"]["url"])
    assert asked and [url for url in asked if not url.startswith((address, *OF_THE_BROWSER))] == []
    assert browser.title == "fxpool", "a name was run"


def wait(condition: Callable[[], object], seconds: float = 30.0) -> None:
    """Wait for something that happens soon; the limit is only there to end a broken test."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.05)


def press(page: Any, *keys: str) -> None:
    from selenium.webdriver.common.action_chains import ActionChains

    chain = ActionChains(page)
    for key in keys:
        chain = chain.send_keys(key)
    chain.perform()


def focused(page: Any) -> str:
    """What has the focus: its id, its class, or its name."""
    script = "const e = document.activeElement; return e.id || e.getAttribute('aria-label') || e.textContent"
    found: str = page.execute_script(script)
    return found


def text(page: Any, place: str) -> str:
    found: str = page.execute_script("return document.getElementById(arguments[0]).innerText", place)
    return found


def picture(page: Any, name: str) -> None:
    if place := os.environ.get("SCREENSHOTS"):
        page.save_screenshot(str(Path(place) / f"{name}.png"))


def rows(page: Any) -> list[list[str]]:
    """The rows of entries that are in the document, from top to bottom."""
    found: list[list[str]] = page.execute_script(
        "return [...document.querySelectorAll('#grid .row')].sort((a, b) => a.dataset.number - b.dataset.number)"
        ".map(row => [row.getAttribute('aria-rowindex'), ...[...row.children].map(cell => cell.textContent)])"
    )
    return found


@pytest.mark.slow
def test_a_job_is_followed_live(page: Any, here: Place, tmp_path: Path) -> None:
    assert "no server is running on this host" in text(page, "who")
    with pool(here) as client:
        mark = tmp_path / "mark"
        runs = client.submit("pool_jobs:wait_for_a_mark", str(mark).encode(), JobSpec(label=f"runs {EVIL}"))
        wait(mark.exists)
        waits = client.submit("pool_jobs:echo", b"", JobSpec(label="comes after"))
        wait(lambda: "comes after" in text(page, "jobs") and "waits for a free worker" in text(page, "jobs"))
        table = text(page, "jobs")
        assert f"runs {EVIL}" in table and f"worker {runs.worker_pid}" in table and str(os.getpid()) in table
        assert "workers busy\n1 of 1" in text(page, "gauges").replace("\n\n", "\n")
        wait(lambda: page.execute_script("return document.querySelectorAll('#timeline rect.run').length") == 1)
        before = page.execute_script("return +document.querySelector('#timeline rect.run').getAttribute('width')")
        wait(
            lambda: (
                page.execute_script("return +document.querySelector('#timeline rect.run').getAttribute('width')")
                > before
            )
        )
        drawn = "return /M.*L/.test(document.querySelector('#trend path.line')?.attributes.d.value)"
        wait(lambda: page.execute_script(drawn))
        picture(page, "live")
        mark.with_name("mark-go").touch()
        assert waits.result() == b""
        wait(lambda: page.execute_script("return document.querySelectorAll('#timeline rect.done').length") == 2)
        assert "no jobs running or waiting" in text(page, "jobs")
    wait(lambda: "no server is running on this host" in text(page, "who"))
    with pool(here) as client:
        client.start(wait=True)
        wait(lambda: f"server {client.server_pid}" in text(page, "who"))
    assert page.execute_script("return document.getElementById('link').textContent") == "live"


@pytest.mark.slow
def test_a_thousand_entries_are_a_few_rows(page: Any) -> None:
    assert text(page, "count") == f"{COUNT:,} entries"
    assert page.execute_script("return document.getElementById('grid').getAttribute('aria-rowcount')") == str(COUNT + 1)
    assert 10 < len(rows(page)) < 60
    # Frames go on while it scrolls from end to end, and each has the rows of its place.
    seen = page.execute_async_script("""
      const done = arguments[0], grid = document.getElementById("grid"), frames = [];
      const step = n => {
        grid.scrollTop = (grid.scrollHeight - grid.clientHeight) * n / 60;
        requestAnimationFrame(() => requestAnimationFrame(() => {
          const box = grid.getBoundingClientRect();
          const inside = [...grid.querySelectorAll(".row")].filter(row => {
            const at = row.getBoundingClientRect(); return at.bottom > box.top + 30 && at.top < box.bottom - 1;
          });
          frames.push([grid.querySelectorAll(".row").length, inside.length]);
          n < 60 ? step(n + 1) : done(frames);
        }));
      };
      step(0);
    """)
    assert len(seen) == 61
    assert all(count < 60 and inside >= 10 for count, inside in seen), seen
    assert rows(page)[-1][0] == str(COUNT + 1), "the last one is there at the end"


def test_entries_are_found_and_sorted(page: Any) -> None:
    from selenium.webdriver.common.keys import Keys

    press(page, "/", "graph_99")
    wait(lambda: text(page, "count") == "10 of 1,000 entries")
    wait(lambda: {row[1][:8] for row in rows(page)} == {"graph_99"})  # in the next frame
    press(page, Keys.ESCAPE)
    wait(lambda: text(page, "count") == "1,000 entries")
    press(page, "differs:inputs")
    wait(lambda: text(page, "count") == "333 of 1,000 entries")
    press(page, Keys.ESCAPE)
    (head,) = [one for one in page.find_elements("css selector", "#grid .head button") if one.text == "function"]
    head.click()
    wait(lambda: rows(page)[0][1].startswith("<script>"))
    head.click()
    wait(lambda: rows(page)[0][1] == "graph_997")
    assert page.execute_script("return arguments[0].parentElement.getAttribute('aria-sort')", head) == "descending"


def test_an_unreadable_entry_is_found_by_that_word(page: Any) -> None:
    page.execute_script("""
      const usual = {key: "ab", name: "cd", readable: false, label: "", function: "", place: "", inputs: "", torch: ""};
      take({rows: [{...usual, created: 1, used: 1, seconds: 0, bytes: 9, guards: 0, uses: 0, why: []}]});
    """)
    press(page, "/", "unreadable")
    wait(lambda: text(page, "count") == "1 of 1,001 entries")
    wait(lambda: [row[1] for row in rows(page)] == ["(unreadable)"])


#: The totals: by name, the value and the note. Then the texts of the header and of the gauges.
TOTALS = """
const cells = tile => ["dt", "dd", "small"].map(name => tile.querySelector(name).textContent);
const tiles = [...document.querySelectorAll(".tile")].map(cells).map(([name, ...values]) => [name, values]);
return [Object.fromEntries(tiles), ...["who", "gauges"].map(id => document.getElementById(id).innerText)];
"""
#: Servers as the dashboard sends them, and jobs that ended in several ways.
SERVERS = """
const server = pid => ({
  state: "running", server_pid: pid, name: "5685" + pid, slots: 2, slots_free: 1, slots_rule: "CPU affinity", queued: 3,
  counters: {jobs: 10, joined: 4, deaths: 2}, memory: {server: 1, zygote: 1, workers: 1}, running: [], waiting: [],
  limits: {host_used: .5, host_bytes: 9, host_used_of: "memory", host_mark: .9, job_bytes: 9, rules: {}},
  clients: [], zygote: {state: "ready"}, seconds: 180,
});
"""
JOBS = """
const usual = {server: "one", label: "softmax_of_differences_of_a_very_long_name [0/0]", attempts: 1, part_of: 0};
const at = now(), job = (number, how, phases) => ({
  ...usual, job: number, how, phases, queued: at - 200, begun: at - 190, ended: at - 20, worker: 12, askers: [34, 56],
  memory: 1 << 30, reason: how === "died" ? "the worker was killed by signal 9 (SIGKILL)" : "",
});
const kernels = [["kernels", at - 120]];
take({jobs: [job(1, "done", kernels), job(2, "died", []), job(3, "cancelled", []), job(4, "lost", [])]});
"""


def test_totals_of_servers(page: Any) -> None:
    def unknown() -> bool:
        shown = page.execute_script(TOTALS)[0]
        return all(shown.get(name) == ["–", ""] for name in ("requests", "workers busy", "waiting"))

    wait(unknown)
    whole = page.find_element("css selector", "body").text
    assert whole.count("no server is running") == 1, "it is said more than once"
    # In one script, as the next message has the real servers.
    more = SERVERS + "take({servers: [server(76), server(77)]}); render();"
    shown, who, gauges = page.execute_script(more + TOTALS)
    assert shown["requests"] == ["20", "8 joined another job"] and shown["waiting"] == ["6", "in the queue"]
    assert shown["workers busy"] == ["2 of 4", "4 workers died"] and "server 76, up 3 min" in who
    assert "server 76: workers busy" in gauges and "server 77: largest job" in gauges and "5685" not in gauges


@pytest.mark.parametrize("width", [1280, 380])
def test_jobs_that_ended_are_told_apart(page: Any, sized: Callable[[int, str], None], width: int) -> None:
    sized(width, "light")
    page.execute_script(JOBS + "render()")
    assert "Latest jobs" in text(page, "jobs") and "outcome" in text(page, "jobs")
    wide = "return Math.min(...[...document.querySelectorAll('#jobs td.j')].map(cell => cell.clientWidth))"
    assert page.execute_script(wide) >= 144, "a name is broken after every second letter"
    drawn = page.execute_script("""
      const fill = (selector, name) => getComputedStyle(document.querySelector(selector))[name];
      return {
        gone: document.querySelectorAll("#timeline rect.gone").length,
        same: fill("#timeline rect.gone", "fill") === fill(".legend .k-gone", "backgroundColor"),
        crossed: [...document.querySelectorAll("#timeline .phase")].filter(
          mark => +mark.getAttribute("y1") <= +mark.parentElement.querySelector("text.label").getAttribute("y")).length,
        marks: document.querySelectorAll("#timeline .phase").length,
      };
    """)
    assert drawn == {"gone": 2, "same": True, "crossed": 0, "marks": 1}


def test_an_empty_store_is_no_success(browser: Any) -> None:
    with place() as empty, dashboard(empty) as address:
        browser.get(address)
        wait(lambda: "nothing was compiled yet" in text(browser, "why"))
        assert "each function was compiled once" not in text(browser, "why") and "first of" not in text(browser, "why")
        assert browser.execute_script("return document.getElementById('grid').clientHeight") < 120
        browser.get("about:blank")


def test_the_title_of_an_entry_is_never_cut(page: Any, sized: Callable[[int, str], None]) -> None:
    sized(380, "light")
    page.execute_script("""
      const long = "softmax_of_differences_of_a_very_long_function_name_for_scaled_dot_products".repeat(2);
      open({...[...state.rows.values()][0], function: long});
    """)
    wait(lambda: "Components of the key" in text(page, "detail"))
    over = "const e = document.querySelector(arguments[0]); return e.scrollWidth - e.clientWidth"
    assert page.execute_script(over, "#detail") <= 0 and page.execute_script(over, "#detail-title") <= 0


def test_everything_is_reached_by_keys(page: Any) -> None:
    from selenium.webdriver.common.keys import Keys

    wait(lambda: page.execute_script("return document.querySelectorAll('#timeline svg').length") == 1)
    page.execute_script("document.body.focus(); window.scrollTo(0, 0)")
    seen = []
    for _ in range(40):
        press(page, Keys.TAB)
        seen.append(focused(page))
        ring = page.execute_script(
            "const e = document.activeElement, s = getComputedStyle(e);"
            "return e === document.body || (s.outlineStyle !== 'none' && parseFloat(s.outlineWidth) >= 2)"
        )
        assert ring, f"no focus is visible on {seen[-1]}"
        if seen[-1].startswith("row-"):
            break
    assert seen[0] == "Skip to the entries" and {"span", "jobs", "served-span", "search", "function", "row-0"} <= set(
        seen
    )
    press(page, Keys.ARROW_DOWN, Keys.ARROW_DOWN, Keys.PAGE_DOWN, Keys.ARROW_UP)
    at = int(focused(page).removeprefix("row-"))
    assert at > 5
    press(page, Keys.END)
    assert focused(page) == f"row-{COUNT - 1}"
    press(page, Keys.HOME)
    assert focused(page) == "row-0"
    press(page, Keys.ARROW_DOWN, Keys.ENTER)
    wait(lambda: "Components of the key" in text(page, "detail"))
    assert page.execute_script("return document.getElementById('detail').contains(document.activeElement)")
    press(page, "/")
    assert focused(page) != "search", "the page behind a dialog has no keys"
    press(page, Keys.ESCAPE)
    wait(lambda: focused(page) == "row-1")
    assert not page.execute_script("return document.getElementById('detail').open")


def test_a_name_is_text_wherever_it_stands(page: Any) -> None:
    from selenium.webdriver.common.keys import Keys

    press(page, "/", "5001", Keys.ARROW_DOWN, Keys.ENTER)
    wait(lambda: "Components of the key" in text(page, "detail"))
    assert text(page, "detail").startswith(f"{EVIL}_5001")
    assert page.execute_script("return document.querySelectorAll('main script, dialog script, img').length") == 0
    button = next(one for one in page.find_elements("css selector", "#detail button") if one.text.startswith("Show"))
    button.click()
    wait(lambda: "the entry holds no generated code" in text(page, "detail"), 90)
    picture(page, "detail")
    press(page, Keys.ESCAPE)


# For each element with text of its own: the ratio of its colour to what is behind it (WCAG 2, relative luminance).
CONTRAST = """
const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
const rgba = colour => {
  canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1);
  return [...canvas.getImageData(0, 0, 1, 1).data];
};
const linear = v => v <= .03928 * 255 ? v / 255 / 12.92 : ((v / 255 + .055) / 1.055) ** 2.4;
const luminance = ([r, g, b]) => .2126 * linear(r) + .7152 * linear(g) + .0722 * linear(b);
const ratio = (front, back) => {
  const [a, b] = [luminance(front), luminance(back)].sort((x, y) => y - x);
  return (a + .05) / (b + .05);
};
const behind = e => {
  for (; e; e = e.parentElement) {
    const colour = rgba(getComputedStyle(e).backgroundColor);
    if (colour[3] === 255) return colour;
  }
  return [255, 255, 255, 255];
};
const found = [];
for (const e of document.querySelectorAll("body *")) {
  const own = [...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim());
  const unseen = ["SCRIPT", "STYLE", "OPTION", "title"].includes(e.tagName) || !e.getClientRects().length;
  if (!own || unseen) continue;
  const style = getComputedStyle(e), drawn = e.namespaceURI.endsWith("svg");
  const bar = drawn && e.classList.contains("label") ? e.parentElement.querySelector("rect:not(.waits)") : null;
  const back = bar ? rgba(getComputedStyle(bar).fill) : behind(e);
  found.push([ratio(rgba(drawn ? style.fill : style.color), back), e.textContent.trim().slice(0, 40)]);
}
const search = document.getElementById("search");
found.push([ratio(rgba(getComputedStyle(search, "::placeholder").color), behind(search)), "the search's hint"]);
return [getComputedStyle(document.body).backgroundColor, found];
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 380])
def test_it_can_be_read(page: Any, sized: Callable[[int, str], None], scheme: str, width: int) -> None:
    sized(width, scheme)
    wait(lambda: len(rows(page)) > 5 and "inputs" in text(page, "why"))
    # In one script each, as the next message replaces the failures.
    more = JOBS + "take({failures: [{at: 1, label: 'g', what: 'w '.repeat(60), why: 'y '.repeat(60)}]}); render();"
    ground, found = page.execute_script(more + CONTRAST)
    assert (sum(map(int, ground[4:-1].split(","))) < 200) is (scheme == "dark")
    assert len(found) > 60
    assert [pair for pair in found if pair[0] < 4.5] == []
    wide = page.execute_script("return document.documentElement.scrollWidth")
    assert wide <= width, "nothing sticks out"
    shown = "[...document.querySelectorAll('#why .scroll, .tile small')]"
    beyond = f"return {shown}.filter(e => e.scrollWidth > e.clientWidth).map(e => e.textContent)"
    assert page.execute_script(more + beyond) == [], "it is cut, or scrolls sideways"
    picture(page, f"{scheme}-{width}")
