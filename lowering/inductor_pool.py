"""Stock Inductor on the host's pool: ``fxpool.install()`` and ``fxpool.uninstall()``.

    torch.compile(backend="inductor")
      ├─ kernels   AsyncCompile          ──▶ `KernelPool`  ──▶ service: the pool ──▶ worker: `run_kernel`
      ├─ graphs    FX_COMPILE_MODE=      ──▶ `GraphPool`   ──▶ service: the pool ──▶ worker: `run_graph`
      │            subprocess                                     its C++ in threads, its Triton in sub-jobs
      └─ graphs    async+, progressive+  ──▶ the backend "fxpool" in that mode

Under ``async+`` and ``progressive+`` all is as with ``backend="fxpool"``, the guarded cache too. Else nothing of that
cache is used: what is kept is kept by Inductor, in the asker's directories, where workers read and write as the asker
does. A job is a pickle, in a process that has the asker's environment, configuration and switches. What the pool does
not do is done here as without it, and counted; what killed its workers twice is an error, as Inductor has no eager
form of a graph to give instead.
"""

from __future__ import annotations

import atexit
import contextlib
import contextvars
import functools
import os
import pickle
import textwrap
import threading
import traceback
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, Protocol

from fxpool import config, counters, forks, notices
from fxpool.codecache import program_code, toolchain
from fxpool.codecache.undigestable import UndigestableError
from fxpool.errors import (
    CannotTravelError,
    FxpoolError,
    PoolError,
    PoolUnavailableError,
    ProtocolError,
    UnsupportedTorchError,
)
from fxpool.lowering.core import pool_environment, switched_off
from fxpool.lowering.core.runtime import runtime
from fxpool.lowering.request.compile_request import CODE_DIFFERS
from fxpool.lowering.request.placement import current_device, visible_devices
from fxpool.torch_compat import versions

log = notices.logger(__name__)

KERNEL_JOB = "fxpool.lowering.inductor_pool:run_kernel"
GRAPH_JOB = "fxpool.lowering.inductor_pool:run_graph"

# Not for workers: they have no pool of their own, and are to compile what they are given themselves.
_KEPT_HERE = frozenset(("TORCHINDUCTOR_FX_COMPILE_MODE", "TORCHINDUCTOR_COMPILE_THREADS", "TORCH_WARM_POOL"))


class _Interpreter:
    """The state of the interpreter: once it is `ending`, nothing that Inductor sends is compiled."""

    def __init__(self) -> None:
        self.ending = forks.event()

    def after_fork_in_child(self) -> None:
        pass  # the event is the child's own

    def reset(self) -> None:
        self.ending.clear()


class _DeviceNeededError(Exception):
    """A worker that does not see the devices can't compile a graph; the text is what one was asked."""


class _OtherCode(str):
    """Stands for a result where a worker has other code than the program; the text is which."""


class _Sent(Protocol):
    """A job on its way: the client's, or a worker's sub-job."""

    def result(self) -> bytes: ...

    def add_done_callback(self, function: Callable[[Any], object]) -> None: ...


class Send(Protocol):
    """Sends a job: its function, payload and label, and whether no GPU is to be seen where it runs."""

    def __call__(self, function: str, payload: bytes, label: str, /, *, unseen: bool = False) -> _Sent: ...


def install() -> None:
    """See `fxpool.install`."""
    refusal = versions.current_refusal()
    if refusal is not None:
        raise UnsupportedTorchError(refusal, remedy="leave fxpool.install() out, or use a torch in that range")
    config.current()  # what does not parse is said here, not in the middle of a compile
    from fxpool.lowering.backend import fxpool_backend
    from fxpool.torch_compat.inductor import hooks

    # Another thread may be at it, and is waited for there.
    if hooks.install(KernelPool(_to_pool), GraphPool(), fxpool_backend):
        atexit.register(runtime.part(_Interpreter).ending.set)


def uninstall() -> None:
    """See `fxpool.uninstall`."""
    from fxpool.torch_compat.inductor import hooks

    hooks.uninstall()
    atexit.unregister(runtime.part(_Interpreter).ending.set)


# ------------------------------------------------------------------------------ in the process that asks


def _to_pool(function: str, payload: bytes, label: str, *, unseen: bool = False) -> _Sent:
    """Send a job to this process's pool; with `unseen` no GPU is to be seen there. Raises PoolError."""
    if config.current().pool == "off":
        raise PoolUnavailableError("the pool is switched off", remedy="set FXPOOL_POOL to embedded or host")
    from fxpool.lowering.core import job_place
    from fxpool.torch_compat.inductor import hooks

    environment = {name: value for name, value in os.environ.items() if name not in _KEPT_HERE}
    environment["TORCHINDUCTOR_CACHE_DIR"] = hooks.cache_directory()
    if unseen:
        environment |= dict.fromkeys(pool_environment.DEVICES, "")
    return runtime.pool().submit(function, payload, job_place.spec(label, environment))


