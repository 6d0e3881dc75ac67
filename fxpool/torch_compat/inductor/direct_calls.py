"""Calls of Inductor by programs that compile graphs themselves: ``standalone_compile``, and ``compile_fx`` directly.

    torch.compile ─▶ compile_fx(graph, inputs)                                    not here
    vLLM ─▶ standalone_compile ─┐
    SGLang ─▶ ──────────────────┴▶ compile_fx(graph, inputs, inner_compile=, ...) a direct call
                                     └▶ AOTAutograd ─▶ inner compile ─▶ torch's caches
                                                                          └ miss ─▶ fx_codegen_and_compile ─▶ `Compile`

Only the last step is replaced: the lowering of one graph after AOTAutograd. So such a program has its own types of
artifacts, file formats, keys, lookups and hooks, as torch provides them. A backward may be lowered after the call has
returned; it belongs to the call nevertheless.

The state is this thread's: `_state.inside` while ``compile_fx`` runs, as it calls itself, and `_state.inner` while the
inner compile of a direct call runs.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from fxpool.torch_compat.patching import Patches

__all__ = ["Compile", "called", "inside", "is_inside", "take"]

_state = threading.local()


class Compile(Protocol):
    """Compiles a graph after AOTAutograd."""

    def __call__(
        self,
        gm: Any,
        inputs: Sequence[Any],
        arguments: dict[str, Any],
        stock: Callable[[], Any],
        decomposed: bool,
        /,
    ) -> Any:
        """Return Inductor's output, before its post-compile steps; `stock` makes it in this process.

        `arguments` are those of the inner compile. `decomposed`: the call has its own table of decompositions.
        """


@contextlib.contextmanager
def _set(name: str, value: Any) -> Iterator[None]:
    before = getattr(_state, name, None)
    setattr(_state, name, value)
    try:
        yield
    finally:
        setattr(_state, name, before)


def inside() -> contextlib.AbstractContextManager[None]:
    """Let calls of ``compile_fx`` in this thread be parts of the current one, or of fxpool's own compile."""
    return _set("inside", True)


def is_inside() -> bool:
    """Return whether a call of ``compile_fx`` is a part of another one."""
    return bool(getattr(_state, "inside", False))


def called(original: Callable[..., Any], *args: Any, **arguments: Any) -> Any:
    """Make a direct call of ``compile_fx``, which is `original`."""
    from torch._inductor import compile_fx

    call = inspect.signature(original).bind(*args, **arguments)
    inner = call.arguments.get("inner_compile", compile_fx.compile_fx_inner)
    decomposed = call.arguments.get("decompositions") is not None

    @functools.wraps(inner)
    def marked(*args: Any, **arguments: Any) -> Any:
        with _set("inner", decomposed):
            return inner(*args, **arguments)

    call.arguments["inner_compile"] = marked
    return original(*call.args, **call.kwargs)


def _is_wrapped() -> bool:
    """Return whether torch's own modes ``async+`` and ``progressive+`` wrap a graph, as they do without its caches."""
    from torch._inductor import compile_fx, config

    return not config.fx_graph_cache and (compile_fx.fx_compile_async or compile_fx.fx_compile_progressive)


def take(patches: Patches, compile: Compile) -> None:
    """Give the graphs of direct calls to `compile`, until `patches` are restored."""
    from torch._inductor import compile_fx
    from torch._inductor.virtualized import V

    original = compile_fx.fx_codegen_and_compile

    @functools.wraps(original)
    def taken(gm: Any, example_inputs: Sequence[Any], inputs_to_check: Sequence[int], **arguments: Any) -> Any:
        decomposed = getattr(_state, "inner", None)

        def stock() -> Any:
            return original(gm, example_inputs, inputs_to_check, **arguments)

        if decomposed is None or V.aot_compilation or _is_wrapped():
            return stock()
        with _set("inner", None):
            return compile(gm, example_inputs, arguments, stock, decomposed)

    patches.replace(compile_fx, "fx_codegen_and_compile", taken)
