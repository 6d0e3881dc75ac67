"""Pools that replace Inductor's in the compiling process: they send its kernels and graphs to fxpool's pool."""

from __future__ import annotations

import contextvars
import dataclasses
import functools
import os
import pickle
import textwrap
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Protocol

from fxpool import config, counters, forks, notices
from fxpool.codecache.code import program_code
from fxpool.codecache.code.grammar import UnprovenError
from fxpool.codecache.code.program_code import SentCode
from fxpool.codecache.key import probe_cache
from fxpool.errors import CannotTravelError, FxpoolError, PoolError, PoolUnavailableError, ProtocolError
from fxpool.lowering.compiling.eager import DEADLY
from fxpool.lowering.core import pool_environment, switched_off
from fxpool.lowering.core.runtime import Part, runtime
from fxpool.lowering.request import ambient_state
from fxpool.lowering.request.ambient_state import AmbientState
from fxpool.lowering.request.compile_request import CODE_DIFFERS
from fxpool.lowering.request.device_placement import current_device, visible_devices
from fxpool.lowering.request.worker_requirements import needed
from fxpool.torch_compat.cpp import instruction_sets
from fxpool.torch_compat.cpp.instruction_sets import InstructionSet
from fxpool.torch_compat.cuda.device_facts import DeviceFacts
from fxpool.torch_compat.inductor import hooks
from fxpool.torch_compat.state import configs

__all__ = [
    "GRAPH_JOB", "KERNEL_JOB", "GraphJob", "GraphPool", "Interpreter", "KernelJob", "KernelPool", "OtherCode",
    "Result", "Send", "Sent", "to_pool",
]  # fmt: skip

log = notices.logger(__name__)

# Variables not sent to workers: these have no pool, and have to compile their jobs themselves.
_KEPT_HERE = frozenset(
    (
        "TORCHINDUCTOR_FX_COMPILE_MODE",
        "TORCHINDUCTOR_COMPILE_THREADS",
        "TORCH_COMPILE_WORKER_MODE",
        "TORCH_WARM_POOL",
    )
)


class Interpreter(Part):
    """The state of the interpreter: once it is `ending`, jobs from Inductor are no longer compiled."""

    def __init__(self) -> None:
        self.ending = forks.event()

    def reset(self) -> None:
        self.ending.clear()


class _DeviceNeededError(Exception):
    """A worker that does not see the devices cannot compile a graph; the text is the query for a device."""


class Sent(Protocol):
    """A submitted job: the client's, or a worker's sub-job."""

    def result(self) -> bytes: ...

    def add_done_callback(self, function: Callable[[Any], object]) -> None: ...


class Send(Protocol):
    """Submits a job: its function, payload and label, and whether GPUs are hidden from it."""

    def __call__(self, function: str, payload: bytes, label: str, /, *, unseen: bool = False) -> Sent: ...


def to_pool(
    function: str,
    payload: bytes,
    label: str,
    *,
    unseen: bool = False,
    modules: Sequence[str] = (),
    libraries: Sequence[str] = (),
) -> Sent:
    """Submit a job to this process's pool; with `unseen`, GPUs are hidden from it. Raises PoolError.

    Its worker imports `modules` of the program and loads `libraries`.
    """
    if config.current().pool == "off":
        raise PoolUnavailableError("the pool is switched off", remedy="set FXPOOL_POOL to embedded or host")
    environment = {name: value for name, value in os.environ.items() if name not in _KEPT_HERE}
    environment["TORCHINDUCTOR_CACHE_DIR"] = hooks.cache_directory()
    if unseen:
        environment |= dict.fromkeys(pool_environment.DEVICES, "")
    return runtime.pool().submit(function, payload, pool_environment.job_spec(label, environment, modules, libraries))


