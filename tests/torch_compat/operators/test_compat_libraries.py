"""`libraries` finds the shared library that registered an operator, by the source that the compiler noted in it."""

from __future__ import annotations

import _ctypes
import ctypes
import io
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fxpool.torch_compat.operators import libraries
from fxpool.torch_compat.operators.dispatch_probe import NotFoundError

Load = Callable[..., str]


@pytest.fixture(autouse=True)
def _without_what_other_tests_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide libraries of other tests, whose files have gone: each of them would be an error."""
    with open("/proc/self/maps") as file:
        mapped = {line.rstrip("\n").split(None, 5)[5] for line in file if ".so" in line}
    gone = {path for path in mapped if not Path(path).exists()}

    def shown(path: Any, *arguments: Any, **options: Any) -> Any:
        if path != "/proc/self/maps":
            return open(path, *arguments, **options)
        with open(path, *arguments, **options) as file:
            return io.StringIO("".join(line for line in file if not any(line.endswith(f"{name}\n") for name in gone)))

    monkeypatch.setattr(libraries, "open", shown, raising=False)


@pytest.fixture
def loaded(tmp_path: Path) -> Iterator[Load]:
    """Build and load a library with some texts in it, as one has that is linked with torch."""
    compiler = shutil.which("g++") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no compiler")
    handles: list[int] = []

    def load(name: str, *texts: str) -> str:
        source, made = tmp_path / f"{name}.c", tmp_path / f"lib{name}.so"
        source.write_text("".join(f'const char {name}_{i}[] = "{text}";\n' for i, text in enumerate(texts)))
        subprocess.run([compiler, "-xc", "-shared", "-fPIC", str(source), "-o", str(made)], check=True)
        handles.append(ctypes.CDLL(str(made))._handle)
        return str(made)

    yield load
    for handle in handles:
        _ctypes.dlclose(handle)


SOURCE = "/src/compat_operators.cpp"


def test_the_library_that_names_a_source_is_found(loaded: Load) -> None:
    mine = loaded("compat_mine", "libc10.so", SOURCE)
    loaded("compat_other", "libc10.so", "/src/another.cpp")
    loaded("compat_plain", SOURCE)  # not linked with torch
    assert libraries.that_contain({SOURCE}, "ns::op") == [mine]


def test_a_library_that_it_names_is_found_as_well(loaded: Load) -> None:
    kernels = loaded("compat_kernels", "libc10.so")
    mine = loaded("compat_mine", "libc10.so", SOURCE, "libcompat_kernels.so")
    assert libraries.that_contain({SOURCE}, "ns::op") == sorted([kernels, mine])


def test_all_that_are_linked_with_torch_count_if_none_names_the_source(loaded: Load) -> None:
    made = {loaded(f"compat_{number}", "libc10.so") for number in range(2)}
    assert made <= set(libraries.that_contain({"/src/unknown.cpp"}, "ns::op"))


def test_a_library_that_was_replaced_is_not_what_was_mapped(loaded: Load) -> None:
    Path(loaded("compat_gone", "libc10.so", SOURCE)).unlink()
    with pytest.raises(NotFoundError, match=r"registered ns::op: .*libcompat_gone.so was replaced"):
        libraries.that_contain({SOURCE}, "ns::op")


def test_torch_s_own_libraries_do_not_count() -> None:
    try:
        found = libraries.that_contain({"/src/unknown.cpp"}, "ns::op")
    except NotFoundError as error:
        assert "none is mapped that is not torch's" in str(error)
    else:  # other tests of this process have loaded some
        assert [path for path in found if "/torch/lib/" in path] == []
