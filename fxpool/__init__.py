"""fxpool: a compile service for `torch.compile`.

    torch.compile(model, backend="fxpool")

hashes each graph and looks it up in a guarded cache. On a miss, a warm worker process does everything after Dynamo,
and the result is loaded. This needs no import of the package: torch finds the backend by its
entry point. Import it to configure fxpool, to read its counters, or to end the pool early:

    import fxpool

    fxpool.configure(cache_dir="/data/fxpool", strict=True)
    fxpool.stats()["compiles"]      # {"worker": 4, "in_process": 0}
    fxpool.wait()                   # wait until every background compile has finished
    fxpool.close()                  # end the worker pool now instead of at exit
    fxpool.once(key, build)         # the bytes or files of another JIT, built once per host or fleet
    fxpool.install()                # stock backend="inductor" compiles on this pool instead of its own

The code is in three packages behind this front door:

    fxpool.codecache   Was this compiled before, and may it be served here?
                       Keys, guards, entries, stores, toolchain facts. Knows torch, but no processes.
    fxpool.pool        Where does a job run, and what happens if its process dies?
                       Zygote, workers, protocol, limits. Runs opaque jobs; never imports torch.
    fxpool.lowering    How does a graph become something callable?
                       Capture, compile in a worker, link, load. Uses the other two.
    fxpool.frames      Must Dynamo trace this function again?
                       Records of traced functions, proven unchanged before they are served. Uses lowering.

Private names of torch are used in `fxpool.torch_compat` only. Around these packages are others:

    bench         `measure`, ``fxpool bench``, ``demo``    commands         the command line, a module per subject
    dashboard     ``fxpool dashboard``: pool and store    doctor           checks of everything fxpool needs
    explanation   `explain`: misses, reasons, keys        results          types and looks of results
    watch         events, progress display, traces        integrations     callbacks of trainers, OpenTelemetry
    farm          machines that compile for other hosts   jits             results of other JITs: `once`
    triton        Triton's own cache in the store

and modules:

    config              settings and their precedence        setting_values   parses the values of settings
    counters            counters behind `stats`              reasons          explains each counted reason
    errors              the hierarchy of errors              failures         kinds of failures, and what follows
    notices             warnings and logs                    quantities       formats and parses times and sizes
    standard_streams    closed standard streams              directories      can other users replace a directory?
    forks               locks, state that survive a fork     interruptions    exceptions of signal handlers
    installed_packages  digests of torch, Triton and sympy   child_python     starts modules in another process
    torch_import        called by torch when it is imported  remedies         what to do, for several errors
    remote_stores       kinds of remote caches               temporary        temporary directories
    version             the version

Importing this module imports neither torch nor anything else that is slow: that is imported inside functions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast, overload

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping, Sequence
    from typing import IO, Any, TypeAlias

    import torch

    from fxpool import errors
    from fxpool.bench.measurement.exclusive import measuring
    from fxpool.bench.measurement.shorthand import do_bench, print_performance, timed
    from fxpool.bench.measurement.timing import measure
    from fxpool.codecache.explain.nearest import Comparison
    from fxpool.codecache.store.entry import Entry
    from fxpool.config import configure
    from fxpool.explanation.process import ProcessExplanation
    from fxpool.lowering.standalone import Shapes, StandaloneGraph
    from fxpool.results.data import BackgroundGraph, Quiesced, Stats, StoreSizes
    from fxpool.version import __version__
    from fxpool.watch.display import Progress

    Explained: TypeAlias = str | Entry | Mapping[str, Any]

__all__ = [
    "__version__", "aot_compile", "close", "configure", "do_bench", "errors", "explain", "install", "measure",
    "measuring", "once", "print_performance", "progress", "quiesce", "standalone_compile", "stats", "timed",
    "uninstall", "wait",
]  # fmt: skip


# Imported on first use: a program that only trains should not pay for the parser of settings files.
_MODULES = {
    "__version__": "fxpool.version",
    "configure": "fxpool.config",
    "do_bench": "fxpool.bench.measurement.shorthand",
    "errors": "fxpool",
    "measure": "fxpool.bench.measurement.timing",
    "measuring": "fxpool.bench.measurement.exclusive",
    "print_performance": "fxpool.bench.measurement.shorthand",
    "timed": "fxpool.bench.measurement.shorthand",
}

if not TYPE_CHECKING:  # a type checker would believe that every name exists

    def __getattr__(name):
        import importlib

        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        if name == "errors":
            return importlib.import_module("fxpool.errors")
        if name != "__version__":
            _require_linux()
        return getattr(importlib.import_module(_MODULES[name]), name)

    def __dir__():
        return sorted(__all__)


def _require_linux() -> None:
    import sys

    if sys.platform != "linux":
        from fxpool import errors

        errors.require_linux()


def _imported(name: str) -> Any:
    """Return an fxpool module if it was imported, else None. Waits if another thread is importing it."""
    import importlib
    import sys

    return importlib.import_module(name) if name in sys.modules else None


def stats() -> Stats:
    """Return counters of this process's graphs, and the size of the cache, as plain data with a readable ``repr``.

    `hits`, `misses`, `guard_misses`: numbers of graphs. `bypasses`, `fallbacks`: reason to count. `compiles`: graphs
    compiled, by `worker` and `in_process`. `compile_seconds`: time that graphs were compiled or waited for a worker,
    added up. `seconds_saved`: compile time saved by hits, from the times stored with their entries. `remote`: `hits`,
    `misses` and `writes` of the cache shared between machines, and its errors; `remote_seconds`: seconds for which
    graphs waited for it; `leases`: graphs that other machines compiled in that time; `farm`: graphs that a farm
    compiled, or why it did not; `once`: calls of `once` and Triton kernels, by outcome. `graphs`: one record per graph,
    the latest ones. `store`: numbers of `entries` and `blobs` in the configured cache directory, their `bytes`, and
    how many entries were `evicted` by all processes since its index was created; None without a directory.
    `cache_disk_bytes`: bytes that the whole directory takes on disk, including precompiled headers. `host`: the same
    counters of all processes with this cache directory in the last 30 days; a process adds its own when it ends, and
    periodically. `background`: the current result of `wait`. Counters start at 0 with the process; times are in
    seconds.

    Raises:
        errors.ConfigurationError: a setting cannot be parsed.
        errors.UnsafeDirectoryError: other users could change the cache directory.
    """
    _require_linux()
    from fxpool import counters
    from fxpool.results.result_display import ShownGraphs, ShownStats

    result = ShownStats(counters.snapshot())
    result["store"] = _store_sizes()
    result["cache_disk_bytes"] = _disk_bytes()
    result["host"] = _of_the_host()
    background = _imported("fxpool.lowering.background.compiles")
    result["background"] = ShownGraphs(background.report() if background is not None else [])
    return cast("Stats", result)


def _store_sizes() -> StoreSizes | None:
    from fxpool import config

    cache_dir = config.current().cache_dir
    if not cache_dir.is_dir():
        return None  # reading the size must not create the directory
    from fxpool.codecache.store import collector
    from fxpool.codecache.store.store import LocalStore

    store = LocalStore(str(cache_dir))
    evicted = collector.evicted(store.root)
    sizes = {**store.sizes(), "evicted": evicted.files if evicted is not None else 0}
    return cast("StoreSizes", sizes)


def _of_the_host() -> dict[str, Any]:
    from fxpool import config
    from fxpool.codecache.store import host_statistics

    return host_statistics.added(host_statistics.read(str(config.current().cache_dir)).values()).plain()


def _disk_bytes() -> int:
    from fxpool import config
    from fxpool.codecache.store import catalogue

    return catalogue.sum_of(catalogue.measure(str(config.current().cache_dir)).values()).bytes


@overload
def explain() -> ProcessExplanation: ...
@overload
def explain(a: Explained, b: Explained | None = None) -> Comparison: ...
def explain(a: Explained | None = None, b: Explained | None = None) -> ProcessExplanation | Comparison:
    """Explain why graphs were compiled, or how two keys differ: the nodes, inputs, options and functions.

    Without arguments, explain this process: each of the latest misses with the nearest cache entry, or with the guard
    that did not hold, and each bypass, fallback and disabled part with an example and advice.
    If no graph came to fxpool, `no_graph` says why: Dynamo is off, traced nothing, stopped, or has another backend.
    With `a`, compare the nearest other entry with `a`; with both, compare `a` with `b`. Each is a key or its start, an
    entry, or a record of ``fxpool.stats()["graphs"]``.

    The result is plain data (dataclasses); ``str()`` formats it as text. Graphs are aligned node by node (E. Myers, An
    O(ND) difference algorithm and its variations, Algorithmica 1, 1986).

    Raises:
        TypeError: `a` or `b` is something else, or `b` is passed without `a`.
        errors.NoEntryError: no entry matches a key, several match, or there is no other entry to compare with.
        errors.UnsafeDirectoryError: other users could change the cache directory.
    """
    _require_linux()
    if a is not None:
        from fxpool.explanation import keys

        return keys.compare(a, b)
    if b is not None:
        raise TypeError("explain() takes a second key only together with a first")
    from fxpool.explanation import process

    return process.explain()


def close() -> None:
    """End this process's worker pool now instead of at exit. The next miss starts a new pool. Raises nothing."""
    module = _imported("fxpool.lowering.core.runtime")
    if module is not None:
        module.runtime.close()


