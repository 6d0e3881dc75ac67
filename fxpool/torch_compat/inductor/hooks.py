"""Takes over the work that Inductor gives to its own processes, and gives it back.

    AsyncCompile.process_pool        kernels: a pool that Inductor starts for itself, or its
      and get_worker_pool            threads                                                  ──▶ `Kernels`
    _SubprocessFxCompile             graphs, under TORCHINDUCTOR_FX_COMPILE_MODE=subprocess:
                                     one spawned process that forgets its caches each time    ──▶ `Graphs`
    compile_fx                       Dynamo's graphs, under ``async+`` and ``progressive+``   ──▶ `Begin`
                                     (under ``subprocess``, too, if `install` is asked to)
      and fx_codegen_and_compile     graphs of programs that call Inductor directly           ──▶ `direct_calls`

The code around the first two stays Inductor's: its graph cache is read and written in the calling process. The third is
replaced as a whole, because torch's own asynchronous mode compiles in the calling process first, and works only with
caches off. `install` and `uninstall` are for that process, `take_in_worker` for a worker that compiles a graph for it.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Protocol

import torch

from fxpool import forks
from fxpool.torch_compat.inductor import direct_calls
from fxpool.torch_compat.operators import operators
from fxpool.torch_compat.patching import Patches


class NotBorrowedError(Exception):
    """The pool does not compile this graph: compile it in this process, as without a pool."""


class Kernels(Protocol):
    """The part of a process pool's interface that Inductor uses."""

    def submit(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Future[Any]: ...

    def wakeup(self) -> None: ...

    def quiesce(self) -> None: ...

    def shutdown(self) -> None: ...


class Graphs(Protocol):
    """Compiles graphs pickled by torch; results are pickles of torch's, too."""

    def compile(self, graph: bytes, dependencies: Mapping[str, Any]) -> bytes:
        """Compile a graph. Raises NotBorrowedError, or `job_error`'s exception for an error of the compile.

        `dependencies` are the operators in the graph that are not torch's, by name (see `operators_of`).
        """

    def kept_here(self, reason: str, detail: str) -> None:
        """Report a graph that cannot be sent, and is compiled in this process; raise if that is an error."""

    def compile_later(self, graph: bytes, dependencies: Mapping[str, Any]) -> Future[bytes]:
        """Return a future that stays pending if the graph is not compiled: the caller has other code to run."""


class Begin(Protocol):
    """Takes a Dynamo graph in a background mode, with Inductor's options of that call."""

    def __call__(
        self, gm: torch.fx.GraphModule, inputs: Sequence[Any], /, *, mode: str, options: Mapping[str, Any]
    ) -> Callable[..., Any]: ...


_lock = forks.rlock(__name__, "_lock", lambda: _undo_half())
_patches = Patches()
_changing = False


def install(
    kernels: Kernels,
    graphs: Graphs,
    begin: Begin,
    direct: direct_calls.Compile,
    whole: Callable[[], bool] = lambda: False,
) -> bool:
    """Replace Inductor's own parts by these; return False if they are replaced already.

    While `whole` returns True, `begin` takes Dynamo's graphs in the mode ``subprocess``, too.
    Imports Inductor, which reads TORCHINDUCTOR_FX_COMPILE_MODE only at that time.
    """
    global _changing
    with _lock:
        if _patches:
            return False
        _changing = True
        try:
            _take_kernels(kernels)  # first: modules imported later must find no pool to start
            _take_graphs(graphs)
            direct_calls.take(_patches, direct)
            _take_compile_fx(begin, whole)
        except BaseException:
            uninstall()
            raise
        finally:
            _changing = False
    return True


def uninstall() -> None:
    """Put back the objects that `install` replaced."""
    global _changing
    with _lock:
        _changing = True
        _patches.restore()
        _changing = False


def _undo_half() -> None:
    """Undo an unfinished change of another thread in a forked child, which may then install again."""
    if _changing:
        uninstall()


def installed() -> bool:
    """Return whether Inductor's own parts are replaced."""
    return bool(_patches)


def take_in_worker(kernels: Kernels, threads: int) -> None:
    """Set up a process that compiles one graph: C++ on `threads` threads, Triton through `kernels`.

    With one thread, Inductor compiles everything itself, one kernel after the other.
    """
    from torch._inductor import async_compile, utils

    with _lock:
        _take_kernels(kernels)
        _patches.replace(async_compile, "get_compile_threads", lambda: threads)
        if hasattr(utils, "should_use_thread_workers"):
            _patches.replace(utils, "should_use_thread_workers", lambda: False)  # independent of the program's setting


def _take_kernels(kernels: Kernels) -> None:
    from torch._inductor.async_compile import AsyncCompile

    def process_pool() -> Kernels:
        return kernels

    # Called in a forked child and when Inductor ends its pools: must still drop a pool that Inductor had before.
    process_pool.cache_clear = AsyncCompile.process_pool.cache_clear  # type: ignore[attr-defined]

    def wakeup(cls: Any) -> None:
        if cls.use_process_pool():
            kernels.wakeup()  # Inductor's own checks the class of the pool first

    _patches.replace(AsyncCompile, "process_pool", staticmethod(process_pool))
    _patches.replace(AsyncCompile, "wakeup", classmethod(wakeup))
    # Since 2.15 threads may replace the pool, and code that waits for a kernel checks which of them made it.
    if hasattr(AsyncCompile, "get_worker_pool"):
        _patches.replace(AsyncCompile, "get_worker_pool", classmethod(lambda cls: kernels))
        _patches.replace(AsyncCompile, "should_use_thread_workers", classmethod(lambda cls: False))
    # Inductor submits a job to check whether its pool is ready, see `is_question`.
    _patches.replace(AsyncCompile, "_ready_future", None)


def _take_graphs(graphs: Graphs) -> None:
    from torch._inductor import compile_fx
    from torch._inductor.compile_fx_ext import _WireProtocolPickledOutput
    from torch._inductor.compile_fx_subproc import _SubprocessFxCompile

    original = _SubprocessFxCompile.codegen_and_compile

    def codegen_and_compile(
        self: Any, gm: torch.fx.GraphModule, inputs: Sequence[Any], to_check: Sequence[int], kwargs: Any
    ) -> Any:
        try:
            if (stays := _why_here(inputs)) is not None:
                graphs.kept_here(*stays)
                raise NotBorrowedError
            return original(self, gm, inputs, to_check, kwargs)
        except NotBorrowedError:
            here = compile_fx._InProcessFxCompile()
            if hasattr(self, "compile_region_name"):  # since 2.13
                here.compile_region_name = self.compile_region_name
            return here.codegen_and_compile(gm, inputs, to_check, kwargs)

    serialize = _SubprocessFxCompile.serialize_compile

    def serialize_compile(
        self: Any, gm: torch.fx.GraphModule, inputs: Sequence[Any], to_check: Sequence[int], kwargs: Any
    ) -> Any:
        _sent.dependencies = operators_of(gm)  # this thread sends the graph next
        with _unpicklable() as errors:
            try:
                made = serialize(self, gm, inputs, to_check, kwargs)
            except Exception as error:  # a type that torch does not expect from pickle (TypeError)
                made = None
                errors.append(error)
        if not made:
            graphs.kept_here(*_why_unsent(gm, errors))
        return made

    def send_to_child(self: Any, graph: Any) -> Any:
        return _WireProtocolPickledOutput(graphs.compile(graph.value, _sent.dependencies))

    def send_to_child_async(self: Any, graph: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()

        def done(compiled: Future[bytes]) -> None:
            error = compiled.exception()
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(_WireProtocolPickledOutput(compiled.result()))

        graphs.compile_later(graph.value, _sent.dependencies).add_done_callback(done)
        return future

    _patches.replace(_SubprocessFxCompile, "codegen_and_compile", codegen_and_compile)
    _patches.replace(_SubprocessFxCompile, "serialize_compile", serialize_compile)
    _patches.replace(_SubprocessFxCompile, "_send_to_child", send_to_child)
    _patches.replace(_SubprocessFxCompile, "_send_to_child_async", send_to_child_async)


def _why_here(inputs: Sequence[Any]) -> tuple[str, str] | None:
    """Return why a graph stays in this process although its mode sends it: torch's own subprocess would fail."""
    from torch._inductor.virtualized import V

    if V.aot_compilation:
        return "aot_inductor", "AOTInductor compiles the files of a package in this process"
    fake_mode = torch._guards.detect_fake_mode(inputs)
    if fake_mode is None or fake_mode.shape_env is None:
        return "no_shapes", "compile_fx was called directly, with inputs that have no symbolic shapes"
    return None


@contextlib.contextmanager
def _unpicklable() -> Iterator[list[BaseException]]:
    """Collect errors of pickling this thread's graph; torch would log about thirty lines for each."""
    from torch._inductor import compile_fx_ext

    errors: list[BaseException] = []
    thread = threading.get_ident()

    def collect(record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if record.thread != thread or error is None:
            return True
        errors.append(error)
        return False

    compile_fx_ext.log.addFilter(collect)
    try:
        yield errors
    finally:
        compile_fx_ext.log.removeFilter(collect)


def _why_unsent(gm: torch.fx.GraphModule, errors: Sequence[BaseException]) -> tuple[str, str]:
    """Return why torch does not send a graph: the reason to count, and details."""
    from torch._inductor import compile_fx_ext
    from torch._inductor.codecache import BypassFxGraphCache, FxGraphCache

    try:
        FxGraphCache._check_for_hop(gm)
    except BypassFxGraphCache as error:
        return "higher_order_operator", str(error)
    has_kernel = getattr(compile_fx_ext, "_graph_contains_triton_kernel_wrappers", None)  # since 2.13
    if has_kernel is not None and has_kernel(gm):
        return "triton_kernel", "the graph has a Triton kernel of the program's"
    if errors:
        return "not_picklable", f"{type(errors[0]).__name__}: {errors[0]}"
    return "not_sent", "torch does not say why"


# The dependencies of the graph that a thread is sending: Inductor passes on only its bytes.
_sent = threading.local()


def operators_of(gm: torch.nn.Module) -> dict[str, Any]:
    """Return operators that are not torch's in a graph after AOTAutograd, nested graphs included, by name."""
    custom: dict[str, Any] = {}
    for module in gm.modules():
        for node in module.graph.nodes if isinstance(module, torch.fx.GraphModule) else ():
            if operators.is_overload(node.target) and not operators.is_builtin(node.target):
                custom[f"operator:{operators.overload_name(node.target)}"] = node.target
    return custom


def _take_compile_fx(begin: Begin, whole: Callable[[], bool]) -> None:
    from torch._inductor import compile_fx

    original = compile_fx.compile_fx

    @functools.wraps(original)
    def taken(model_: Any, example_inputs_: Sequence[Any], *args: Any, **arguments: Any) -> Any:
        # torch.compile passes no other arguments. Other arguments are for special uses: an ahead-of-time package, an
        # artifact, a custom compiler for the inner graphs.
        is_direct = bool(args or arguments.keys() - {"config_patches", "compile_region_name"})
        mode = compile_mode() if not is_direct else ""
        if mode == "subprocess" and not whole():
            mode = ""
        if mode:
            return begin(model_, example_inputs_, mode=mode, options=arguments.get("config_patches") or {})
        is_part = direct_calls.is_inside()
        with direct_calls.inside():
            if is_direct and not is_part:
                return direct_calls.called(original, model_, example_inputs_, *args, **arguments)
            return original(model_, example_inputs_, *args, **arguments)

    _patches.replace(compile_fx, "compile_fx", taken)


def compile_mode() -> str:
    """Return the mode in force if graphs leave this process, else ""; "" during fxpool's own compiles."""
    from torch._inductor import compile_fx

    if compile_fx.fx_compile_mode != compile_fx.FxCompileMode.SUBPROCESS:
        return ""
    prefixes = [name for name in ("progressive", "async") if getattr(compile_fx, f"fx_compile_{name}")]
    return "+".join([*prefixes, "subprocess"])


def options_of(backend: Any) -> Mapping[str, Any] | None:
    """Return Inductor's options of a call of `torch.compile`; None if its graphs do not pass the parts replaced."""
    if not installed() or type(backend) is not torch._TorchCompileInductorWrapper:
        return None
    options: dict[str, Any] = backend.config
    return options


def is_question(function: Callable[..., Any]) -> bool:
    """Return whether a job of Inductor's only checks if the pool is ready."""
    from torch._inductor.async_compile import AsyncCompile

    return function is AsyncCompile._get_ready


READY = "ready"  # the reply to that job


def compiles_only(function: Callable[..., Any]) -> bool:
    """Return whether a job of Inductor's compiles a Triton kernel for a device named in its text, using no device."""
    from torch._inductor.async_compile import _worker_compile_triton

    return function is _worker_compile_triton and not torch.version.hip


def compile_graph(graph: bytes) -> bytes:
    """Compile a graph passed to `Graphs`, in a worker. The result includes logs and warnings."""
    from torch._inductor.compile_fx_ext import _WireProtocolPickledInput
    from torch._inductor.compile_fx_subproc import _SubprocessFxCompile

    value: bytes = _SubprocessFxCompile._run_in_child(_WireProtocolPickledInput(graph)).value
    return value


def job_error(details: str) -> Exception:
    """Return Inductor's error for a job that raised; `details` is the traceback."""
    from torch._inductor.compile_worker.subproc_pool import SubprocException

    return SubprocException(details)


def cache_directory() -> str:
    """Return Inductor's directory. Its default is under the temporary directory, and a worker has its own."""
    from torch._inductor.runtime import cache_dir_utils

    return cache_dir_utils.cache_dir()
