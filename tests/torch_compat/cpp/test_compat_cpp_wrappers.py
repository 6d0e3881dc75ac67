"""`cpp_wrappers` takes the library of a graph that is called through C++ as it is built, and loads it elsewhere."""

from __future__ import annotations

import ast
import importlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from fxpool.torch_compat.cpp import cpp_wrappers
from fxpool.torch_compat.cpp.cpp_wrappers import Collected

GENERATED = """
source = '''int main;'''
inductor_entry = CppWrapperCodeCache.load_pybinding(
    argtypes=["std::vector<AtenTensorHandle>"], main_code=source, device_type="cpu", num_outputs=2, kernel_code=None,
)
"""


def call_in(text: str) -> ast.Call:
    return next(node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call))


def test_a_wrapper_is_taken_by_the_digest_of_its_generated_call(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor.codecache import CppWrapperCodeCache

    taken: list[str] = []
    builders: list[Any] = []

    def builder(args: Any, kwargs: Any) -> Callable[[], bytes]:
        builders.append((args, dict(kwargs)))
        return lambda: b"library"

    monkeypatch.setattr(cpp_wrappers, "_builder", builder)
    before = vars(CppWrapperCodeCache).get("load_pybinding")
    arguments: dict[str, Any] = {
        "argtypes": ["std::vector<AtenTensorHandle>"],
        "main_code": "int main;",
        "device_type": "cpu",
        "num_outputs": 2,
        "kernel_code": None,
    }
    with cpp_wrappers.collecting(lambda digest, source, build: taken.append(digest)):
        wrapper = CppWrapperCodeCache.load_pybinding(**arguments)
    assert isinstance(wrapper, Collected) and vars(CppWrapperCodeCache).get("load_pybinding") is before
    with pytest.raises(RuntimeError, match="called in the process that compiled it"):
        wrapper()
    assert builders == [((), arguments)]
    assert taken == [cpp_wrappers.generated_digest(call_in(GENERATED), {"source": "int main;"})]
    assert taken == [cpp_wrappers.digest((), arguments)]


def test_calls_of_others_have_no_digest_and_unknown_arguments_are_refused() -> None:
    assert cpp_wrappers.generated_digest(call_in("CppCodeCache.load_pybinding('x')"), {}) is None
    assert cpp_wrappers.generated_digest(call_in("print('x')"), {}) is None
    with pytest.raises(ValueError):
        cpp_wrappers.generated_digest(call_in(GENERATED), {})


def test_a_wrapper_that_names_a_library_of_this_process_is_refused() -> None:
    from torch._inductor.codecache import CppWrapperCodeCache

    with (
        cpp_wrappers.collecting(lambda digest, source, build: None),
        pytest.raises(NotImplementedError, match=r"/tmp/x\.so"),
    ):
        CppWrapperCodeCache.load_pybinding(main_code="", extra_flags=("/tmp/x.so",))


def test_inductor_generates_the_call_that_is_looked_for() -> None:
    import inspect

    from torch._inductor.codecache import CppWrapperCodeCache
    from torch._inductor.codegen import cpp_wrapper_cpu

    owner, name = cpp_wrappers.LOADER
    assert f"{owner}.{name}(" in inspect.getsource(cpp_wrapper_cpu)
    assert CppWrapperCodeCache.entry_function == cpp_wrappers.ENTRY
    # What builds a library in this process, and returns what waits for it.
    assert "main_code" in inspect.signature(CppWrapperCodeCache.load_pybinding_async).parameters


def test_a_library_is_built_and_not_loaded() -> None:
    from torch._inductor.codecache import CppWrapperCodeCache

    code_cache = cpp_wrappers.unloaded(CppWrapperCodeCache)
    assert code_cache.cache == {} and code_cache.cache is not CppWrapperCodeCache.cache
    module = code_cache._load_library("/tmp/library.so", "key")
    assert getattr(module, cpp_wrappers.ENTRY) == "/tmp/library.so" and module.__name__ == "key"
    assert "_load_library" in {name for cls in CppWrapperCodeCache.__mro__ for name in vars(cls)}


def test_headers_are_kept_where_they_are_told(tmp_path: Path) -> None:
    from torch._inductor import codecache

    before = [codecache._HEADER_DIR, codecache._HEADER_LOCK_DIR]
    with cpp_wrappers.headers_in(str(tmp_path)):
        assert [str(tmp_path), f"{tmp_path}/locks"] == [codecache._HEADER_DIR, codecache._HEADER_LOCK_DIR]
    with cpp_wrappers.headers_in(None):
        assert before == [codecache._HEADER_DIR, codecache._HEADER_LOCK_DIR]


def test_a_library_is_loaded_with_torch_s_function_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any extension module with a function of its own name will do: one of Python's."""
    monkeypatch.delenv("_TORCHINDUCTOR_PYOBJECT_TENSOR_DATA_PTR", raising=False)
    modules = [importlib.import_module(name) for name in ("select", "syslog", "mmap", "array")]
    module = next((one for one in modules if getattr(one, "__file__", None)), None)
    if module is None or module.__file__ is None:
        pytest.skip("this Python has these modules built in")
    name = module.__name__
    monkeypatch.setitem(sys.modules, f"compat_library.{name}", module)  # removed again afterwards
    entry = cpp_wrappers.entry_at(module.__file__, "compat_library", name)
    loaded = sys.modules[f"compat_library.{name}"]
    assert loaded is not module and loaded.__file__ == module.__file__ and getattr(loaded, name) is entry
    address = int(os.environ["_TORCHINDUCTOR_PYOBJECT_TENSOR_DATA_PTR"])
    assert address == torch._C._dynamo.guards._torchinductor_pyobject_tensor_data_ptr > 0


def test_a_file_that_is_no_library_is_refused(tmp_path: Path) -> None:
    (tmp_path / "library.so").write_bytes(b"no library")
    with pytest.raises((ImportError, OSError)):
        cpp_wrappers.entry_at(str(tmp_path / "library.so"), "compat_library", "kernel")
    sys.modules.pop("compat_library.kernel", None)
