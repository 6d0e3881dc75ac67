"""The compiler as facts: found as Inductor finds it, and asked once."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from fxpool.codecache.key import compiler_programs, toolchain
from fxpool.codecache.key.toolchain import find_compiler, require_compiler, toolchain_facts
from fxpool.errors import NoCompilerError
from fxpool.torch_compat.cpp import cpp_toolchain

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ here")


def as_new_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchain, "_known", {})
    monkeypatch.setattr(compiler_programs, "_digests", {})
    monkeypatch.setattr(compiler_programs, "_asked", {})


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    as_new_process(monkeypatch)
    for name in toolchain.ENVIRONMENT:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def candidates(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    chosen: list[str] = []
    monkeypatch.setattr(toolchain, "_candidates", lambda: list(chosen))
    return chosen


def no_process(*args: object, **kwargs: object) -> None:
    pytest.fail("a process was started")


def script(path: Path, version: str, code: int = 0) -> str:
    path.write_text(f"#!/bin/sh\necho '{version}'\nexit {code}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


@needs_compiler
def test_a_warm_process_starts_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, candidates: list[str]) -> None:
    candidates.append("g++")
    root = str(tmp_path / "cache")
    first = toolchain_facts(root)
    assert first["compiler"] != "none" and first["compiler_target"]
    assert not any("/" in value for value in first.values())
    monkeypatch.setattr(subprocess, "run", no_process)
    monkeypatch.setattr(subprocess, "Popen", no_process)
    assert toolchain_facts(root) == first  # same process
    as_new_process(monkeypatch)
    assert toolchain_facts(root) == first  # as a new process
    assert not [name for name in os.listdir(os.path.join(root, "toolchain")) if not name.endswith(".json")]


@needs_compiler
@pytest.mark.parametrize("content", [b"", b"[]", b'{"version": 3, "target": ""}', b"\xff"])
def test_a_damaged_answer_is_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, candidates: list[str], content: bytes
) -> None:
    candidates.append("g++")
    root = str(tmp_path / "cache")
    first = toolchain_facts(root)
    files = os.listdir(os.path.join(root, "toolchain"))
    assert files
    for file in files:
        with open(os.path.join(root, "toolchain", file), "wb") as damaged:
            damaged.write(content)
    as_new_process(monkeypatch)
    assert toolchain_facts(root) == first


@needs_compiler
def test_two_processes_agree(tmp_path: Path) -> None:
    program = "import sys, json; from fxpool.codecache.key.toolchain import toolchain_facts;"
    program += "print(json.dumps(toolchain_facts(sys.argv[1])))"
    found = {
        subprocess.run(
            [sys.executable, "-c", program, str(tmp_path / "cache")], capture_output=True, text=True, check=True
        ).stdout
        for _ in range(2)
    }
    assert len(found) == 1


def test_cxx_is_what_inductor_reads(tmp_path: Path) -> None:
    mine = script(tmp_path / "my-c++", "mycc 1.0")
    program = "from fxpool.codecache.key.toolchain import toolchain_facts; print(toolchain_facts()['compiler'])"
    run = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, "CXX": mine}, capture_output=True, text=True, check=True
    )
    assert run.stdout == "mycc 1.0\n"


def test_the_configuration_counts(tmp_path: Path) -> None:
    from torch._inductor import config

    first, second = script(tmp_path / "one", "one 1"), script(tmp_path / "two", "two 2")
    # Not monkeypatch: it undoes by deleting, after which the option does not exist.
    with config.patch({"cpp.cxx": (None, first, second)}):
        assert cpp_toolchain.compiler_candidates() == [first, second]
        assert toolchain_facts()["compiler"] == "one 1"
    with config.patch({"cpp.cxx": second}):
        assert toolchain_facts()["compiler"] == "two 2"


def test_what_does_not_run_is_passed_over(tmp_path: Path, candidates: list[str]) -> None:
    broken, works = script(tmp_path / "broken", "broken 1", code=3), script(tmp_path / "works", "works 2")
    candidates += ["no-such-compiler-anywhere", broken, works]
    found = find_compiler()
    assert found is not None and found.path == works and found.version == "works 2"
    assert require_compiler() == found


def test_a_path_that_is_relative_leads_to_the_same_compiler_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, candidates: list[str]
) -> None:
    mine = script(tmp_path / "c++", "mine 1")
    candidates.append("c++")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", os.pathsep.join([".", os.environ["PATH"]]))
    assert require_compiler().path == mine


def test_no_compiler(candidates: list[str]) -> None:
    candidates += ["no-such-compiler-anywhere"]
    assert toolchain_facts() == {"compiler": "none"}
    with pytest.raises(NoCompilerError) as caught:
        require_compiler()
    assert caught.value.tried == ["no-such-compiler-anywhere"]


def test_a_compiler_that_is_wanted_deep_inside_is_named(candidates: list[str]) -> None:
    """Inductor says so in errors of its own, around others."""
    candidates += ["no-such-compiler-anywhere"]
    deep = type("InvalidCxxCompiler", (RuntimeError,), {})("none works")
    for cause in (deep, FileNotFoundError("g++")):
        with pytest.raises(NoCompilerError, match="no-such"), toolchain.failures_explained():
            raise RuntimeError("lowering failed") from cause
    with pytest.raises(RuntimeError, match="something else"), toolchain.failures_explained():
        raise RuntimeError("something else") from ValueError()


def test_arguments_in_the_compiler_s_name_have_a_remedy_of_their_own() -> None:
    assert "without arguments" in NoCompilerError(["sh -c g++"]).remedy
    assert "apt-get install g++" in NoCompilerError(["g++"]).remedy
    assert "apt-get install g++" in NoCompilerError(["no such compiler"]).remedy


def test_what_inductor_remembers_is_of_the_compiler_in_force(tmp_path: Path) -> None:
    """Some of it is kept without the compiler's name."""
    from torch._inductor import config, cpp_builder

    gnu, clang = script(tmp_path / "g++", "g++ 1"), script(tmp_path / "clang++", "clang 1")
    for _ in range(2):
        for path, is_gnu in ((gnu, True), (clang, False)):
            with config.patch({"cpp.cxx": path}):
                toolchain.settle()
                assert (cpp_builder.is_gcc(), cpp_builder.is_clang()) == (is_gnu, not is_gnu)
    with config.patch({"cpp.cxx": clang}):  # the same: nothing is asked again
        (tmp_path / "clang++").touch()
        before = cpp_builder.is_clang.cache_info().hits
        toolchain.settle()
        assert cpp_builder.is_clang() and cpp_builder.is_clang.cache_info().hits == before + 1