def _step_down(error: FxpoolError, *, otherwise: str = "is compiled in this process") -> None:
    """Count that the pool does not compile something, and say so once per reason. Raises `error` under ``strict``, and
    if it is of something that killed its workers: it would do the same to this process."""
    from fxpool.lowering.fallback.eager import DEADLY

    if config.current().strict or isinstance(error, DEADLY):
        raise error
    if isinstance(error, CannotTravelError):
        reason = error.reason
    else:
        reason = error.counted if isinstance(error, PoolUnavailableError) else type(error).__name__
    counted = f"borrowed:{reason}"
    counters.count("fallbacks", counted)
    why = error.detail if isinstance(error, CannotTravelError) and error.detail else error.message
    if isinstance(error, (PoolUnavailableError, ProtocolError)):
        switched_off.say_without_pool(error, f"what Inductor sends {otherwise}")
    else:
        notices.once(
            counted, f"no worker compiles this, it {otherwise} (said once, counted as {counted!r}): {_line(why)}"
        )
    log.info("%s (%s): %s", otherwise, counted, error)


def _line(text: str) -> str:
    """The beginning of a text, on one line."""
    return textwrap.shorten(text, 160, placeholder=" ...")


def _value(answer: bytes) -> Any:
    """What a job returned; raises the error that Inductor makes of one which it raised.

    Raises CannotTravelError: the worker has other code than this program.
    """
    from fxpool.torch_compat.inductor import hooks

    made, value = pickle.loads(answer)
    if isinstance(value, _OtherCode):
        raise CannotTravelError(CODE_DIFFERS, value)
    if made is None:
        counters.count("fallbacks", "borrowed:device_needed")
        raise _DeviceNeededError(value)
    if not made:
        raise hooks.job_error(value)
    return value


