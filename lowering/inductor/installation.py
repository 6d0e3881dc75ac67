"""``fxpool.install()`` and ``fxpool.uninstall()``: replace Inductor's pools by fxpool's, and restore them."""

from __future__ import annotations

import atexit

from fxpool import config
from fxpool.errors import FxpoolError, UnsupportedTorchError
from fxpool.lowering import torch_release

__all__ = ["install", "uninstall"]


def install() -> None:
    """Implement `fxpool.install`."""
    refusal = torch_release.current_refusal()
    if refusal is not None:
        raise UnsupportedTorchError(
            refusal, remedy="remove fxpool.install(), or install a version of torch in that range"
        )
    config.current()  # invalid settings raise here, not in the middle of a compile
    if torch_release.is_untested():
        from fxpool.lowering import untested_torch  # as below

        untested_torch.attempted(_install)
    else:
        _install()


def _install() -> None:
    # Imported late: an unsupported torch may not have the names these need.
    from fxpool.lowering.backend import fxpool_backend
    from fxpool.lowering.core import host_report
    from fxpool.lowering.core.runtime import runtime
    from fxpool.lowering.entry_point import begin_frames
    from fxpool.lowering.inductor import direct_calls
    from fxpool.lowering.inductor.pools import GraphPool, Interpreter, KernelPool, to_pool
    from fxpool.torch_compat.inductor import hooks

    # Waits for another thread that is installing.
    if hooks.install(KernelPool(to_pool), GraphPool(), fxpool_backend, direct_calls.compile_graph, _frames_are_on):
        atexit.register(runtime.part(Interpreter).ending.set)
        host_report.attend()
        begin_frames()


def _frames_are_on() -> bool:
    """Return whether whole graphs go through fxpool: a frame refers to the entries of its graphs."""
    try:
        return config.current().frames != "off" or config.current().capture is not None
    except FxpoolError:  # the graph reports it
        return False


def uninstall() -> None:
    """Implement `fxpool.uninstall`."""
    # Imported late, as in `install`; already loaded if that was called.
    from fxpool.lowering.core.runtime import runtime
    from fxpool.lowering.inductor.pools import Interpreter
    from fxpool.torch_compat.inductor import hooks

    hooks.uninstall()
    atexit.unregister(runtime.part(Interpreter).ending.set)
