"""`fxpool doctor`: every check catches and says, on odd machines too; and the real thing, once."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import resource
import subprocess
import sys
import sysconfig
import tempfile
from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import filelock
import pytest
from click.testing import CliRunner
from remote_servers import free_port

from fxpool.commands.main import main
from fxpool.doctor import compile_trial, farm, host
from fxpool.doctor.findings import FAIL, OK, WARN, Check, Finding, examine
from fxpool.errors import NoCompilerError

DISK = namedtuple("DISK", "f_flag f_bavail f_frsize f_files f_favail")


def found(check: Any) -> Finding:
    (finding,) = examine([("it", check)])
    return finding


def broken() -> Iterator[Finding]:
    yield Finding("first", OK, "fine")
    raise RuntimeError("two\n  lines")


class NoTrial:
    """In the place of the processes that compile."""

    def __init__(self, findings: list[Finding]) -> None:
        self.findings = findings

    def __enter__(self) -> NoTrial:
        return self

    def __exit__(self, *exc: object) -> None:
        pass

    def checks(self) -> list[Check]:
        return [("compile", lambda: self.findings)]


def run(monkeypatch: pytest.MonkeyPatch, findings: list[Finding], *arguments: str, columns: str = "100") -> Any:
    monkeypatch.setattr(compile_trial, "Trial", lambda: NoTrial(findings))
    return CliRunner(env={"COLUMNS": columns}).invoke(main, ["doctor", *arguments])


# --- the command -------------------------------------------------------------------------------------------


def test_a_check_that_fails_is_a_finding_and_the_others_go_on() -> None:
    first, second, third = examine([("a", broken), ("b", lambda: [Finding("b", OK, "fine")])])
    assert (first.state, third.check) == (OK, "b")
    assert (second.check, second.state, second.found) == ("a", WARN, "the check failed: RuntimeError: two lines")
    assert second.remedy


@pytest.mark.parametrize(("state", "status"), [(OK, 0), (WARN, 0), (FAIL, 1)])
def test_status_and_remedy(monkeypatch: pytest.MonkeyPatch, state: str, status: int) -> None:
    result = run(monkeypatch, [Finding("compile", state, "so it is", "do this")])
    assert result.exit_code == status, result.output
    assert f"{state:<5} compile      so it is\n" in result.output
    assert ("-> do this" in result.output) == (state != OK)
    assert "Traceback" not in result.output


def test_json_has_what_the_lines_have_and_more(monkeypatch: pytest.MonkeyPatch) -> None:
    result = run(monkeypatch, [Finding("compile", FAIL, "so it is", "do this", "all it said")], "--json")
    facts = json.loads(result.output)
    assert result.exit_code == 1 and facts["fail"] == 1 and facts["fxpool"]
    last = {"check": "compile", "state": "fail", "found": "so it is", "remedy": "do this", "detail": "all it said"}
    assert facts["checks"][-1] == last
    named = {check["check"] for check in facts["checks"]}
    assert named >= {
        "python",
        "torch",
        "settings",
        "compiler",
        "Python.h",
        "triton",
        "cache",
        "runtime",
        "tmp",
        "header",
    }
    assert named >= {"CPUs", "memory", "open files", "processes"}


@pytest.mark.parametrize("columns", ["40", "80"])
def test_lines_fit(monkeypatch: pytest.MonkeyPatch, columns: str) -> None:
    result = run(monkeypatch, [Finding("compile", WARN, "many words " * 20, "more words " * 20)], columns=columns)
    long = [line for line in result.output.splitlines() if len(line) > int(columns)]
    assert [line for line in long if not any(len(word) > 20 for word in line.split())] == []


def test_looking_changes_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run(monkeypatch, [])
    assert not (tmp_path / "c").exists()
    assert list((tmp_path / "r").iterdir()) == [] and list((tmp_path / "t").iterdir()) == []


def test_the_parent_imports_no_torch(python: str) -> None:
    program = "import sys; from fxpool.doctor.findings import examine; from fxpool.doctor.host import CHECKS\n"
    program += "print(*[f.state for f in examine(CHECKS)]); sys.exit('torch' in sys.modules)"
    assert subprocess.run([python, "-c", program]).returncode == 0


# --- Python, compiler ----------------------------------------------------------------------------------------


def test_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [finding.state for finding in examine([("", host.python)])] == [OK, OK]
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "1.13.0")
    _, torch = examine([("", host.python)])
    assert torch.state == FAIL and "1.13.0" in torch.found and torch.remedy
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "9.9.0")
    _, torch = examine([("", host.python)])
    assert torch.state == FAIL and "FXPOOL_UNTESTED_TORCH=1" in torch.found
    monkeypatch.setenv("FXPOOL_UNTESTED_TORCH", "1")
    assert [finding.state for finding in examine([("", host.python)])] == [OK, WARN]
    monkeypatch.setattr(sys, "version_info", (3, 9, 1))
    assert [finding.state for finding in examine([("", host.python)])] == [FAIL, FAIL]


def test_torch_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", none)
    assert [finding.state for finding in examine([("", host.python)])] == [OK, FAIL]
    assert found(host.triton).state == OK


def test_a_compiler_that_works() -> None:
    finding = found(host.compiler)
    assert finding.state == OK and "OpenMP" in finding.found


def test_no_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    finding = found(host.compiler)
    assert finding.state == FAIL and "'g++'" in finding.found and "apt-get install g++" in finding.remedy


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("echo 'a.cpp:1:10: fatal error: omp.h: No such file' >&2; exit 1", "OpenMP"),
        ("echo 'error: no space' >&2; exit 1", "CXX"),
        ("exit 0", "TMPDIR"),  # it makes nothing
    ],
)
def test_compilers_that_do_not(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, body: str, said: str) -> None:
    script = tmp_path / "odd compiler"
    script.write_text(f"#!/bin/sh\ncase $1 in --version) echo Odd 1.0;; *) {body};; esac\n")
    script.chmod(0o755)
    monkeypatch.setenv("CXX", str(script))
    finding = found(host.compiler)
    assert finding.state == FAIL and str(script) in finding.found and said in finding.remedy


def test_python_without_headers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sysconfig, "get_paths", lambda: {"include": "/nowhere"})
    finding = found(host.python_headers)
    assert finding.state == FAIL and "-dev" in finding.remedy


# --- settings ------------------------------------------------------------------------------------------------


def test_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FXPOOL_WORKERS", "3")
    finding = found(host.settings)
    assert finding.state == OK and "FXPOOL_WORKERS=3" in finding.found
    monkeypatch.setenv("FXPOOL_REMOTE_CACHE", "redis://user:hunter2@host:1/0")
    monkeypatch.setenv("TORCHINDUCTOR_REDIS_URL", "redis://:p@ss/w@host?password=query")
    shown = found(host.settings).found
    assert "FXPOOL_REMOTE_CACHE=redis://***@host:1/0" in shown
    assert not any(secret in shown for secret in ("hunter2", "p@ss", "query"))
    with monkeypatch.context() as changed:
        changed.setenv("FXPOOL_POOL", "off")
        finding = found(host.settings)
        assert finding.state == WARN and finding.remedy
    monkeypatch.setenv("FXPOOL_WORKERS", "many")
    finding = found(host.settings)
    assert finding.state == FAIL and "FXPOOL_WORKERS: 'many' is not" in finding.found and finding.remedy


def test_the_trial_is_announced_with_its_duration(monkeypatch: pytest.MonkeyPatch) -> None:
    result = run(monkeypatch, [Finding("compile", OK, "fine")], columns="200")
    _, _, rest = result.output.partition("\nA graph is compiled, ")
    assert "up to a minute on a fresh machine" in rest.splitlines()[0] and "compile      fine" in rest.splitlines()[1]


def test_settings_that_do_not_parse_stop_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FXPOOL_WORKERS", "many")
    result = run(monkeypatch, [Finding("compile", OK, "fine")])
    assert result.exit_code == 1 and "ok    compile" in result.output and "Traceback" not in result.output


# --- directories -----------------------------------------------------------------------------------------------


def test_directories_that_are_well(tmp_path: Path) -> None:
    for check in (host.cache_directory, host.runtime_directory, host.temporary_directory):
        finding = found(check)
        assert finding.state == OK and "free" in finding.found and "mode 0" in finding.found
    assert "to be created in" in found(host.cache_directory).found
    assert "of 107 bytes" in found(host.runtime_directory).found


@pytest.mark.parametrize(
    ("disk", "state", "said"),
    [
        (DISK(os.ST_NOEXEC, 1 << 30, 4096, 0, 0), FAIL, "noexec"),
        (DISK(os.ST_RDONLY, 1 << 30, 4096, 0, 0), FAIL, "read-only"),
        (DISK(0, 10, 4096, 0, 0), WARN, "less than"),
        (DISK(0, 1 << 30, 4096, 1000, 3), WARN, "only 3 more files"),
        (DISK(0, 1 << 30, 4096, 0, 0), OK, ""),  # a disk that counts no files
    ],
)
def test_disks(monkeypatch: pytest.MonkeyPatch, disk: Any, state: str, said: str) -> None:
    monkeypatch.setattr(os, "statvfs", lambda path: disk)
    for check in (host.cache_directory, host.temporary_directory):
        finding = found(check)
        assert finding.state == state and said in finding.found and bool(finding.remedy) == (state != OK)


def test_a_cache_open_to_others(tmp_path: Path) -> None:
    (tmp_path / "c").mkdir()
    (tmp_path / "c").chmod(0o777)
    finding = found(host.cache_directory)
    assert finding.state == FAIL and "0777" in finding.found and "chmod go-w" in finding.remedy


def test_a_cache_that_is_not_in_the_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("FXPOOL_CACHE_DIR")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", "~")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    finding = found(host.cache_directory)
    place = tmp_path / f"fxpool-cache-{os.geteuid()}"
    assert finding.state == WARN and str(place) in finding.found and "HOME is '~'" in finding.found
    assert "set FXPOOL_CACHE_DIR" in finding.remedy and not place.exists()
    place.mkdir(mode=0o777)
    place.chmod(0o777)
    finding = found(host.cache_directory)
    assert finding.state == FAIL and "writable by all users (mode 0777)" in finding.found
    assert "HOME is '~'" in finding.found


def test_a_cache_base_that_others_can_write_to(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert list(examine([("it", host.cache_base)])) == [], "nothing is configured"
    base = tmp_path / "base"
    monkeypatch.setenv("FXPOOL_CACHE_BASE", str(base))
    finding = found(host.cache_base)
    assert finding.state == FAIL and "does not exist" in finding.found and "FXPOOL_CACHE_BASE" in finding.remedy
    base.mkdir(mode=0o755)
    finding = found(host.cache_base)
    assert finding.state == OK and f"{base}, 0 entries" in finding.found
    base.chmod(0o777)
    finding = found(host.cache_base)
    assert finding.state == FAIL and "0777" in finding.found and finding.remedy == f"chmod go-w {base}"


def test_a_key_file_that_others_can_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert list(examine([("it", host.key_file)])) == [], "nothing is configured"
    monkeypatch.setenv("FXPOOL_REMOTE_CACHE", "redis://user:secret@host")
    finding = found(host.key_file)
    assert finding.state == FAIL and "fxpool cache key FILE" in finding.remedy and "secret" not in str(finding)
    key = tmp_path / "key"
    key.touch(0o600)
    key.write_text("ab" * 32)
    monkeypatch.setenv("FXPOOL_REMOTE_KEY_FILE", str(key))
    assert found(host.key_file).state == OK
    key.chmod(0o644)
    finding = found(host.key_file)
    assert finding.state == FAIL and finding.remedy == f"chmod 600 {key}" and "abab" not in str(finding)


# --- the farm ---


def status(differs: list[list[str]], *devices_only: int) -> list[dict[str, Any]]:
    """Machines as `fxpool farm status --json` lists them."""
    return [
        {"name": f"m:{number}", "differs": names, "devices_only": number in devices_only}
        for number, names in enumerate(differs)
    ]


@pytest.mark.parametrize(
    ("machines", "state", "said", "remedy"),
    [
        (status([]), WARN, "has no machine", "fxpool farm worker"),
        (status([[], []]), OK, "2 of 2 machines can compile for this host", ""),
        (
            status([[], ["torch", "gcc"], ["torch"]]),
            WARN,
            "1 of 3 machines .* differ in gcc .1., torch .2.",
            "releases",
        ),
        (
            status([["cpu_extensions"], ["torch"]], 0),
            WARN,
            "0 of 2 .* 1 more only graphs on GPUs; .*cpu_ext",
            "releases",
        ),
        (status([["torch"]]), FAIL, "0 of 1 machine can compile for this host; .* torch .1.", "fxpool farm status"),
    ],
)
def test_machines_of_a_farm_are_judged(machines: list[dict[str, Any]], state: str, said: str, remedy: str) -> None:
    finding = farm.judge("dask://head:8786", machines)
    assert finding.state == state and re.search(said, finding.found) and remedy in finding.remedy, finding
    assert finding.found.startswith("dask://head:8786 answers")


@pytest.fixture
def farm_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """The address of a farm, with a key, at which nothing answers."""
    address = f"dask://127.0.0.1:{free_port()}"
    (tmp_path / "key").touch(0o600)
    (tmp_path / "key").write_text("ab" * 32)
    monkeypatch.setenv("FXPOOL_FARM", address)
    monkeypatch.setenv("FXPOOL_REMOTE_KEY_FILE", str(tmp_path / "key"))
    return address


def test_no_farm_is_no_finding() -> None:
    assert list(examine([("it", farm.farm)])) == [] and ("farm", farm.farm) in host.CHECKS


def test_a_farm_needs_a_key_and_its_engine(farm_set: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    monkeypatch.delitem(sys.modules, "fxpool.farm.dask_engine", raising=False)
    finding = found(farm.farm)
    assert finding.state == FAIL and finding.remedy == "pip install 'fxpool[dask]'", finding
    monkeypatch.undo()
    monkeypatch.setenv("FXPOOL_FARM", farm_set)
    finding = found(farm.farm)
    assert finding.state == FAIL and "key file" in finding.found and "fxpool cache key FILE" in finding.remedy


@pytest.mark.slow
def test_a_farm_that_does_not_answer(farm_set: str, tmp_path: Path) -> None:
    finding = found(farm.farm)
    assert finding.state == FAIL and finding.found.startswith(f"{farm_set}: no Dask scheduler answers at tcp://"), (
        finding
    )
    assert "start the scheduler (dask scheduler)" in finding.remedy
    assert not (tmp_path / "c").exists(), "the user's cache"


def test_a_farm_that_hangs(farm_set: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(farm, "_PATIENCE", 0.1)
    finding = found(farm.farm)
    assert finding.state == FAIL and finding.found == f"{farm_set}: no answer within 0 s"


@pytest.mark.parametrize(
    ("status", "output", "error", "state", "said"),
    [
        (0, '{"name": "m", "differs": [], "devices_only": false}', "a warning", OK, "1 of 1 machine"),
        (1, "", "a warning", WARN, "no machine"),
        (1, "", "Traceback (most recent call last):\n  x\nKeyError: 1", FAIL, "KeyError: 1"),
        (2, "", "a warning\nfxpool: it does\n  not answer\n", FAIL, "ADDRESS: it does not answer"),
    ],
)
def test_the_farm_s_status_is_read(
    farm_set: str, monkeypatch: pytest.MonkeyPatch, status: int, output: str, error: str, state: str, said: str
) -> None:
    done = subprocess.CompletedProcess([], status, output, error)
    monkeypatch.setattr(subprocess, "run", lambda *arguments, **options: done)
    finding = found(farm.farm)
    assert finding.state == state and said.replace("ADDRESS", farm_set) in finding.found, finding


def test_a_cache_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "c").touch()
    assert found(host.cache_directory).state == FAIL


def test_a_cache_that_can_not_be_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    finding = found(host.cache_directory)
    assert finding.state == FAIL and "not writable by" in finding.found and "FXPOOL_CACHE_DIR" in finding.remedy


def test_a_runtime_directory_that_is_a_link(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "r")
    monkeypatch.setenv("FXPOOL_RUNTIME_DIR", str(tmp_path / "link"))
    finding = found(host.runtime_directory)
    assert finding.state == FAIL and "link" in finding.found and "FXPOOL_RUNTIME_DIR" in finding.remedy


def test_no_temporary_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    finding = found(host.temporary_directory)
    assert finding.state == FAIL and "TMPDIR" in finding.remedy


def test_a_header_that_the_compiler_refuses(tmp_path: Path) -> None:
    headers = tmp_path / "c" / "toolchain" / "headers"
    headers.mkdir(parents=True)
    (headers / "ab.failed").write_text("vector:3:1: error: no such thing\nin all\n")
    finding = found(host.header)
    assert finding.state == WARN and "vector:3:1: error: no such thing" in finding.found


def test_the_header(tmp_path: Path) -> None:
    assert "not precompiled yet" in found(host.header).found
    headers = tmp_path / "c" / "toolchain" / "headers"
    (headers / "building-ab-4711-x1").mkdir(parents=True)
    finding = found(host.header)
    assert finding.state == WARN and "1 left over from a process that was killed" in finding.found
    with filelock.FileLock(headers / "ab.lock"):
        finding = found(host.header)
        assert (finding.state, finding.found) == (OK, "being compiled by process 4711")
    made = headers / "ab.h.gch"
    made.write_bytes(b"h" * 2048)
    status = made.stat()
    record = {str(made): [status.st_size, status.st_mtime_ns], "headers_kernels": "1" * 64}
    (headers / "ab.json").write_text(json.dumps(record))
    finding = found(host.header)
    assert finding.state == OK and "1 precompiled, 2.0 KB" in finding.found
    made.write_bytes(b"other")
    finding = found(host.header)
    assert finding.state == WARN and "1 out of date" in finding.found
    (headers / "ab.json").write_text("not json")
    assert found(host.header).state == WARN


# --- limits ----------------------------------------------------------------------------------------------------


def test_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    from fxpool.pool.host import memory

    assert found(host.memory).state in (OK, WARN)  # of the machine that tests
    monkeypatch.setattr(memory.Host, "total", lambda self: (1200 << 20, "the memory limit in /g/memory.max"))
    monkeypatch.setattr(memory.Host, "used", lambda self: (0.1, "it"))
    finding = found(host.memory)
    assert "), 10 % of it in use;" in finding.found
    assert finding.state == WARN and "1.2 GB (the memory limit in /g/memory.max)" in finding.found and finding.remedy
    monkeypatch.setattr(memory.Host, "used", lambda self: (0.95, "it"))
    finding = found(host.memory)
    assert finding.state == WARN and "above 90 %" in finding.found and "FXPOOL_MEMORY_HIGH_WATERMARK" in finding.remedy


def test_low_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    few = {resource.RLIMIT_NOFILE: 64, resource.RLIMIT_NPROC: 30, resource.RLIMIT_FSIZE: 1 << 20}
    real = resource.getrlimit
    monkeypatch.setattr(resource, "getrlimit", lambda which: (few[which], -1) if which in few else real(which))
    findings = list(examine([("", host.limits_of_processes)]))
    assert [one.check for one in findings if one.state == WARN][:3] == ["open files", "processes", "ulimit"]
    assert all(one.remedy for one in findings if one.state == WARN)
    assert findings[0].found.startswith("at most 64: ") and findings[1].found.startswith("at most 30")
    monkeypatch.setattr(resource, "getrlimit", lambda which: (resource.RLIM_INFINITY, -1))
    monkeypatch.setattr(host, "_pids", lambda: (950, 1000))
    (files, processes) = examine([("", host.limits_of_processes)])
    assert files.state == OK and "unlimited" in files.found
    assert processes.state == WARN and "950 of 1,000 in its cgroup" in processes.found


# --- the processes -----------------------------------------------------------------------------------------------

STATS = {
    "hits": 0, "misses": 1, "joined": 0, "compiles": {"worker": 1, "in_process": 0},
    "fallbacks": {}, "bypasses": {}, "eager_calls": {}, "entries_kept": 1,
}  # fmt: skip


def answer(stats: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    made = {"seconds": 1.0, "difference": 0.0, "lowered": 0, "said": [], "torch": "2.13.0", "gpu_build": ""}
    return {**made, "stats": {**STATS, **(stats or {})}, **changes}


@pytest.mark.parametrize(
    ("given", "state", "said"),
    [
        (answer(), OK, "a worker compiled"),
        (answer(said=["fxpool: no header"]), WARN, "no header"),
        (answer(difference=1.0), FAIL, "differs from eager"),
        (answer(difference=float("nan")), FAIL, "differs from eager"),
        (answer(lowered=1), FAIL, "no worker compiled"),
        (answer({"compiles": {"worker": 0, "in_process": 1}, "fallbacks": {"no_worker": 1}}), FAIL, "(no_worker)"),
        (answer({"entries_kept": 0, "bypasses": {"store_write_failed": 1}}), FAIL, "store_write_failed"),
    ],
)
def test_a_compile_is_judged(given: dict[str, Any], state: str, said: str) -> None:
    (finding,) = compile_trial.judge_compile(given, "", "")
    assert finding.state == state and said in finding.found


def test_a_hit_is_judged() -> None:
    hit = answer({"hits": 1, "misses": 0, "compiles": {"worker": 0, "in_process": 0}})
    assert [one.state for one in compile_trial.judge_hit(hit, "", "")] == [OK]
    for missed in (answer(), {**hit, "lowered": 1}, {**hit, "difference": 3.0}):
        assert [one.state for one in compile_trial.judge_hit(missed, "", "")] == [FAIL]


def test_processes_that_fail_are_told_in_a_sentence() -> None:
    trace = 'Traceback (most recent call last):\n  File "x.py", line 1, in f\nImportError: libfoo.so.1: cannot open\n'
    for judged in (
        compile_trial.judge_compile(None, "the process exited with code 1", trace),
        compile_trial.judge_hit(None, "the process exited with code 1", trace),
        compile_trial.judge_gpu(None, "the process exited with code 1", trace, driver=False),
    ):
        (finding,) = judged
        assert finding.state == FAIL and finding.detail == trace
        assert finding.found == "the process exited with code 1: ImportError: libfoo.so.1: cannot open"


def test_an_error_of_fxpool_s_is_found_in_what_wraps_it() -> None:
    wrapper = RuntimeError("\nbackend='fxpool' raised:\nSet TORCHDYNAMO_VERBOSE=1")
    wrapper.__cause__ = NoCompilerError(["g++"])
    said = compile_trial._why(wrapper)
    assert said["failed"] == "no working C++ compiler (tried g++)" and "apt-get" in said["remedy"]
    (finding,) = compile_trial.judge_compile(said, "", "")
    assert (finding.state, finding.found, finding.remedy) == (FAIL, said["failed"], said["remedy"])
    wrapper.__cause__ = wrapper  # not for ever
    assert compile_trial._why(wrapper)["failed"] == "RuntimeError: backend='fxpool' raised:"


def test_gpus_are_judged() -> None:
    def states(devices: list[dict[str, Any]], driver: bool = False, triton: bool = True) -> list[str]:
        given = {"devices": devices, "said": "", "triton": triton}
        return [one.state for one in compile_trial.judge_gpu(given, "", "", driver=driver)]

    device = {"index": 0, "name": "H", "facts": "sm_90", "error": ""}
    assert states([]) == [OK] and states([], driver=True) == [WARN]
    assert states([device, device]) == [OK, OK]
    assert states([{**device, "error": "RuntimeError: x"}]) == [WARN]
    assert states([device], triton=False) == [OK, FAIL]


def test_a_trial_that_can_not_begin_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    with compile_trial.Trial() as trial:
        compile_, hit, gpu = examine(trial.checks())
    assert (compile_.state, hit.state, gpu.state) == (FAIL, WARN, WARN)


def test_what_is_begun_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C while it compiles; the fixture of all tests sees to processes and files that are left."""
    with pytest.raises(KeyboardInterrupt), compile_trial.Trial():
        raise KeyboardInterrupt


@pytest.mark.slow
def test_a_real_compile_and_a_real_hit(python: str) -> None:
    done = subprocess.run([python, "-m", "fxpool", "doctor", "--json"], capture_output=True, text=True)
    facts = json.loads(done.stdout)
    states = {check["check"]: check for check in facts["checks"]}
    assert done.returncode == 0, facts
    assert "nothing was lowered in the calling process" in states["compile"]["found"]
    assert states["hit"]["state"] == OK and "from the cache" in states["hit"]["found"]
    assert done.stderr == ""


def test_the_issue_template_asks_for_it() -> None:
    root = Path(__file__).parents[3]
    assert "fxpool doctor" in (root / ".github" / "ISSUE_TEMPLATE" / "bug_report.md").read_text()
    makefile = (root / "Makefile").read_text()
    assert "demo: doctor" in makefile and "-m fxpool doctor" in makefile
    assert "make doctor" in (root / ".ci" / "run").read_text()