class KernelPool:
    """The pool in the place of Inductor's own: its jobs are calls, pickled, of torch's functions."""

    def __init__(self, send: Send) -> None:
        self._send = send
        # Triton is not made for being called from several threads.
        self._here = forks.lock(self, "_here")

    def submit(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Future[Any]:
        from fxpool.torch_compat.inductor import hooks
        from fxpool.torch_compat.state import configs

        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()
        if hooks.is_question(function):
            future.set_result(hooks.READY)
            return future
        call = pickle.dumps(functools.partial(function, *args, **kwargs), pickle.HIGHEST_PROTOCOL)
        unseen = hooks.compiles_only(function)
        here = functools.partial(contextvars.copy_context().run, self._call, call, future)
        try:
            payload = pickle.dumps((call, configs.capture(), unseen))
            sent = self._send(KERNEL_JOB, payload, _kernel_name(args), unseen=unseen)
        except PoolError as error:
            self._without_pool(error, here, future)
        else:
            counters.count("borrowed", "triton")
            sent.add_done_callback(functools.partial(self._take, here, future))
        return future

    def _take(self, here: Callable[[], None], future: Future[Any], sent: _Sent) -> None:
        try:
            future.set_result(_value(sent.result()))
        except PoolError as error:
            self._without_pool(error, here, future)
        except BaseException as error:
            future.set_exception(error)

    def _without_pool(self, error: PoolError, here: Callable[[], None], future: Future[Any]) -> None:
        """In a thread, because some of those who wait, wait for a callback."""
        try:
            if runtime.part(_Interpreter).ending.is_set():
                raise error  # nobody waits any more
            _step_down(error)
            threading.Thread(target=here, name="fxpool-borrowed", daemon=True).start()
        except BaseException as refused:
            future.set_exception(refused)

    def _call(self, call: bytes, future: Future[Any]) -> None:
        try:
            with self._here:
                # Through bytes, as from a process: Inductor completes what it unpickles.
                future.set_result(pickle.loads(pickle.dumps(pickle.loads(call)())))
        except BaseException as error:
            future.set_exception(error)

    def wakeup(self) -> None:
        """There are going to be kernels: start the pool. Says nothing of what is wrong; the first kernel does."""
        try:
            if config.current().pool != "off":
                runtime.pool().start()
        except FxpoolError as error:
            log.debug("no pool ahead of the first kernel: %s", error)

    def quiesce(self) -> None:
        """Idle workers are none."""

    def shutdown(self) -> None:
        """The pool may be in use for other things than these, and ends with the process."""


def _kernel_name(arguments: tuple[Any, ...]) -> str:
    names = [*getattr(arguments[0], "args", ()), arguments[0]] if arguments else []
    return next((f"kernel {name}" for name in names if isinstance(name, str) and name.isidentifier()), "kernel")


class GraphPool:
    """Graphs after AOTAutograd, each to a worker of its own."""

    def compile(self, graph: bytes, dependencies: Mapping[str, Any]) -> bytes:
        from fxpool.torch_compat.inductor import hooks

        try:
            try:
                answer = self._send(graph, dependencies).result()
                return bytes(_value(answer))
            except _DeviceNeededError:
                answer = self._send(graph, dependencies, seen=True).result()
                return bytes(_value(answer))
        except (PoolError, CannotTravelError) as error:
            _step_down(error)
            raise hooks.NotBorrowedError from error

    def kept_here(self, reason: str, detail: str) -> None:
        _step_down(CannotTravelError(reason, detail))

    def compile_later(self, graph: bytes, dependencies: Mapping[str, Any]) -> Future[bytes]:
        future: Future[bytes] = Future()
        future.set_running_or_notify_cancel()

        def without_pool(error: FxpoolError) -> None:
            try:
                if not runtime.part(_Interpreter).ending.is_set():
                    _step_down(error, otherwise="stays as it is")
            except FxpoolError as refused:
                if config.current().strict:
                    future.set_exception(refused)
                else:  # what runs meanwhile goes on
                    counters.count("fallbacks", f"borrowed:{type(refused).__name__}")
                    log.warning("a graph is not compiled: %s", refused)

        def take(sent: _Sent) -> None:
            try:
                try:
                    future.set_result(_value(sent.result()))
                except _DeviceNeededError:
                    self._send(graph, dependencies, seen=True).add_done_callback(take)
            except (PoolError, CannotTravelError) as error:
                without_pool(error)
            except BaseException as error:
                future.set_exception(error)

        try:
            self._send(graph, dependencies).add_done_callback(take)
        except (PoolError, CannotTravelError) as error:
            without_pool(error)
        return future

    def _send(self, graph: bytes, dependencies: Mapping[str, Any], *, seen: bool = False) -> _Sent:
        """To a worker that does not see this process's GPUs unless they are to be `seen`.

        Raises PoolError, and CannotTravelError for a process whose state exists here only.
        """
        from fxpool.lowering.request import ambient, capture
        from fxpool.torch_compat.cpp import instruction_sets

        modules, libraries, stays = capture.needed(dependencies)
        if stays is not None:
            raise stays
        toolchain_dir = runtime.toolchain_directory(runtime.store())
        try:
            of_graph = program_code.of(dependencies, after_autograd=True)
            state = ambient.capture(before_autograd=False, toolchain_dir=toolchain_dir).with_variables(
                of_graph.environment
            )
            code = program_code.SentCode.of(of_graph, dependencies, ambient.code_digests(state), after_autograd=True)
        except UndigestableError as error:
            raise CannotTravelError("code_unknown", error.what) from error
        facts = visible_devices(toolchain_dir) if not seen else ()
        # Asking a host takes a second in each process that does; a worker would be another.
        known = instruction_sets.usable_instruction_sets() if instruction_sets.was_probed() else None
        current = current_device() if facts else 0
        payload = pickle.dumps((graph, modules, libraries, code, state, known, facts, current, toolchain_dir))
        sent = _to_pool(GRAPH_JOB, payload, "graph", unseen=bool(facts))
        counters.count("borrowed", "fx")
        return sent


# ------------------------------------------------------------------------------ in a worker


def run_kernel(payload: bytes) -> bytes:
    """Job: call a function that Inductor wants called elsewhere; answers with what it returns or raises."""
    from fxpool.torch_compat.inductor import preload
    from fxpool.torch_compat.state import configs
    from fxpool.torch_compat.triton import triton_compile

    call, configuration, unseen = pickle.loads(payload)
    preload.settle_assembler()
    with configs.entered(configuration), triton_compile.no_driver() if unseen else contextlib.nullcontext():
        return _answer(lambda: pickle.loads(call)(), unseen)


def run_graph(payload: bytes) -> bytes:
    """Job: compile one graph; its kernels on the cores that are free now, without a pool in the pool."""
    from fxpool.lowering.cuda import devices
    from fxpool.lowering.request import ambient
    from fxpool.lowering.worker import compiler as compiling
    from fxpool.pool import current_job
    from fxpool.torch_compat.cpp import instruction_sets
    from fxpool.torch_compat.inductor import hooks, preload

    graph, modules, libraries, code, state, known, facts, current, toolchain_dir = pickle.loads(payload)
    try:
        others = compiling.load_code(modules, libraries, code)
    except CannotTravelError as error:
        return pickle.dumps((False, _OtherCode(error.detail)))
    job = current_job()
    assert job is not None, "run_graph runs in a pool"
    preload.settle_assembler()

    def send(function: str, data: bytes, label: str, *, unseen: bool = False) -> _Sent:
        return job.submit(function, data, label=label)

    hooks.take_in_worker(KernelPool(send), 1 + job.slots_free())
    with ambient.entered(state), contextlib.ExitStack() as stack:
        toolchain.settle(toolchain_dir)
        if known is not None:
            stack.enter_context(instruction_sets.instruction_sets_known(known))
        stack.enter_context(devices.unseen(facts, current, toolchain_dir))
        try:
            compiling.compare_configured(code)
            with compiling.unless_met(others):
                return _answer(lambda: hooks.compile_graph(graph), bool(facts))
        except CannotTravelError as error:
            return pickle.dumps((False, _OtherCode(error.detail)))


def _answer(work: Callable[[], Any], unseen: bool) -> bytes:
    """Encode what `work` returns or raises, or (where devices are `unseen`) what it asked of one."""
    try:
        return pickle.dumps((True, work()), pickle.HIGHEST_PROTOCOL)
    except Exception as error:
        from fxpool.torch_compat.cuda import device_answers

        if unseen and (asked := device_answers.unanswered(error)):
            return pickle.dumps((None, asked))
        return pickle.dumps((False, traceback.format_exc()))