def wait(timeout: float | None = None) -> list[BackgroundGraph]:
    """Wait until no background compile or upload is pending, at most `timeout` seconds. Raises nothing.

    Return plain data about each graph compiled there (modes with ``async+`` or ``progressive+``): `label`, `state`
    (``ready``, ``failed``: stays eager, or ``pending`` after `timeout`), `error`, `stage` (the number of the stage in
    use, None for eager), `stages` (number to state: ``in use``, ``superseded``, ``measured``, ``slower``,
    ``skipped``, ``failed``, ``pending``), and counts: `eager_calls`, `compiled_calls`, `swaps`, `outside_guards`.
    """
    import time

    from fxpool.results.result_display import ShownGraphs

    begun = time.monotonic()
    background = _imported("fxpool.lowering.background.compiles")
    graphs = ShownGraphs(background.wait(timeout) if background is not None else [])
    shared = _imported("fxpool.lowering.core.shared_remote")
    if shared is not None:
        shared.flush(None if timeout is None else max(0.0, timeout - (time.monotonic() - begun)))
    return graphs


def quiesce(timeout: float | None = None, *, stop_server: bool = False) -> Quiesced:
    """Prepare this process for a checkpoint: end fxpool's threads and children, close its sockets and files.

    First wait up to `timeout` seconds for background compiles and uploads. Then withdraw the compiles that are left,
    write counters, and disconnect from pool and remote cache. A private server ends; the host's server ends if it is a
    descendant of this process, or with `stop_server`, after the jobs of its other clients. Call it while no other
    thread compiles. Directories in the cache that `once` returned may be evicted from now on. The next graph works as
    usual: it finds or starts a server, and reads the facts of its machine again. Idempotent.

    Return plain data: `clean`: nothing of fxpool remains. `remaining`: what does, by `threads`, `children` and
    `descriptors`. `others`: the same of other libraries, as far as a checkpoint may refuse it. `pending`: labels of
    graphs whose compile was withdrawn, which stay as they are. `uploads_left`: entries that the next upload or process
    uploads. `servers_ended`: pids. `mapped`: libraries in cache directories that must exist where the process is
    restored.

    Raises:
        errors.ConfigurationError: a setting cannot be parsed.
    """
    _require_linux()
    from fxpool.lowering.core import quiescence

    wait(timeout)
    return quiescence.quiesce(stop_server=stop_server)