def test_a_script_is_asked_in_every_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, candidates: list[str]
) -> None:
    """What it runs can change without it."""
    (tmp_path / "version").write_text("cc 1")
    path = tmp_path / "wrapper"
    path.write_text(f"#!/bin/sh\ncat {tmp_path}/version\n")
    path.chmod(0o755)
    candidates.append(str(path))
    root = str(tmp_path / "cache")
    assert toolchain_facts(root)["compiler"] == "cc 1"
    (tmp_path / "version").write_text("cc 2")
    as_new_process(monkeypatch)
    assert toolchain_facts(root)["compiler"] == "cc 2"


@needs_compiler
def test_another_file_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, candidates: list[str]) -> None:
    """An update of the compiler in place: another inode, size or time."""
    binary = tmp_path / "cc"
    true = shutil.which("true")
    assert true is not None
    shutil.copy(true, binary)
    candidates.append(str(binary))
    root = str(tmp_path / "cache")
    before = toolchain_facts(root)["compiler"]
    asked: list[list[str]] = []

    def run(command: list[str]) -> tuple[str, str]:
        asked.append(command)
        return "cc 2", "x"

    monkeypatch.setattr(toolchain, "_run", run)
    os.utime(binary, (1, 1))
    assert toolchain_facts(root)["compiler"] == "cc 2" != before
    assert asked == [[str(binary)]]


needs_words = pytest.mark.skipif(
    not cpp_toolchain.takes_arguments(), reason="this torch takes a compiler's name for one program"
)


@needs_words
def test_a_command_with_arguments(tmp_path: Path, candidates: list[str]) -> None:
    front, behind = script(tmp_path / "front", ""), script(tmp_path / "c++", "mine 1")
    (tmp_path / "front").write_text('#!/bin/sh\nexec "$@"\n')
    candidates += ["'never closed", f"{front} {behind}"]
    compiler = require_compiler()
    assert (compiler.path, compiler.arguments, compiler.version) == (front, (behind,), "mine 1")
    before = toolchain_facts()
    script(tmp_path / "c++", "mine 2")
    after = toolchain_facts()
    assert after["compiler"] == "mine 2"
    assert after["compiler_arguments"] != before["compiler_arguments"], "by content"


@needs_words
def test_arguments_are_in_the_facts(tmp_path: Path, candidates: list[str]) -> None:
    mine = script(tmp_path / "c++", "mine 1")
    candidates.append(mine)
    plain = toolchain_facts()
    candidates[:] = [f"{mine} -ffast-math"]
    assert toolchain_facts() == {**plain, "compiler_arguments": "-ffast-math"}


def test_search_paths_count_and_are_not_shown(monkeypatch: pytest.MonkeyPatch, candidates: list[str]) -> None:
    plain = toolchain_facts()
    monkeypatch.setenv("CPATH", "")
    assert toolchain_facts() == plain
    monkeypatch.setenv("CPATH", "/opt/secret/include")
    facts = toolchain_facts()
    assert facts != plain and "secret" not in str(facts)


@needs_compiler
def test_a_directory_that_is_not_ours_is_not_used(tmp_path: Path, candidates: list[str]) -> None:
    candidates.append("g++")
    root = tmp_path / "cache"
    root.mkdir()
    root.chmod(0o777)
    assert toolchain_facts(str(root))["compiler"] != "none"
    assert os.listdir(root) == []
