"""Logs and warnings of fxpool's own, and standard streams that are closed, which is where they usually go."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from sources import ROOT, sources

import fxpool
from fxpool import notices

# Warnings of workers are replayed as what they were; a server's log is its own.
REPLAYED = "fxpool/pool/wire/logs.py"
# Where nobody but the server's own log listens.
OF_THE_SERVER = {
    *(
        f"fxpool/pool/server/{name}.py"
        for name in ("caller_messages", "clients", "dispatcher", "farms", "job_limits", "measurement_pause")
    ),
    *(f"fxpool/pool/server/{name}.py" for name in ("server", "stale_server", "workers")),
}


@pytest.mark.parametrize("arguments", [["-c", "from fxpool import notices\nnotices.warn('said')"], ["-"]])
def test_a_program_without_a_file_is_warned(arguments: list[str]) -> None:
    text = "from fxpool import notices\nnotices.warn('said')\n"
    done = subprocess.run([sys.executable, *arguments], input=text, capture_output=True, text=True, check=True)
    assert re.search(r"^<(string|stdin)>:2: RuntimeWarning: fxpool: said$", done.stderr, re.MULTILINE), done.stderr


def test_generated_code_is_not_what_is_warned_of() -> None:
    """Its globals have no name, as those of code that torch generates for a backward."""
    with pytest.warns(RuntimeWarning, match="said") as warned:
        exec(compile("warn('said')", "generated", "exec"), {"warn": notices.warn})
    assert [Path(one.filename).name for one in warned] == [Path(__file__).name]


def test_everything_that_is_said_goes_this_way() -> None:
    """Loggers have their module's name; a program's handlers can't fail what they are told of."""
    loggers, warning = [], []
    for path in sources():
        text, name = path.read_text(), path.relative_to(ROOT).as_posix()
        made = re.findall(r"^log = (.*)", text, re.MULTILINE)
        if made and name not in OF_THE_SERVER and name != "fxpool/notices.py":
            loggers += [(name, one) for one in made if one != "notices.logger(__name__)"]
        if "warnings.warn" in text and name not in ("fxpool/notices.py", REPLAYED):
            warning.append(name)
    assert not loggers and not warning


