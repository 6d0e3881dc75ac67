"""What all commands have in common: exit statuses, one prefix, streams that break, `status --watch` in a pipe."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from fxpool.commands import output, server
from fxpool.commands.main import main

COMMANDS = [["stats"], ["stats", "--json"], ["cache", "ls"], ["status"], ["cache", "verify"], ["--help"], ["--version"]]


def start(python: str, *arguments: str, **kwargs: Any) -> subprocess.Popen[str]:
    return subprocess.Popen([python, "-m", "fxpool", *arguments], text=True, **kwargs)


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_a_full_output_is_said_in_a_line(python: str, arguments: list[str]) -> None:
    with open("/dev/full", "w") as full, start(python, *arguments, stdout=full, stderr=subprocess.PIPE) as running:
        _, said = running.communicate()
    assert said == "fxpool: cannot write the output: No space left on device\n"
    assert running.returncode == 1


def test_nothing_can_be_said_where_errors_are_full_too(python: str) -> None:
    with open("/dev/full", "w") as full, start(python, "stats", stdout=full, stderr=full) as running:
        pass
    assert running.returncode == 1


def test_without_streams_a_command_works(python: str) -> None:
    for closed in ("0", "1", "2"):
        done = subprocess.run(
            ["sh", "-c", f'exec "$0" -m fxpool cache ls {closed}>&-', python], capture_output=True, text=True
        )
        assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("arguments", [["status", "--watch"], ["status", "--watch", "--json"]], ids=" ".join)
def test_who_stops_reading_ends_it_in_silence(python: str, arguments: list[str], tmp_path: Path) -> None:
    (tmp_path / "r" / "host-x.socket").symlink_to("nowhere")  # a server that is gone: something is said of it
    try:
        with start(python, *arguments, "--interval", "10ms", stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
            assert running.stdout is not None and running.stderr is not None
            assert running.stdout.readline()
            running.stdout.close()
            said = running.stderr.read()
        assert (running.returncode, said) == (141, "")
    finally:
        (tmp_path / "r" / "host-x.socket").unlink()


def test_watching_in_a_pipe_is_lines_without_control_sequences(python: str) -> None:
    with start(
        python, "status", "--watch", "--interval", "0.05s", stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as running:
        assert running.stdout is not None and running.stderr is not None
        lines = [running.stdout.readline() for _ in range(6)]
        running.send_signal(signal.SIGINT)
        rest = running.stdout.read()
        assert running.stderr.read() == ""
    text = "".join(lines) + rest
    assert "\x1b" not in text and "\r" not in text
    assert [bool(re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d$", line)) for line in lines] == [True, False] * 3
    assert all("no server" in line for line in lines[1::2])
    assert running.returncode == 0


@pytest.mark.parametrize("interval", ["-1", "0", "nan", "soon", ""])
def test_an_interval_is_a_time(interval: str) -> None:
    result = CliRunner().invoke(main, ["status", "--watch", "--interval", interval])
    assert result.exit_code == 2 and isinstance(result.exception, SystemExit)
    assert result.stderr.startswith("fxpool: ") and f"{interval!r} is not a time of more than 0" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nothing"], "No such command 'nothing'"),
        (["stats", "--nothing"], "No such option"),
        (["cache", "show"], "Missing argument"),
        (["demo", "--backends", ","], "name at least one backend"),
    ],
)
def test_mistakes_have_one_prefix(arguments: list[str], said: str) -> None:
    result = CliRunner().invoke(main, arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("fxpool: ") and said in result.stderr
    assert "--help` lists arguments and options" in result.stderr and "Usage" not in result.stderr


def test_ctrl_c_is_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(_: Path) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(server, "_shown", stopped)
    result = CliRunner().invoke(main, ["status"])
    assert result.exit_code == 130 and result.stderr.strip() == "fxpool: stopped"


def on_a_terminal(python: str, *arguments: str, **environment: str) -> str:
    ours, theirs = pty.openpty()
    read = bytearray()

    def drain() -> None:
        try:
            while data := os.read(ours, 4096):
                read.extend(data)
        except OSError:
            pass  # the other end is closed

    reader = threading.Thread(target=drain)
    reader.start()
    kept = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS")}
    with start(
        python, *arguments, stdout=theirs, stdin=theirs, stderr=theirs, env={**kept, "TERM": "xterm", **environment}
    ) as running:
        if "--watch" in arguments:
            while b"no server" not in read:
                time.sleep(0.01)
            running.send_signal(signal.SIGINT)
    os.close(theirs)
    reader.join()
    os.close(ours)
    return read.decode()


def test_colours_are_for_terminals_that_want_them(python: str) -> None:
    colour = re.compile(r"\x1b\[(?:[0-9]+;)*[34][0-7]m")
    for arguments in (["stats"], ["status"], ["status", "--watch"]):
        assert not colour.search(on_a_terminal(python, *arguments, NO_COLOR="1"))


def test_a_dumb_terminal_is_not_drawn_on(python: str) -> None:
    assert "\x1b" not in on_a_terminal(python, "status", "--watch", TERM="dumb")
    assert "\x1b" in on_a_terminal(python, "status", "--watch")


def test_the_mark_is_not_said_to_be_passed_where_it_is_not() -> None:
    """The server looked a moment before: what it found then, and what is so now, are two things."""

    def said(used: float, pressed: bool) -> str:
        return server._mark({"host_used": used, "host_mark": 0.9, "pressed": pressed})

    assert said(0.08, False) == "no new jobs above 90 %"
    assert "more than" not in said(0.08, True) and "was above 90 %" in said(0.08, True)
    assert said(0.95, True).startswith("above 90 %: no new jobs")


@pytest.mark.parametrize("columns", [20, 40, 80])
def test_text_is_wrapped_between_words(columns: int) -> None:
    lines = output.wrapped("head       ", "word " * 40, columns).splitlines()
    assert max(map(len, lines)) <= columns and " ".join(" ".join(lines).split()).count("word") == 40
    parts = ["one two", "three four five", "x" * 5]
    assert output.filled("key  ", parts, None) == "key  one two  three four five  xxxxx"
    filled = output.filled("key  ", parts, columns)
    assert max(map(len, filled.splitlines())) <= columns and all(part in filled for part in parts)


def test_a_word_longer_than_the_rest_of_a_line_is_moved_left() -> None:
    name = "softmax_of_differences_of_a_very_long_name"
    assert output.wrapped(" " * 14, f"{name} end", 50).splitlines() == [f"  {name}", f"{' ' * 14}end"]
    assert output.filled("38443858b1a0  ", [name, "end"], 48).splitlines() == [
        "38443858b1a0",
        f"  {name}",
        f"{' ' * 14}end",
    ]
    assert output.wrapped("ok    Python.h  ", name, 50).splitlines() == ["ok    Python.h", f"  {name}"]
    assert output.wrapped("", "x" * 60, 50) == "x" * 60


def test_text_stands_beside_its_label_while_there_is_room() -> None:
    label = f"{'memory_high_watermark':<23}"
    for columns, indent in ((60, 23), (53, 23), (52, 2)):
        lines = output.wrapped(label, "word " * 20, columns).splitlines()
        assert len(lines[1]) - len(lines[1].lstrip()) == indent and max(map(len, lines)) <= columns


FACTS: dict[str, Any] = {
    "state": "running", "server_pid": 7576, "draining": False, "seconds": 185.0, "clients": [1], "slots": 2,
    "slots_free": 1, "slots_rule": "CPU affinity", "queued": 1, "paused": False, "directory": "/run/user/1000/fxpool",
    "memory": {"server": 18 << 20, "zygote": 350 << 20, "workers": 0}, "zygote": {"preload_seconds": 5.1},
    "limits": {
        "host_used": 0.07, "host_used_of": "the machine's memory", "host_mark": 0.9, "pressed": False,
        "job_bytes": 11 << 30, "job_seconds": 3600.0,
        "rules": {"job_bytes": "half of the machine's memory", "job_seconds": "the default"},
    },
    "running": [
        {"pid": 12, "label": "graph 0 [0/0]", "phase": "lowering", "seconds": 3.0, "attempt": 2, "sub_job": False,
         "wanted_by": [1]}
    ],
    "waiting": [{"running": False, "job": 1, "label": "graph 1 [1/0]", "seconds": 4.0, "client": 1, "priority": -1}],
    "farms": [
        {"address": "dask://scheduler.internal:8786", "state": "up", "reason": "", "counters": {"results": 3},
         "machines": [{"name": "m:1", "slots": 2, "jobs": 1, "differs": []},
                      {"name": "m:2", "slots": 2, "jobs": 0, "differs": ["torch"]}],
         "jobs": [{"job": 2, "label": "graph 2 [2/0]", "seconds": 5.0, "late": True}]},
        {"address": "ray://head.internal:10001", "state": "gone", "reason": "it does not answer", "machines": [],
         "counters": {}, "jobs": []},
    ],
}  # fmt: skip


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_the_status_of_a_server_fits(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, columns: int) -> None:
    from fxpool.pool.client import hosts

    monkeypatch.setenv("FXPOOL_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(hosts, "links", lambda root: [Path("host-618f634fa8680000.socket")])
    monkeypatch.setattr(hosts, "status", lambda link: FACTS)
    lines = CliRunner(env={"COLUMNS": str(columns)}).invoke(main, ["status"]).stdout.splitlines()
    assert max(map(len, lines)) <= columns
    assert lines[0] == "618f634fa868  server 7576, up 3 min" and "  clients  1 process" in lines
    assert "  queue    1 job" in lines
    text = " ".join(" ".join(lines).split())
    assert "7 % of the machine's memory in use; no new jobs above 90 %" in text
    assert "(half of the machine's memory) and 60 min (the default)" in text
    assert "worker 12 graph 0 [0/0], lowering, 3 s, attempt 2, for 1" in text
    assert "dask://scheduler.internal:8786 (up): 1 machine, 1 more with other builds (`fxpool farm status`)" in text
    assert "away graph 2 [2/0], 5 s, late: it runs here, too" in text
    assert "ray://head.internal:10001 is gone: it does not answer" in text


def every_command(group: click.Group, *names: str) -> Iterator[tuple[str, ...]]:
    yield names
    for name, command in group.commands.items():
        yield (*names, name)
        if isinstance(command, click.Group):
            yield from every_command(command, *names, name)


@pytest.mark.parametrize("arguments", sorted(set(every_command(main))), ids=" ".join)
def test_help_fits_a_terminal(arguments: tuple[str, ...]) -> None:
    result = CliRunner(env={"COLUMNS": "80"}).invoke(main, [*arguments, "--help"])
    assert result.exit_code == 0
    lines = result.output.splitlines()
    assert [line for line in lines if len(line) > 80] == []
    commands = lines[lines.index("Commands:") + 1 :] if "Commands:" in lines else []
    assert [line for line in commands if not line.endswith(".") or line.endswith("...")] == [], "cut off"


def test_statuses_are_in_the_manual() -> None:
    manual = Path(__file__).parents[3] / "docs" / "fxpool.1.md"
    section = manual.read_text().split("## Exit status")[1].split("\n## ")[0]
    documented = {int(row.split("|")[1]) for row in section.splitlines() if re.match(r"\| \d", row)}
    assert documented == {0, output.FOUND_WRONG, output.MISTAKE, output.INTERRUPTED, 141}
    text = manual.read_text()
    for name in main.commands:
        assert f"`{name}" in text
    assert "docs/fxpool.1.md" in (manual.parents[1] / "README.md").read_text()
