"""The precompiled header: real g++ on a header of the test's own, because Inductor's takes 8 s each time.

And once on Inductor's, as programs that end before it is made come by it.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import filelock
import pytest
from processes import run_python

from fxpool import config, failures
from fxpool.codecache.key import headers, toolchain
from fxpool.doctor import host as doctor
from fxpool.doctor.findings import OK, Finding
from fxpool.lowering.cpp import host_facts, precompiled_header
from fxpool.torch_compat.cpp import compile_commands, instruction_sets


@pytest.fixture
def toolchain_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    include = tmp_path / "toolchain" / "include"
    include.mkdir(parents=True)
    (include / "mine.h").write_text("inline int seven() { return 7; }\n")
    monkeypatch.setenv("CPATH", str(include))
    monkeypatch.setattr(compile_commands, "HEADER", "#include <mine.h>")
    return include.parent


def made(toolchain_dir: Path) -> tuple[compile_commands.Command, Path | None]:
    with instruction_sets.instruction_sets_known(instruction_sets.candidates()):
        command = precompiled_header.command(str(toolchain_dir))
    compiled = list((toolchain_dir / "headers").glob("*.gch"))
    assert len(compiled) <= 1, compiled
    return command, compiled[0] if compiled else None


def seven_from(command: compile_commands.Command, directory: Path) -> str:
    """What g++ says it read, compiling a kernel that only the header makes possible."""
    source = directory / "kernel.cpp"
    source.write_text('extern "C" int eight() { return seven() + 1; }\n')
    arguments, _ = command.compile(str(source), "kernel")
    return subprocess.run([*arguments, "-H"], check=True, capture_output=True, text=True).stderr


def test_it_is_compiled_once_and_kernels_use_it(toolchain_dir: Path) -> None:
    command, header = made(toolchain_dir)
    assert header is not None
    first = header.stat()
    assert doctor._is_as_recorded(header.with_name(header.name.removesuffix(".h.gch") + ".json"))
    assert any(
        line.startswith("! ") and line.endswith(".gch") for line in seven_from(command, toolchain_dir).splitlines()
    )
    _, again = made(toolchain_dir)
    assert again is not None and (again, again.stat().st_ino) == (header, first.st_ino)


def test_its_name_does_not_depend_on_an_earlier_compiler(toolchain_dir: Path) -> None:
    """Inductor caches facts about its compiler, some of them without the compiler's name."""
    from torch._inductor import config, cpp_builder

    other = toolchain_dir / "clang++"
    other.write_text('#!/bin/sh\nexec g++ "$@"\n')
    other.chmod(0o755)
    with config.patch({"cpp.cxx": (str(other),)}):
        toolchain.settle()
        assert cpp_builder.is_clang() and not cpp_builder.is_gcc()
    _, header = made(toolchain_dir)
    _, again = made(toolchain_dir)
    assert header is not None and again == header


@pytest.mark.parametrize("recorded", [True, False])
def test_half_a_header_is_compiled_again(recorded: bool, toolchain_dir: Path) -> None:
    _, header = made(toolchain_dir)
    assert header is not None
    header.write_bytes(header.read_bytes()[:1000])
    if not recorded:  # the record comes last: a killed process has written none
        Path(str(header)[: -len(".h.gch")] + ".json").unlink()
    command, header = made(toolchain_dir)
    assert header is not None and header.stat().st_size > 1000
    assert any(
        line.startswith("! ") and line.endswith(".gch") for line in seven_from(command, toolchain_dir).splitlines()
    )