class Raises(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        raise RuntimeError("a handler of the program's")


@pytest.fixture
def raises() -> Iterator[None]:
    handler = Raises()
    logging.getLogger().addHandler(handler)
    yield
    logging.getLogger().removeHandler(handler)


def test_a_record_says_who_speaks_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    log = notices.logger("fxpool.lowering")
    assert log is logging.getLogger("fxpool.lowering") is notices.logger("fxpool.lowering")
    log.warning("entry %s is of no use: 100 %%", "abc")
    log.warning("fxpool: %d more", 3)
    log.info("entry %s", "abc")
    assert [record.getMessage() for record in caplog.records] == [
        "fxpool: entry abc is of no use: 100 %", "fxpool: 3 more", "entry abc",
    ]  # fmt: skip


def test_handlers_that_raise_fail_nothing(raises: None) -> None:
    with pytest.raises(RuntimeError):
        logging.getLogger("of_the_program").warning("x")
    notices.logger("fxpool.lowering").warning("x")
    with pytest.warns(RuntimeWarning):
        notices.warn("x")
    notices.warn("x")  # an error here, as everywhere in the tests, and then a record


def test_a_warning_is_a_record_where_it_would_be_an_error(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.warns(RuntimeWarning) as warned:
        notices.warn("graph 3 runs eagerly")
    (one,) = warned
    assert (str(one.message), one.filename) == ("fxpool: graph 3 runs eagerly", __file__)
    assert not caplog.records
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        notices.warn("graph 4 runs eagerly: 100 %")
    assert [record.getMessage() for record in caplog.records] == ["fxpool: graph 4 runs eagerly: 100 %"]


def test_a_warning_names_the_program_s_line_behind_imports_threads_and_entry_points(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As torch finds the backend: by `importlib.metadata`, whose lines are not the program's."""
    text = "from fxpool import notices\nnotices.warn('at import')\ndef __getattr__(name): notices.warn(name)\n"
    (tmp_path / "warns_at_import.py").write_text(text)
    monkeypatch.setattr(fxpool, "__path__", [*fxpool.__path__, str(tmp_path)])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    # Without pytest's import hook, whose frame would be taken for the program's.
    monkeypatch.setattr(sys, "meta_path", [one for one in sys.meta_path if "pytest" not in type(one).__module__])
    entry = EntryPoint("fxpool", "fxpool.warns_at_import:backend", "torch_dynamo_backends")
    with pytest.warns(RuntimeWarning) as warned:
        entry.load()
        with ThreadPoolExecutor(1) as threads:
            threads.submit(lambda: notices.warn("in a thread")).result()
    del sys.modules["fxpool.warns_at_import"]
    texts = [f"fxpool: {text}" for text in ("at import", "backend", "in a thread")]
    assert [str(one.message) for one in warned] == texts
    assert {one.filename for one in warned} == {__file__}
    lines = Path(__file__).read_text().splitlines()
    assert [lines[one.lineno - 1].strip() for one in warned] == [
        "entry.load()", "entry.load()", 'threads.submit(lambda: notices.warn("in a thread")).result()',
    ]  # fmt: skip


def test_once_is_once_for_each_name(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notices, "_said", set())
    for number in range(3):
        notices.once("a", f"a{number}")
        notices.once("b", f"b{number}")
    assert [record.getMessage() for record in caplog.records] == ["fxpool: a0", "fxpool: b0"]


PROGRAM = """
import logging, sys, warnings
from fxpool import notices
what = sys.argv[1]
if what == "closed": sys.stderr.close()
if what == "none": sys.stderr = None
notices.logger("fxpool.pool").warning("x")
notices.warn("x")
print("ended")
"""


@pytest.mark.parametrize(("what", "end"), [("closed", ""), ("none", ""), ("full", "2>/dev/full"), ("gone", "2>&-")])
def test_nobody_to_read_it(what: str, end: str) -> None:
    done = subprocess.run(
        ["sh", "-c", f'exec "$0" -c "$1" {what} {end}', sys.executable, PROGRAM], capture_output=True, text=True
    )
    assert done.stdout == "ended\n", done.stderr


DESCRIPTORS = """
import os, socket, subprocess, sys
from fxpool import standard_streams
before = [number for number in range(3) if os.path.exists(f"/proc/self/fd/{number}")]
standard_streams.keep_standard()
standard_streams.keep_standard()
opened = [os.path.realpath(f"/proc/self/fd/{number}") for number in range(3) if number not in before]
with socket.socket() as sock:
    assert sock.fileno() > 2
closed = subprocess.run(["sh", "-c", "echo x >&2"]).returncode
with open(sys.argv[1], "w") as file:
    print(before, set(opened), closed, sys.stderr, file=file)
"""


@pytest.mark.parametrize(
    ("end", "said"),
    [
        ("2>&-", "[0, 1] {'/dev/null'} 2 None"),
        ("<&- >&- 2>&-", "[] {'/dev/null'} 2 None"),
        ("<&- 2>/dev/null", "[1, 2] {'/dev/null'} 0 <_io.TextIOWrapper name='<stderr>' mode='w' encoding='utf-8'>"),
        ("2>/dev/null", "[0, 1, 2] set() 0 <_io.TextIOWrapper name='<stderr>' mode='w' encoding='utf-8'>"),
    ],
)
def test_closed_descriptors_lead_nowhere_and_are_closed_for_programs(
    end: str, said: str, tmp_path: os.PathLike[str]
) -> None:
    path = os.path.join(tmp_path, "said")
    command = f'exec "$0" -c "$1" "$2" {end}'
    subprocess.run(["sh", "-c", command, sys.executable, DESCRIPTORS, path], check=True)
    with open(path) as file:
        assert file.read().strip() == said
