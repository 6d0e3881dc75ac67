"""fxpool: a compile service for `torch.compile`.

    torch.compile(model, backend="fxpool")

hashes each graph and looks into a guarded cache; on a miss it hands the whole job after Dynamo to a warm worker
process and loads the result. No import of this package is needed for that: torch finds the backend by its
entry point. Import it to configure it, to see what it did, or to end it early:

    import fxpool

    fxpool.configure(cache_dir="/data/fxpool", strict=True)
    fxpool.stats()["compiles"]      # {"worker": 4, "in_process": 0}
    fxpool.wait()                   # until every background compile has finished
    fxpool.close()                  # ends the worker pool now instead of at exit
    fxpool.install()                # stock backend="inductor" compiles on this pool instead of its own

Where a line of code belongs, in three rooms behind this front door:

    fxpool.codecache   Has this been compiled before, and may it be served here?
                       Keys, guards, entries, stores, toolchain facts. Knows torch; knows no process.
    fxpool.pool        Who runs a job, where, and what if it dies?
                       Zygote, workers, protocol, limits. Moves opaque jobs; never imports torch.
    fxpool.lowering    How does a graph become something callable?
                       Capture, compile in a worker, link, load. Uses the other two.

Every private name of torch is used in `fxpool.torch_compat` and nowhere else. Around the rooms:

    config        settings and their precedence          commands    the command line, a module per group of commands
    counters      counters behind `stats()`              doctor      checks of all that fxpool needs
    errors        the hierarchy of errors                bench       measurements, ``fxpool bench`` and ``fxpool demo``
    installed     digests of torch, Triton and sympy     watch       events, progress display, traces
    notices       warnings and logs                      forks       locks and state that a fork leaves usable
    descriptors   closed standard streams                quantities  formats and parses times and sizes
    version       the version, in its one place          torch_release  is torch supported, or tried?
    torch_import  what torch calls when it is imported
    reasons       what each counted reason means        explanation    ``fxpool.explain``: misses, pairs of keys
    setting_values    parses the values of settings   torch_compat  torch's private names
    dashboard     ``fxpool dashboard``: a page on pool and store, and metrics

Importing this module imports neither torch nor anything else that takes time: that happens inside functions.
"""

from __future__ import annotations

import importlib
import sys
import time
from typing import TYPE_CHECKING, Any, overload

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence
    from typing import IO, TypeAlias

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
    from fxpool.version import __version__
    from fxpool.watch.display import Progress

    Explained: TypeAlias = str | Entry | Mapping[str, Any]