def progress(to: str | os.PathLike[str] | IO[str] | None = None) -> Progress:
    """Show the progress of each graph from now on: queued, compiling, loading, ready, failed.

    A terminal gets a line for each graph that is done or slow, other outputs a line per event. Written to
    standard error, or to `to` (a path to append to, or an open file). Ends with its ``with`` block, with
    `close()` of the result, or with the process. ``FXPOOL_PROGRESS=1`` or ``FXPOOL_PROGRESS=path`` do so for a whole
    program. A later write error ends the display with one warning.

    Raises:
        OSError: the file cannot be opened.
    """
    _require_linux()
    from fxpool.watch.display import Progress

    return Progress(to)


@overload
def once(
    key: Any,
    build: Callable[[], bytes],
    *,
    version: Any = None,
    timeout: float | None = None,
) -> bytes: ...
@overload
def once(
    key: Any,
    build: Callable[[str], object],
    *,
    directory: str | os.PathLike[str] | None = None,
    version: Any = None,
    timeout: float | None = None,
    in_place: bool = False,
) -> str: ...
def once(
    key: Any,
    build: Callable[..., Any],
    *,
    directory: str | os.PathLike[str] | None = None,
    version: Any = None,
    timeout: float | None = None,
    in_place: bool = False,
) -> bytes | str:
    """Return what `build` makes: bytes, or the path of a directory; built once, then served from the cache.

    `build` is called without arguments and returns bytes, or with the path of an empty directory, which it fills. One
    process of a host builds, and one machine of a fleet if there is a remote cache; others wait and share the result,
    and take over if the builder dies. The result is an entry of the cache like a compiled graph. If it cannot be
    stored, it is returned all the same, with one warning.

    `key` and `version` name the result: None, bool, int, float, str, bytes, and sequences, sets and mappings of them.
    fxpool adds only the machine's architecture (``x86_64``): name everything else that the result depends on, such as
    sources, flags, and versions of compilers and libraries. Results of other versions stay until they are evicted.

    `directory` is the directory to fill, which must be missing, empty or filled by an earlier call. It appears
    complete, and is then the program's to write to. Without it, fxpool fills a directory in the cache, which must not
    be written to, and which stays while this process or a child that it forked lives. Modes and times of files are
    restored; links that lead outside, devices and sockets are not stored. With `in_place`, `build` is called with
    `directory` itself, for tools that write its path into their files.

    `timeout`: seconds to wait for another builder, after which this process builds, too. None: as long as the builder
    lives, and for other machines at most the setting `remote_wait`, an hour by default.

    Raises:
        TypeError: the key is not plain data, or `build` takes other arguments or returns something else.
        errors.RecursiveBuildError: `build` needs the same product.
        errors.TargetDirectoryError: `directory` has other files.
        errors.UnsafeDirectoryError: other users could change `directory`.
        errors.ConfigurationError: a setting cannot be parsed.
        OSError: `directory` cannot be written.
        Exception: any exception of `build`. It is not remembered: callers that waited call `build` themselves.
    """
    _require_linux()
    from fxpool.jits import calls

    return cast(
        "bytes | str",
        calls.once(key, build, directory=directory, version=version, timeout=timeout, in_place=in_place),
    )


