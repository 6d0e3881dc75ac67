"""The headers that kernels include, as a real compiler lists them: their content is in the key, wherever they are."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import threading
import time
import types
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
import torch

from fxpool.codecache.key import compiler_programs, headers, source_toolchain, toolchain
from fxpool.codecache.key.cacheable import Bypass
from fxpool.torch_compat.cpp import compile_commands, cpp_toolchain, included_headers

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ here")

Change = Callable[[Path], object]


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(headers, "_known", {})
    monkeypatch.setattr(headers, "_CHECKED_FOR", 0.0)
    monkeypatch.setattr(headers, "_SETTLED", -1000.0)  # these files are as old as the test
    monkeypatch.setattr(compiler_programs, "_digests", {})
    for name in toolchain.ENVIRONMENT:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def root(tmp_path: Path) -> str:
    made = tmp_path / "root"
    made.mkdir(mode=0o700)
    return str(made)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels that include little, so that the compiler answers soon."""
    monkeypatch.setattr(compile_commands, "HEADER", "#include <mine.h>")
    monkeypatch.setattr(included_headers, "_NAMES", {**included_headers._NAMES, "kernels": ()})
    included_headers._source.cache_clear()


@pytest.fixture
def include(tmp_path: Path, small: None, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Directories on CPATH: a header in the last one includes two of that directory, and one of the system."""
    found = tmp_path / "include"
    for name in ("first/deep", "last/deep"):
        (found / name).mkdir(parents=True)
    (found / "last/mine.h").write_text('#include <deep/er.h>\n#include "beside.h"\n#include <cerrno>\n')
    (found / "last/deep/er.h").write_text("// one\n")
    (found / "last/beside.h").write_text("// one\n")
    monkeypatch.setenv("CPATH", f"{found}/first:{found}/missing:{found}/last")
    return found


def digest(root: str | None) -> str:
    return toolchain.key_facts(root, [included_headers.KERNELS])["headers_kernels"]


def again(root: str | None) -> str:
    """As the next process."""
    headers._known.clear()
    return digest(root)


def no_process(*args: object, **kwargs: object) -> None:
    pytest.fail("a process was started")


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w") as file:  # the directory stays as it was
        file.write(text)


def system_header(name: str) -> str:
    """The system's header, edited."""
    said = subprocess.run(
        ["g++", "-M", "-xc++", "-"], input=f"#include <{name}>", text=True, check=True, capture_output=True
    ).stdout
    return Path(next(word for word in said.split() if word.endswith(f"/{name}"))).read_text() + "// edited\n"


def moved_and_edited(include: Path) -> None:
    os.replace(include / "last/deep/er.h", include / "first/deep/er.h")
    write(include / "first/deep/er.h", "// three\n")


EDITS: dict[str, Change] = {
    "edited": lambda include: write(include / "last/mine.h", "// other\n"),
    "included by it": lambda include: write(include / "last/deep/er.h", "// two\n"),
    "beside it": lambda include: write(include / "last/beside.h", "// two\n"),
    "in an earlier directory": lambda include: write(include / "first/mine.h", "// other\n"),
    "in an earlier directory, deep": lambda include: write(include / "first/deep/er.h", "// two\n"),
    "in an earlier directory that was not there": lambda include: write(include / "missing/deep/er.h", "// two\n"),
    "one of the system": lambda include: write(include / "first/cerrno", system_header("cerrno")),
    "one that one of the system includes": lambda include: write(include / "first/errno.h", system_header("errno.h")),
    "a link to another": lambda include: (include / "first/mine.h").symlink_to(include / "last/beside.h"),
    "gone": moved_and_edited,
}


@pytest.mark.parametrize("edit", EDITS)
def test_another_header_is_another_key(edit: str, include: Path, root: str) -> None:
    before = digest(root)
    EDITS[edit](include)
    after = digest(root)
    assert after != before
    assert again(root) == after == again(None), "in each process"


def touch(include: Path) -> None:
    for path in include.rglob("*.h"):
        path.touch()


def copy(include: Path) -> None:
    shutil.copytree(include / "last", include / "first", dirs_exist_ok=True)


def link(include: Path) -> None:
    os.rename(include / "last", include / "elsewhere")
    (include / "last").symlink_to(include / "elsewhere")


def edited_and_put_back(include: Path) -> None:
    write(include / "last/mine.h", "// other\n")
    digest(None)
    write(include / "last/mine.h", '#include <deep/er.h>\n#include "beside.h"\n#include <cerrno>\n')


SAME: dict[str, Change] = {
    "an unrelated header": lambda include: write(include / "last/unrelated.h", "// one\n"),
    "an unrelated header, earlier": lambda include: write(include / "first/deep/unrelated.h", "// one\n"),
    "touched": touch,
    "a copy in an earlier directory": copy,
    "a link to the directory": link,
    "edited, and put back": edited_and_put_back,
}


@pytest.mark.parametrize("change", SAME)
def test_equal_headers_are_the_same_key(change: str, include: Path, root: str) -> None:
    before = digest(root)
    SAME[change](include)
    assert digest(root) == before == again(root)


def test_the_content_of_other_machines_headers_is_compared(
    include: Path, root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Equal headers lie elsewhere there."""
    before = digest(root)
    shutil.copytree(include / "last", tmp_path / "there is a space")
    monkeypatch.setenv("CPATH", str(tmp_path / "there is a space"))
    assert again(str(tmp_path / "another root")) == before


def test_the_compiler_is_asked_once(include: Path, root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not by the next process either, but after a change in a directory that it searches."""
    before = toolchain.key_facts(root, [included_headers.KERNELS])
    assert not any(str(include) in value for value in before.values())
    monkeypatch.setattr(subprocess, "Popen", no_process)
    assert toolchain.key_facts(root, [included_headers.KERNELS]) == before
    headers._known.clear()
    assert toolchain.key_facts(root, [included_headers.KERNELS]) == before
    write(include / "first/deep/unrelated.h", "// one\n")
    with pytest.raises(BaseException, match="a process was started"):
        toolchain.key_facts(root, [included_headers.KERNELS])


def test_threads_ask_once(include: Path, root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    original = headers._asked

    def slow(kind: included_headers.Kind, compiler: tuple[str, ...]) -> object:
        asked.append(kind)
        time.sleep(0.2)
        return original(kind, compiler)

    monkeypatch.setattr(headers, "_asked", slow)
    threads = [threading.Thread(target=digest, args=(root,)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(asked) == 1


def test_a_header_edited_a_moment_ago_is_looked_at_again(
    include: Path, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clocks of file systems tick slowly: the next edit may leave its times as they are."""
    monkeypatch.setattr(headers, "_SETTLED", 2.0)
    assert digest(root) == digest(root)
    assert not headers._known and "headers" not in str(list(Path(root, "toolchain").glob("*.json")))
    monkeypatch.setattr(subprocess, "Popen", no_process)
    with pytest.raises(BaseException, match="a process was started"):
        digest(root)


def test_a_slow_clock_leaves_headers_settled(include: Path, root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All files are from its future, also those that have been there for years."""
    monkeypatch.setattr(headers, "_SETTLED", 2.0)
    slow = types.SimpleNamespace(time=lambda: time.time() - 1e8, monotonic=time.monotonic)
    monkeypatch.setattr(headers, "time", slow)
    before = digest(root)
    assert headers._known and again(root) == before


@pytest.mark.parametrize(
    "damage", [b"", b"{", b"[1]", b'{"digest": "x"}', b'{"digest": "x", "stamp": "", "paths": "3"}']
)
def test_a_damaged_listing_is_asked_for_again(damage: bytes, include: Path, root: str) -> None:
    before = digest(root)
    for path in Path(root, "toolchain").glob("*.json"):
        path.write_bytes(damage)
    assert again(root) == before


@pytest.mark.parametrize("name", ["a b", "#a", "a$b", "a'b", 'a"b', "a\\b", "a\\ b", "é", "a%b"])
def test_odd_names(name: str, include: Path, root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    os.rename(include / "last", include / name)
    monkeypatch.setenv("CPATH", f"{include}/first:{include}/{name}")
    before = digest(root)
    write(include / name / "deep/er.h", "// two\n")
    assert digest(root) != before


def test_relative_directories(include: Path, root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers compile in directories without headers; above these may be some."""
    monkeypatch.chdir(include)
    monkeypatch.setenv("CPATH", f":first:.:{include}/last:")
    before = digest(root)
    write(include / "first/mine.h", "// other\n")
    assert digest(root) == before
    for entry in ("..", "../first", "./../first", "missing/../../first"):
        monkeypatch.setenv("CPATH", f"{include}/last:{entry}")
        with pytest.raises(Bypass, match=r"compiler_unknown.*relative to where it is started"):
            digest(root)


# ---------------------------------------------------------------- torch's own


@pytest.fixture
def overlay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Headers of the installed torch, as links, but for directories above those that tests edit, which are copies."""
    real, made = Path(torch.__file__).parent / "include", tmp_path / "torch/include"
    made.parent.mkdir()
    for inside in ("", "ATen", "ATen/native", "torch", "torch/csrc"):
        if (made / inside).is_symlink():
            (made / inside).unlink()
        (made / inside).mkdir()
        for name in os.listdir(real / inside):
            (made / inside / name).symlink_to(real / inside / name)
    (made / "ATen/native/Math.h").unlink()
    shutil.copy(real / "ATen/native/Math.h", made / "ATen/native/Math.h")
    monkeypatch.setattr(torch, "__file__", str(tmp_path / "torch/__init__.py"))
    return made


@pytest.mark.timeout(600)
def test_an_edited_header_of_torch_is_another_key(overlay: Path, root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before, path = digest(root), overlay / "ATen/native/Math.h"
    with monkeypatch.context() as context:
        context.undo()
        assert again(None) == before, "the installed torch has the same"
    os.utime(path)
    write(overlay / "ATen/native/not_included.h", "// one\n")
    assert again(root) == before
    text = path.read_text()
    write(path, text + "// edited\n")
    assert digest(root) != before
    write(path, text)
    assert digest(root) == before
    write(overlay / "torch/csrc/cerrno", "// not searched\n")
    assert digest(root) == before
    write(overlay / "cerrno", system_header("cerrno"))
    assert digest(root) != before, "torch's directories are searched before the system's"


@pytest.mark.timeout(600)
def test_other_kinds_of_sources_have_their_own_headers(root: str) -> None:
    """The configuration or the graph decides which of them the compiler is asked for."""
    from torch._inductor import config

    plain = source_toolchain.key_facts(root)
    assert {name for name in plain if name.startswith("headers")} == {"headers_kernels"}
    with config.patch(cpp_wrapper=True):
        wrapper = source_toolchain.key_facts(root)
    assert wrapper.items() > plain.items() and "headers_wrapper" in wrapper
    package = source_toolchain.key_facts(root, package=True)
    assert package.items() > plain.items() and "headers_package" in package
    listed = [path for known, _ in headers._known.values() for path in known.files]  # type: ignore[union-attr]
    for name in ("cpp_prefix.h", "cpp_wrapper/cpu.h", "aoti_include/cpu.h", "aoti_torch/c/shim.h"):
        assert any(path.endswith(f"torch/csrc/inductor/{name}") for path in listed), name


def test_a_graph_for_gpus_does_not_ask(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(headers, "digests", no_process)
    assert not [name for name in source_toolchain.key_facts(root, headers=False) if name.startswith("headers")]


# ---------------------------------------------------------------- other compilers


def script(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return shlex.quote(str(path)) if cpp_toolchain.takes_arguments() else str(path)


def key_with(compiler: str, root: str | None, program: str = "") -> str:
    """The digest in a process that has this compiler, and what else `program` sets."""
    text = f"{program}\nimport sys\nfrom fxpool.codecache.key import headers, toolchain\n"
    text += "from fxpool.torch_compat.cpp import compile_commands, included_headers\n"
    text += "compile_commands.HEADER = '#include <mine.h>'\n"
    text += "included_headers._NAMES['kernels'] = ()\nheaders._SETTLED = -1000.0\n"
    text += f"print(toolchain.key_facts({root!r}, [included_headers.KERNELS])['headers_kernels'])"
    environment = {**os.environ, "CXX": compiler}
    return subprocess.run(
        [sys.executable, "-c", text], env=environment, check=True, capture_output=True, text=True
    ).stdout


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("front", ["a script", "clang++", "ccache", "arguments"])
def test_any_compiler_is_asked(front: str, include: Path, root: str, tmp_path: Path) -> None:
    if front == "arguments" and not cpp_toolchain.takes_arguments():
        pytest.skip("this torch takes a compiler's name for one program")
    if shutil.which(front) is None and front in ("clang++", "ccache"):
        pytest.skip(f"no {front} here")
    if front == "ccache":
        os.symlink(str(shutil.which("ccache")), tmp_path / "g++")
    (tmp_path / "a b").mkdir()
    compiler = {
        "a script": script(tmp_path / "a b/c++", 'exec g++ -DX=1 "$@"'),
        "clang++": "clang++",
        "ccache": str(tmp_path / "g++"),
        "arguments": "g++ -DX=1",
    }[front]
    before = key_with(compiler, root)
    write(include / "last/deep/er.h", "// two\n")
    after = key_with(compiler, root)
    assert after != before
    write(include / "first/deep/er.h", "// one\n")
    assert key_with(compiler, root) == before


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "text",
    [
        "exit 1",
        "exit 0",
        'exec g++ "$@" 2>/dev/null',
        'exec g++ "$@" -MT other -fsyntax-only -M -MF /dev/null',
        'for last; do case "$last" in *.d) echo "header: /nowhere/at/all.h" > "$last";; esac; done',
        'g++ "$@"; for last; do case "$last" in *.d) sed -i s/mine.h/nowhere.h/ "$last";; esac; done',
    ],
)
def test_a_compiler_that_lists_nothing_is_unknown(
    text: str, include: Path, root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = 'case "$1" in --version) echo "g++ 12";; -dumpmachine) echo x;; *)\n'
    compiler = script(tmp_path / "g++", f"{answers}{text};; esac")
    monkeypatch.setattr(toolchain, "_candidates", lambda: [compiler])
    for _ in range(2):
        with pytest.raises(Bypass, match="compiler_unknown: the compiler"):
            digest(root)
    with monkeypatch.context() as context:
        context.setattr(subprocess, "Popen", no_process)
        monkeypatch.setattr(toolchain, "_ask", lambda path, arguments, root: ("g++ 12", "x"))
        with pytest.raises(Bypass):
            digest(root)  # not asked again at once
    monkeypatch.setattr(headers, "_FAILED_FOR", 0.0)
    script(tmp_path / "g++", 'exec g++ "$@"')
    assert digest(root)


def test_no_compiler_outlives_a_failure(
    include: Path, root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A compiler's children, which write the files, end with it."""
    numbers = tmp_path / "pids"
    kept = f"sleep 600 & echo $! >> {numbers}; wait"
    answers = f'case "$1" in --version) echo "g++ 12";; -dumpmachine) echo x;; *) {kept};; esac'
    compiler = script(tmp_path / "g++", answers)
    monkeypatch.setattr(toolchain, "_candidates", lambda: [compiler])
    monkeypatch.setattr(headers, "_TIMEOUT", 0.5)
    with pytest.raises(Bypass, match="compiler_unknown: the compiler"):
        digest(root)
    children = [int(number) for number in numbers.read_text().split()]
    end = time.monotonic() + 20
    while any(map(_runs, children)) and time.monotonic() < end:
        time.sleep(0.01)
    assert children and not any(map(_runs, children))


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.slow
def test_processes_agree(include: Path, root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one on a host, and one that finds its listing."""
    compiler = shutil.which("g++")
    assert compiler is not None
    first, second = (key_with(compiler, root).strip() for _ in range(2))
    monkeypatch.setattr(toolchain, "_candidates", lambda: [compiler])
    assert first == second == digest(None)
    assert "/" not in json.dumps([first])