def test_a_changed_header_is_compiled_again(toolchain_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, header = made(toolchain_dir)
    assert header is not None
    before = header.stat().st_ino
    (toolchain_dir / "include" / "mine.h").write_text("inline long seven() { return 7; }\n")
    monkeypatch.setattr(headers, "_CHECKED_FOR", 0.0)
    _, header = made(toolchain_dir)
    assert header is not None and header.stat().st_ino != before
    record = json.loads(Path(str(header)[: -len(".h.gch")] + ".json").read_bytes())
    assert str(toolchain_dir / "include" / "mine.h") in record


def test_a_header_that_comes_before_another_is_compiled(toolchain_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a directory that was empty, so that no file that was read has changed."""
    (toolchain_dir / "first").mkdir()
    monkeypatch.setenv("CPATH", f"{toolchain_dir}/first:{toolchain_dir}/include")
    monkeypatch.setattr(headers, "_CHECKED_FOR", 0.0)
    _, header = made(toolchain_dir)
    assert header is not None
    before = header.stat().st_ino
    (toolchain_dir / "first" / "mine.h").write_text("inline long seven() { return 7; }\n")
    _, header = made(toolchain_dir)
    assert header is not None and header.stat().st_ino != before


def test_a_header_that_does_not_compile_is_included_as_text(
    toolchain_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (toolchain_dir / "include" / "mine.h").write_text("int seven( {\n")
    with caplog.at_level(logging.WARNING, "fxpool.lowering"):
        _, header = made(toolchain_dir)
    assert header is None
    assert "without a precompiled header" in caplog.text and "mine.h" in caplog.text
    assert not list((toolchain_dir / "headers").glob("building-*"))


@pytest.mark.slow
def test_what_did_not_compile_is_not_tried_again_by_each_process(
    toolchain_dir: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = (toolchain_dir / "include" / "mine.h").read_text()
    (toolchain_dir / "include" / "mine.h").write_text("int seven( {\n")
    assert made(toolchain_dir)[1] is None
    (failure,) = (toolchain_dir / "headers").glob("*.failed")
    assert "mine.h" in failure.read_text()
    caplog.clear()
    (toolchain_dir / "include" / "mine.h").write_text(right)
    assert made(toolchain_dir)[1] is None and not caplog.records
    assert precompiled_header.is_ready(str(toolchain_dir)), "nobody is to prepare it"
    monkeypatch.setattr(precompiled_header, "_FAILED_FOR", 0.0)
    assert made(toolchain_dir)[1] is not None


def test_headers_nobody_used_for_long_make_room(toolchain_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, first = made(toolchain_dir)
    assert first is not None
    monkeypatch.setattr(precompiled_header, "_UNUSED", -1.0)
    monkeypatch.setenv("CPATH", f"{toolchain_dir / 'include'}:{toolchain_dir}")  # another tool chain
    _, second = made(toolchain_dir)
    assert second is not None and second != first and not first.exists()


def test_what_killed_processes_left_is_removed_and_what_is_being_made_is_not(toolchain_dir: Path) -> None:
    _, header = made(toolchain_dir)
    assert header is not None
    stem = header.name[: -len(".h.gch")]
    left = [
        toolchain_dir / "headers" / f"building-{name}"
        for name in (f"{stem}-4711-x1", "another-x2", "of_an_earlier_release")
    ]
    busy = toolchain_dir / "headers" / "building-busy-4712-x3"
    for directory in (*left, busy):
        directory.mkdir()
        (directory / "header.gch").write_bytes(b"half")
    header.unlink()
    with filelock.FileLock(toolchain_dir / "headers" / "busy.lock"):
        made(toolchain_dir)
    assert [directory for directory in (*left, busy) if directory.exists()] == [busy]


def test_doctor_names_the_process_that_compiles_it(toolchain_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config.configure(cache_dir=toolchain_dir.parent)
    seen: list[Finding] = []
    run = failures.run

    def look_and_run(*arguments: Any, **more: Any) -> Any:
        seen.extend(doctor.header())
        return run(*arguments, **more)

    monkeypatch.setattr(failures, "run", look_and_run)
    assert made(toolchain_dir)[1] is not None
    assert seen and all(one.state == OK for one in seen)
    assert seen[-1].found == f"being compiled by process {os.getpid()}"


PROGRAM = """
import torch
assert torch.compile(lambda x: x * {number} + 1, backend="fxpool")(torch.ones(2)).tolist() == [{number} + 1] * 2
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_short_programs_come_by_it(tmp_path: Path) -> None:
    """It takes longer than any of them lives; the server goes on with it, and does it once for all of them."""
    headers = tmp_path / "c" / "toolchain" / "headers"
    for number in range(2, 6):
        run_python(["-c", PROGRAM.format(number=number)], FXPOOL_IDLE_TIMEOUT="20", FXPOOL_STRICT="1")
    deadline = time.monotonic() + 300
    while not list(headers.glob("*.json")):
        assert time.monotonic() < deadline, list(headers.iterdir())
        time.sleep(0.1)
    run_python(["-m", "fxpool", "stop"])
    found = sorted(path.name for path in headers.iterdir() if not path.name.endswith(".lock"))
    stem = found[0].partition(".")[0]
    assert found == [f"{stem}.h", f"{stem}.h.gch", f"{stem}.json"]


# Small graphs one after another, until the header is there or there were many.
_FOLLOWING = """
import glob, os, torch
for number in range(24):
    torch._dynamo.reset()
    torch.compile(lambda x: (x + number).sin().sum(), backend="fxpool")(torch.randn(8))
    if glob.glob(os.environ["FXPOOL_CACHE_DIR"] + "/toolchain/headers/*.json"):
        break
print(number + 1)
"""


@pytest.mark.slow
@pytest.mark.skipif(not host_facts.worth_preparing(), reason="one core compiles graphs, and no header beside them")
def test_graphs_that_follow_each_other_get_it_too(tmp_path: Path) -> None:
    """On two cores they leave no quiet in which a best-effort job would start."""
    printed = run_python(
        ["-c", _FOLLOWING], FXPOOL_CACHE_DIR=str(tmp_path / "c"), FXPOOL_POOL="embedded", FXPOOL_WORKERS="2"
    )
    assert 2 <= int(printed.split()[-1]) < 24