__all__ = [
    "__version__", "aot_compile", "close", "configure", "do_bench", "errors", "explain", "install", "measure",
    "measuring", "print_performance", "progress", "standalone_compile", "stats", "timed", "uninstall", "wait",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    # Imported on first use: a program that only trains should not pay for the parser of a settings file.
    if name == "__version__":
        from fxpool.version import __version__

        return __version__
    if name == "configure":
        from fxpool.config import configure

        return configure
    if name == "measure":
        from fxpool.bench.measurement.timing import measure

        return measure
    if name == "measuring":
        from fxpool.bench.measurement.exclusive import measuring

        return measuring
    if name in ("do_bench", "print_performance", "timed"):
        from fxpool.bench.measurement import shorthand

        return getattr(shorthand, name)
    if name == "errors":
        import fxpool.errors

        return fxpool.errors
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _imported(name: str) -> Any:
    """Return a module of ours if it is in use, else None. Waits if another thread is importing it."""
    return importlib.import_module(name) if name in sys.modules else None


def stats() -> dict[str, Any]:
    """Return counts of this process's graphs, and the size of the cache, as plain data.

    `hits`, `misses`, `guard_misses`: numbers of graphs. `bypasses`, `fallbacks`: reason to count. `compiles`: graphs
    compiled, by `worker` and `in_process`. `seconds_saved`: seconds spared by hits, by the compile times stored with
    their entries. `remote`: `hits`, `misses` and `writes` of the cache that machines share, and what went wrong with
    it; `remote_seconds`: how long graphs waited for it. `graphs`: one record per graph, the latest ones. `store`:
    numbers of `entries` and `blobs` in the configured cache directory, their `bytes`, and how many entries were
    `evicted` by all processes since its index was begun; None if there is none yet. `cache_disk_bytes`: bytes that the
    whole directory takes on the disk, precompiled headers included. `host`: the same numbers of all processes with this
    cache directory, of the last 30 days; a process adds its own when it ends, and now and then. `background`: what
    `wait` returns, now.

    Raises:
        errors.ConfigurationError: a setting does not parse.
        errors.UnsafeDirectoryError: others can write to the cache directory.
    """
    from fxpool import counters

    result = counters.snapshot()
    result["store"] = _store_sizes()
    result["cache_disk_bytes"] = _disk_bytes()
    result["host"] = _of_the_host()
    background = _imported("fxpool.lowering.background.compiles")
    result["background"] = background.report() if background is not None else []
    return result


def _store_sizes() -> dict[str, Any] | None:
    from fxpool import config

    cache_dir = config.current().cache_dir
    if not cache_dir.is_dir():
        return None  # reading the size must not create it
    from fxpool.codecache.store import collector
    from fxpool.codecache.store.store import LocalStore

    store = LocalStore(str(cache_dir))
    evicted = collector.evicted(store.root)
    return {**store.sizes(), "evicted": evicted.files if evicted is not None else 0}


def _of_the_host() -> dict[str, Any]:
    from fxpool import config
    from fxpool.codecache.store import host_statistics

    return host_statistics.added(host_statistics.read(str(config.current().cache_dir)).values()).plain()


def _disk_bytes() -> int:
    from fxpool import config
    from fxpool.codecache.store import contents

    return sum(share.bytes for share in contents.measure(str(config.current().cache_dir)).values())


@overload
def explain() -> ProcessExplanation: ...
@overload
def explain(a: Explained, b: Explained | None = None) -> Comparison: ...
def explain(a: Explained | None = None, b: Explained | None = None) -> ProcessExplanation | Comparison:
    """Say why graphs were compiled, or in what two keys differ: down to the node, the input, the option, the function.

    Without arguments, of this process: each of the last misses beside the nearest entry of the cache, or with the guard
    that did not hold, and each bypass, fallback and part that is switched off, with an example and what to do about it.
    With `a`, of that entry beside the nearest other one; with both, from `a` to `b`. Each is a key or its beginning, an
    entry, or a record of ``fxpool.stats()["graphs"]``.

    The result is plain data (dataclasses), and ``str()`` of it is for people.

    Raises:
        errors.NoEntryError: nothing is kept under a key, several keys begin so, or there is nothing to compare with.
        errors.UnsafeDirectoryError: others can write to the cache directory.
    """
    if a is not None:
        from fxpool.explanation import keys

        return keys.compare(a, b)
    if b is not None:
        raise TypeError("explain() takes a second key only together with a first")
    from fxpool.explanation import process

    return process.explain()


def close() -> None:
    """End this process's worker pool now, rather than at exit. The next miss starts another."""
    module = _imported("fxpool.lowering.core.runtime")
    if module is not None:
        module.runtime.close()


def wait(timeout: float | None = None) -> list[dict[str, Any]]:
    """Wait until nothing is compiled in the background any more, nor uploaded, at most `timeout` seconds.

    Returns plain data on each graph compiled there (modes with ``async+`` or ``progressive+``): `label`, `state`
    (``ready``, ``failed``: eager for good, or ``pending`` after `timeout`), `error`, `stage` (the number of the one in
    use, None for eager), `stages` (number to state: ``in use``, ``superseded``, ``measured``, ``slower``,
    ``skipped``, ``failed``, ``pending``), and counts: `eager_calls`, `compiled_calls`, `swaps`, `outside_guards`.
    """
    begun = time.monotonic()
    background = _imported("fxpool.lowering.background.compiles")
    graphs: list[dict[str, Any]] = background.wait(timeout) if background is not None else []
    sharing = _imported("fxpool.lowering.artifact.sharing")
    if sharing is not None:
        sharing.flush(None if timeout is None else max(0.0, timeout - (time.monotonic() - begun)))
    return graphs


def progress(to: str | os.PathLike[str] | IO[str] | None = None) -> Progress:
    """Show the progress of each graph from now on: queued, compiling, loading, ready, failed.

    A terminal gets a line for each graph that is done or takes long, anything else a line per event. Written to
    standard error, or to `to` (a path, appended to, or an open file). Ends with the ``with`` block it is used in, with
    `close()` of the result, or with the process. ``FXPOOL_PROGRESS=1`` or ``FXPOOL_PROGRESS=path`` do it for a whole
    program. Raises OSError if the file can't be opened. A later write error is warned of once, and ends the display.
    """
    from fxpool.watch.display import Progress

    return Progress(to)


def aot_compile(
    program: torch.export.ExportedProgram, path: str | os.PathLike[str], *, options: Mapping[str, Any] | None = None
) -> str:
    """Compile an exported program in the pool into a package at `path`, a file that ends in ``.pt2``; returns the path.

    The package is what ``torch._inductor.aoti_compile_and_package`` makes, and stock torch loads it
    (``torch._inductor.aoti_load_package``). It is kept in the cache: the same program with the same parameters, options
    and compiler is copied from there. `options` are those of ``torch.compile``, names such as
    ``aot_inductor.package_constants_in_so`` among them.

    Raises:
        TypeError, ValueError: no exported program, one without example inputs, or another ending.
        errors.ConfigurationError: an unknown option.
        Exception: whatever AOTInductor raises.
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
    """Compile a graph that is not Dynamo's, or not any more: for back ends that split graphs themselves.

    Takes and returns what ``torch._inductor.standalone_compile`` does, but returns while workers are at it: the
    artifact's first call, `wait()` and `save(path=...)` wait for them. So pieces that are handed in one after another
    compile side by side, and each is kept in the cache. The file that `save` writes is read by
    ``torch._inductor.CompiledArtifact.load``, where fxpool is installed.

    `dynamic_shapes` says where symbolic sizes come from: ``from_graph``, ``from_tracing_context`` (inside of a back
    end) or ``from_example_inputs`` (sizes are fixed). `options` are those of ``torch.compile``.

    Raises:
        errors.ConfigurationError: an unknown option.
        ValueError: another `dynamic_shapes`, or no tracing context.
    """
    from fxpool.lowering.standalone import standalone_compile

    return standalone_compile(gm, example_inputs, dynamic_shapes=dynamic_shapes, options=options)


def install() -> None:
    """Let ``backend="inductor"``, otherwise unchanged, compile on fxpool's workers in place of processes of its own.

    Triton kernels go there if Inductor would use its compile pool (not with one compile thread). Whole graphs do under
    ``TORCHINDUCTOR_FX_COMPILE_MODE=subprocess``; set that before this call, which imports Inductor, as torch reads it
    once. ``async+subprocess`` and ``progressive+...`` mean the same as for ``backend="fxpool"``, with its cache;
    torch's own need all of Inductor's caches off. A job that the pool can't do is compiled in this process and counted
    (`stats()["fallbacks"]`), or an error under `strict`; a job that killed its workers twice is always an error.
    Idempotent.

    Raises:
        errors.UnsupportedTorchError: torch is outside the supported range.
        errors.ConfigurationError: a setting does not parse.
    """
    from fxpool.lowering.inductor import installation

    installation.install()


def uninstall() -> None:
    """Put back what `install` replaced. Jobs under way finish normally. Idempotent."""
    installation = _imported("fxpool.lowering.inductor.installation")
    if installation is not None:
        installation.uninstall()