def _step_down(error: FxpoolError, *, instead: str = "is compiled in this process") -> None:
    """Count a job that the pool cannot do, and warn once per reason. Raises `error` under ``strict``, and if the job
    killed its workers: it would kill this process, too."""
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
        switched_off.say_without_pool(error, f"code from Inductor {instead}")
    else:
        notices.once(
            counted, f"not compiled by a worker: it {instead} (reported once, counted as {counted!r}): {_line(why)}"
        )
    log.info("%s (%s): %s", instead, counted, error)


def _line(text: str) -> str:
    """Return the beginning of a text, on one line."""
    return textwrap.shorten(text, 160, placeholder=" ...")


def _value(answer: bytes) -> Any:
    """Return the job's return value, or raise its error in the form that Inductor's pool raises it.

    Raises CannotTravelError: the worker has other code than this program.
    """
    result = pickle.loads(answer)
    if isinstance(result.value, OtherCode):
        raise CannotTravelError(CODE_DIFFERS, result.value)
    if result.device_needed:
        counters.count("fallbacks", "borrowed:device_needed")
        raise _DeviceNeededError(result.value)
    if not result.returned:
        raise hooks.job_error(result.value)
    return result.value


class KernelPool:
    """The pool that replaces Inductor's: its jobs are pickled calls of torch's functions."""

    def __init__(self, send: Send) -> None:
        self._send = send
        # Triton is not thread-safe.
        self._here = forks.lock(self, "_here")

    def submit(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()
        if hooks.is_question(function):
            future.set_result(hooks.READY)
            return future
        call = pickle.dumps(functools.partial(function, *args, **kwargs), pickle.HIGHEST_PROTOCOL)
        unseen = hooks.compiles_only(function)
        run_locally = functools.partial(contextvars.copy_context().run, self._call, call, future)
        try:
            job = KernelJob(call=call, configuration=configs.capture(), unseen=unseen)
            sent = self._send(KERNEL_JOB, pickle.dumps(job), _kernel_name(args), unseen=unseen)
        except PoolError as error:
            self._without_pool(error, run_locally, future)
        else:
            counters.count("borrowed", "triton")
            sent.add_done_callback(functools.partial(self._take, run_locally, future))
        return future

    def _take(self, run_locally: Callable[[], None], future: Future[Any], sent: Sent) -> None:
        try:
            future.set_result(_value(sent.result()))
        except PoolError as error:
            self._without_pool(error, run_locally, future)
        except BaseException as error:
            future.set_exception(error)

    def _without_pool(self, error: PoolError, run_locally: Callable[[], None], future: Future[Any]) -> None:
        """Run the job in this process: in a thread, because some callers wait for a callback of the future."""
        try:
            if runtime.part(Interpreter).ending.is_set():
                raise error  # the result is no longer needed
            _step_down(error)
            threading.Thread(target=run_locally, name="fxpool-borrowed", daemon=True).start()
        except BaseException as refused:
            future.set_exception(refused)

    def _call(self, call: bytes, future: Future[Any]) -> None:
        try:
            with self._here:
                # Through bytes, as from another process: Inductor completes unpickled kernels.
                future.set_result(pickle.loads(pickle.dumps(pickle.loads(call)())))
        except BaseException as error:
            future.set_exception(error)

    def wakeup(self) -> None:
        """Start the pool, as kernels will follow. Reports no errors; the first kernel does."""
        try:
            if config.current().pool != "off":
                runtime.pool().start()
        except FxpoolError as error:
            log.debug("could not start the pool ahead of the first kernel: %s", error)

    def quiesce(self) -> None:
        """Do nothing: there are no idle workers."""

    def shutdown(self) -> None:
        """Do nothing: the pool may have other users, and ends with the process."""


def _kernel_name(arguments: tuple[Any, ...]) -> str:
    names = [*getattr(arguments[0], "args", ()), arguments[0]] if arguments else []
    return next((f"kernel {name}" for name in names if isinstance(name, str) and name.isidentifier()), "kernel")


class GraphPool:
    """Compiles graphs after AOTAutograd, each in a separate worker."""

    def compile(self, graph: bytes, dependencies: Mapping[str, Any]) -> bytes:
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
                if not runtime.part(Interpreter).ending.is_set():
                    _step_down(error, instead="keeps running as it is")
            except FxpoolError as refused:
                if config.current().strict:
                    future.set_exception(refused)
                else:  # running jobs continue
                    counters.count("fallbacks", f"borrowed:{type(refused).__name__}")
                    log.warning("not compiling a graph: %s", refused)

        def take(sent: Sent) -> None:
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

    def _send(self, graph: bytes, dependencies: Mapping[str, Any], *, seen: bool = False) -> Sent:
        """Submit a graph to a worker that does not see this process's GPUs, or that sees them if `seen`.

        Raises PoolError, and CannotTravelError if the process has state that exists only here.
        """
        modules, libraries, operators, stays = needed(dependencies)
        if stays is not None:
            raise stays
        toolchain_dir = runtime.toolchain_directory(runtime.store())
        try:
            of_graph = program_code.of(dependencies, after_autograd=True, answers=probe_cache.FactCache(toolchain_dir))
            modules = [*of_graph.modules, *(name for name in modules if name not in of_graph.modules)]
            if of_graph.changed:
                raise CannotTravelError("torch_changed", f"the program replaced {', '.join(of_graph.changed)}")
            state = ambient_state.capture(before_autograd=False, toolchain_dir=toolchain_dir)
            code = program_code.SentCode.of(
                of_graph, dependencies, ambient_state.code_digests(state), after_autograd=True, operators=operators
            )
        except UnprovenError as error:
            raise CannotTravelError("code_unknown", error.part) from error
        facts = visible_devices(toolchain_dir) if not seen else ()
        # Probing takes a second in each process, so the worker gets this process's result.
        usable_sets = instruction_sets.usable_instruction_sets() if instruction_sets.was_probed() else None
        job = GraphJob(
            graph=graph,
            modules=modules,
            libraries=libraries,
            code=code,
            state=state,
            usable_sets=usable_sets,
            devices=facts,
            current=current_device() if facts else 0,
            sees=seen,
            toolchain_dir=toolchain_dir,
        )
        payload = pickle.dumps(job)
        sent = to_pool(GRAPH_JOB, payload, "graph", unseen=bool(facts), modules=modules, libraries=libraries)
        counters.count("borrowed", "fx")
        return sent


KERNEL_JOB = "fxpool.lowering.inductor.jobs:run_kernel"
GRAPH_JOB = "fxpool.lowering.inductor.jobs:run_graph"


@dataclasses.dataclass(frozen=True, kw_only=True)
class KernelJob:
    """`call` is a pickled call of a torch function, `configuration` the sender's configuration.

    `unseen`: it runs without visible devices.
    """

    call: bytes
    configuration: Any
    unseen: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class GraphJob:
    """`graph` is Inductor's pickle. `modules` and `libraries` register its operators, `code` is the program's code.

    `usable_sets` are the instruction sets that the sender can use, None if it has not probed. `devices` are those that
    a worker answers for instead of seeing them, `current` is the index of the current device. `sees`: the worker sees
    the devices, because only they can answer.
    """

    graph: bytes
    modules: Sequence[str]
    libraries: Sequence[str]
    code: SentCode
    state: AmbientState
    usable_sets: Sequence[InstructionSet] | None
    devices: Sequence[DeviceFacts]
    current: int
    sees: bool
    toolchain_dir: str | None


class OtherCode(str):
    """Replaces a result if the worker has other code than the program; the text names the code."""


@dataclasses.dataclass(frozen=True)
class Result:
    """The result of a job: it `returned` `value`, or raised, with the traceback as `value`.

    `device_needed`: it did neither, because it needs an answer that only a device can give; `value` is the query.
    """

    value: Any
    returned: bool = True
    device_needed: bool = False

    def dump(self) -> bytes:
        return pickle.dumps(self, pickle.HIGHEST_PROTOCOL)
