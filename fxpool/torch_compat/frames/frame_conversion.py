"""Dynamo's step from a frame to byte code with guards, which a program's frames pass once per set of guards.

`surround` puts a function around it. It is called where Dynamo would trace, with Dynamo's lock held, and either traces
(`trace`) or hands over byte code and guards as if Dynamo had just made them (`hand_over`).
"""

from __future__ import annotations

import functools
import inspect
import sys
import types
from collections.abc import Callable, Mapping, Set
from typing import Any, NamedTuple

from torch._dynamo import config, convert_frame, exc, utils
from torch._dynamo.eval_frame import skip_code
from torch._dynamo.types import GuardedCode, wrap_guarded_code

from fxpool import forks
from fxpool.torch_compat.frames.recording import Recorder, recording

__all__ = ["Call", "added_to", "hand_over", "is_comprehension", "rest_function", "skip_code", "surround"]

Around = Callable[["Call", Callable[[Recorder | None], Any]], Any]


class Call(NamedTuple):
    """One frame that Dynamo is about to trace.

    `variables` are its locals, `names` its module's globals. `backend` is the compiler that `torch.compile` was given;
    `whole`: it may not be broken into several graphs. `plain`: nothing is asked of Dynamo but the code to run.
    `buckets` are the sizes in bytes at which DistributedDataParallel splits the graph of its model; empty for others.
    `collective`: ranks exchange what they trace, and wait for each other.
    """

    code: types.CodeType
    variables: dict[str, Any]
    names: dict[str, Any]
    backend: Any
    whole: bool
    plain: bool
    compile_id: Any
    buckets: tuple[int, ...]
    collective: bool


# How the names begin of functions that Dynamo makes of comprehensions.
_COMPREHENSION = "__comprehension_function_at"
_lock = forks.lock(__name__, "_lock")
_original: Callable[..., Any] | None = None
# The names that appeared in modules while frames of theirs were traced, by the names of the modules.
_added: dict[str, set[str]] = {}


def added_to(names: dict[Any, Any]) -> Set[str]:
    """Return the names that Dynamo has put into a module's namespace: another process may have others."""
    module = dict.get(names, "__name__")
    return _added.get(module, frozenset()) if type(module) is str else frozenset()


def surround(around: Around) -> None:
    """Call `around` for each frame from now on. Only the first function of a process counts."""
    global _original
    with _lock:
        if _original is not None:
            return
        _original = convert_frame._compile
        parameters = inspect.signature(_original)

        @functools.wraps(_original)
        def compile_frame(*args: Any, **kwargs: Any) -> Any:
            call = _call(parameters.bind(*args, **kwargs).arguments)

            def trace(recorder: Recorder | None) -> Any:
                before = frozenset(call.names)
                try:
                    if recorder is None:
                        return _original(*args, **kwargs)
                    with recording(recorder):
                        return _original(*args, **{**kwargs, "package": recorder})
                except exc.InternalTorchDynamoError as error:
                    # An error in a listener must not end the program's compile. If the error is Dynamo's, tracing
                    # again raises it again.
                    if recorder is None:
                        raise
                    answer = _original(*args, **kwargs)
                    recorder.error = error
                    return answer
                finally:
                    if new := call.names.keys() - before:
                        _added.setdefault(str(call.names.get("__name__")), set()).update(new)

            return around(call, trace)

        convert_frame._compile = compile_frame


def _call(bound: Mapping[str, Any]) -> Call:
    hooks = bound["hooks"]
    asked = (hooks.guard_export_fn, hooks.guard_fail_fn, hooks.guard_filter_fn, bound.get("package"))
    backend, buckets = _backend(bound["compiler_fn"])
    return Call(
        code=bound["code"],
        variables=bound["locals"],
        names=bound["globals"],
        backend=backend,
        whole=bound["one_graph"],
        plain=not bound["export"] and not bound["export_constraints"] and all(one is None for one in asked),
        compile_id=bound["compile_id"],
        buckets=buckets,
        collective=config.enable_compiler_collectives,
    )


def _backend(compiler: Callable[..., Any]) -> tuple[Any, tuple[int, ...]]:
    """Return the compiler that `torch.compile` was given, and `Call.buckets`."""
    backend = convert_frame.innermost_backend(compiler)
    distributed = sys.modules.get("torch._dynamo.backends.distributed")
    splitting = getattr(backend, "__self__", None)
    if distributed is None or not isinstance(splitting, distributed.DDPOptimizer):
        return backend, ()
    inner = convert_frame.innermost_backend(splitting.backend_compile_fn)
    return inner, (splitting.first_bucket_cap, splitting.bucket_bytes_cap)


def rest_function(code: types.CodeType, names: dict[str, Any]) -> Callable[..., Any]:
    """Return what Dynamo's code calls for the rest after a graph break: a function, or for a closure one that makes it.

    Torch 2.11 makes closures from a constant of its code.
    """
    if not code.co_freevars:
        return types.FunctionType(code, names, code.co_name)

    def make(cells: tuple[types.CellType, ...]) -> types.FunctionType:
        return types.FunctionType(code, names, code.co_name, None, cells)

    convert_frame.skip_code(make.__code__)  # Dynamo would trace it
    return make


def is_comprehension(name: str) -> bool:
    """Return whether Dynamo gave this name to a function that it made of a comprehension with a graph break.

    It does so on Python 3.12 and later, where a comprehension is part of the code around it, and does not trace it.
    """
    return name.startswith(_COMPREHENSION)


def hand_over(call: Call, code: types.CodeType, manager: Any, defined: Mapping[str, Any]) -> Any:
    """Return Dynamo's answer for a frame: run `code` while the guards of `manager` hold.

    `defined` are globals for the code, which go when the code does, as those that Dynamo defines.
    """
    convert_frame.orig_code_map[code] = call.code
    convert_frame.output_codes.add(code)
    utils.CleanupManager.instance[code] = [
        utils.CleanupHook.create(call.names, name, value) for name, value in defined.items()
    ]
    return wrap_guarded_code(GuardedCode(code, manager, call.compile_id, f"Torch-Compiled Region: {call.compile_id}"))