def aot_compile(
    program: torch.export.ExportedProgram, path: str | os.PathLike[str], *, options: Mapping[str, Any] | None = None
) -> str:
    """Compile an exported `program` in the pool into a package at `path` (``.pt2``); return the path.

    The package equals that of ``torch._inductor.aoti_compile_and_package``, and stock torch loads it
    (``torch._inductor.aoti_load_package``). It is cached: the same program with the same parameters, options
    and compiler is copied from the cache. `options` are those of ``torch.compile``, including names such as
    ``aot_inductor.package_constants_in_so``.

    Raises:
        TypeError, ValueError: not an exported program, no example inputs, or a path with another suffix.
        errors.ConfigurationError: an unknown option.
        Exception: any exception of AOTInductor.
    """
    from fxpool.lowering.packages import aot_compile

    return aot_compile(program, path, options)


def standalone_compile(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    dynamic_shapes: Shapes = "from_graph",
    options: Mapping[str, Any] | None = None,
) -> StandaloneGraph:
    """Compile a graph that does not come from Dynamo directly, for back ends that split graphs themselves.

    Like ``torch._inductor.standalone_compile``, but returns while workers still compile: the
    artifact's first call, `wait()` and `save(path=...)` wait for the result. Pieces submitted one after another
    therefore compile in parallel, and each is cached. A file written by `save` is read by
    ``torch._inductor.CompiledArtifact.load`` if fxpool is installed.

    `gm` is called with values like `example_inputs`: tensors (fake ones, too) and sizes, in the order of its
    placeholders. `dynamic_shapes` is the source of symbolic sizes: ``from_graph``, ``from_tracing_context`` (inside a
    back end) or ``from_example_inputs`` (sizes are fixed). `options` are those of ``torch.compile``.

    Raises:
        errors.ConfigurationError: an unknown option.
        ValueError: unknown `dynamic_shapes`, or no tracing context.
    """
    from fxpool.lowering.standalone import standalone_compile

    return standalone_compile(gm, example_inputs, dynamic_shapes=dynamic_shapes, options=options)


def install() -> None:
    """Let ``backend="inductor"`` compile on fxpool's workers instead of its own processes.

    Graphs of programs that call ``torch._inductor.standalone_compile``, or ``compile_fx`` with an `inner_compile`, go
    through fxpool's cache and workers; the artifacts are torch's own. For ``torch.compile``,
    Triton kernels do if Inductor would use its compile pool (not with one compile thread). Whole graphs do with
    ``TORCHINDUCTOR_FX_COMPILE_MODE=subprocess``; set it before this call, which imports Inductor, because torch reads
    it once. ``async+subprocess`` and ``progressive+...`` mean the same as for ``backend="fxpool"``, with its cache;
    torch's own modes need all of Inductor's caches off. A job that the pool cannot run is compiled in this process and
    counted (`stats()["fallbacks"]`), or raises an error with `strict`; a job that killed its workers twice always
    raises. Idempotent.

    Raises:
        errors.UnsupportedTorchError: torch is outside the supported range.
        errors.ConfigurationError: a setting cannot be parsed.
    """
    from fxpool.lowering.inductor import installation

    installation.install()


def uninstall() -> None:
    """Undo `install`. Running jobs finish normally. Idempotent. Raises nothing."""
    installation = _imported("fxpool.lowering.inductor.installation")
    if installation is not None:
        installation.uninstall()
