"""What Inductor returns for one graph, and how its generated module comes to life from an entry.

`use_bundle` gives a compiled graph our way of loading: its wrapper is executed from memory, and
the C++ kernels it asks for are taken from the entry's libraries instead of being compiled. All
that happens after (alignment, cudagraphs, counters, traces) is torch's own post-compile.
"""

from __future__ import annotations

import hashlib
import linecache
import types
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from torch._inductor.output_code import CompiledFxGraph

_IMPORT = "from torch._inductor.async_compile import AsyncCompile"


class Kernels(Protocol):
    """Where a wrapper finds its compiled kernels."""

    def find(self, argument_types: Sequence[str], source: str) -> Callable[..., Any] | None: ...

    def missed(self, what: str) -> None: ...


class BundledGraph(CompiledFxGraph):
    """A CompiledFxGraph whose kernels lie in the entry it came from."""

    _fxpool_kernels: Kernels
    _fxpool_name: str

    def after_deserialization(self, constants: Any) -> str:
        module = load_wrapper(self.source_code, self._fxpool_name, self._fxpool_kernels, constants.unwrap(self))
        self.current_callable = module.call
        self.recursively_apply_fns = getattr(module, "recursively_apply_fns", None)
        self.compiled_fn_runner = getattr(module, "runner", None)
        return self._fxpool_name


def is_compiled_graph(value: Any) -> bool:
    return isinstance(value, CompiledFxGraph)


def use_bundle(graph: Any, kernels: Kernels, name: str) -> None:
    """Load `graph` from `kernels` from now on. `name` stands in tracebacks as its file name."""
    graph.__class__ = BundledGraph
    graph._fxpool_kernels = kernels
    graph._fxpool_name = name


def kernel_digest(argument_types: Sequence[str], source: str) -> str:
    """What a kernel is found by: its C++ source and the types of its arguments."""
    return hashlib.sha256("\0".join((*argument_types, source)).encode()).hexdigest()


def load_wrapper(source: str, name: str, kernels: Kernels, constants: dict[str, Any]) -> types.ModuleType:
    """Execute a generated wrapper, its source known to tracebacks under `name`."""
    module = types.ModuleType(name)
    module.__file__ = name
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    if _IMPORT in source:
        # The name is put into the module instead: same wrapper, other loader.
        module.__dict__["AsyncCompile"] = lambda: BundledCompile(kernels)
        code = source.replace(_IMPORT, "#" + _IMPORT, 1)
    else:
        kernels.missed("wrapper_without_async_compile")
        code = source
    exec(compile(code, name, "exec"), module.__dict__)
    for constant, value in constants.items():
        setattr(module, constant, value)
    return module


class BundledCompile:
    """Stands for Inductor's AsyncCompile in a wrapper that is loaded: finds, does not compile.

    Kernels of other kinds than C++ (Triton, CUDA sources) are left to torch's own loader, which
    takes them from the files that were bundled with the graph.
    """

    def __init__(self, kernels: Kernels) -> None:
        from torch._inductor.async_compile import AsyncCompile

        self._kernels = kernels
        self._torch = AsyncCompile()

    def cpp_pybinding(self, argument_types: Sequence[str], source: str) -> Any:
        found = self._kernels.find(argument_types, source)
        if found is not None:
            return found
        self._kernels.missed("cpp_pybinding")
        return self._torch.cpp_pybinding(argument_types, source)

    def cpp(self, source: str) -> Any:
        self._kernels.missed("cpp")
        return self._torch.cpp(source)

    def wait(self, scope: dict[str, Any]) -> None:
        self._torch.wait(scope)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._torch, name)
