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
    errors        the hierarchy of errors                demo        ``fxpool demo``: fxpool beside stock Inductor
    installed     digests of torch, Triton and sympy     watch       events, progress display, traces
    notices       warnings and logs                      forks       locks and state that a fork leaves usable
    descriptors   closed standard streams                quantities  formats and parses times and sizes
    version       the version, in its one place          torch_release  is torch supported, or tried?
    measurement   times code while nothing else runs    benchmarks   ``fxpool bench``: suites, run side by side
    torch_compat  torch's private names

Importing this module imports neither torch nor anything else that takes time: that happens inside functions.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import os
    from typing import IO

    from fxpool import errors
    from fxpool.config import configure
    from fxpool.measurement.exclusive import measuring
    from fxpool.measurement.timing import measure
    from fxpool.version import __version__
    from fxpool.watch.display import Progress

__all__ = [
    "__version__", "close", "configure", "errors", "install", "measure", "measuring", "progress", "stats", "uninstall",
    "wait",
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
        from fxpool.measurement.timing import measure

        return measure
    if name == "measuring":
        from fxpool.measurement.exclusive import measuring

        return measuring
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
    their entries. `graphs`: one record per graph, the latest ones. `store`: numbers of `entries` and `blobs` in the
    configured cache directory, and their `bytes`; None if there is none yet. `cache_disk_bytes`: bytes that the whole
    directory takes on the disk, precompiled headers included. `background`: what `wait` returns, now.

    Raises:
        errors.ConfigurationError: a setting does not parse.
        errors.UnsafeDirectoryError: others can write to the cache directory.
    """
    from fxpool import counters

    result = counters.snapshot()
    result["store"] = _store_sizes()
    result["cache_disk_bytes"] = _disk_bytes()
    background = _imported("fxpool.lowering.background.compiles")
    result["background"] = background.report() if background is not None else []
    return result


def _store_sizes() -> dict[str, Any] | None:
    from fxpool import config

    cache_dir = config.current().cache_dir
    if not cache_dir.is_dir():
        return None  # reading the size must not create it
    from fxpool.codecache.store import LocalStore

    return dict(LocalStore(str(cache_dir)).sizes())


def _disk_bytes() -> int:
    from fxpool import config
    from fxpool.codecache import contents

    return sum(share.bytes for share in contents.measure(str(config.current().cache_dir)).values())


def close() -> None:
    """End this process's worker pool now, rather than at exit. The next miss starts another."""
    module = _imported("fxpool.lowering.core.runtime")
    if module is not None:
        module.runtime.close()


def wait(timeout: float | None = None) -> list[dict[str, Any]]:
    """Wait until nothing is being compiled in the background any more, at most `timeout` seconds.

    Returns plain data on each graph compiled there (modes with ``async+`` or ``progressive+``): `label`, `state`
    (``ready``, ``failed``: eager for good, or ``pending`` after `timeout`), `error`, `stage` (the number of the one in
    use, None for eager), `stages` (number to state: ``in use``, ``superseded``, ``measured``, ``slower``,
    ``skipped``, ``failed``, ``pending``), and counts: `eager_calls`, `compiled_calls`, `swaps`, `outside_guards`.
    """
    background = _imported("fxpool.lowering.background.compiles")
    graphs: list[dict[str, Any]] = background.wait(timeout) if background is not None else []
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
