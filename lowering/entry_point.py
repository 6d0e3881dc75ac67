"""The entry point through which torch finds the backend "fxpool".

Access this module's `fxpool_backend` only to look up the backend: the access may start a pool.
"""

from __future__ import annotations

import contextlib
import threading
from typing import Any

from fxpool import config
from fxpool.errors import FxpoolError
from fxpool.lowering import autoload, backend, torch_release
from fxpool.torch_compat.dynamo import backend_table


def __getattr__(name: str) -> Any:
    # Called in each thread that looks the backend up; the thread then registers the result.
    if name != "fxpool_backend":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # Skipped with an unsupported torch, which may lack names that this needs.
    if torch_release.current_refusal() is None:
        if torch_release.is_untested():
            from fxpool.lowering import untested_torch  # as said above

            untested_torch.attempted(_before_the_first_graph)
        else:
            _before_the_first_graph()
    autoload.register()  # torch may be configured not to call it
    backend_table.admit("fxpool", backend.fxpool_backend)
    return backend.fxpool_backend


def _before_the_first_graph() -> None:
    from fxpool.lowering.core.runtime import runtime  # late: see the caller

    runtime.start_ahead(_tools_ahead)
    runtime.freeze_objects()
    begin_frames()


def begin_frames() -> None:
    """Serve frames from now on, if the setting `frames` says so. Idempotent."""
    with contextlib.suppress(FxpoolError):  # the graph reports it
        if config.current().keeps_frames:
            from fxpool.frames import serving  # not needed otherwise
            from fxpool.torch_compat.dynamo import late_minifier  # as said above

            serving.begin()
            if not torch_release.is_untested():
                late_minifier.import_late("fxpool")


def _tools_ahead(toolchain_dir: str | None) -> None:
    from fxpool.lowering.cuda import devices  # not needed if a server is already running

    # The key of the first graph needs the headers, which the compiler lists while Dynamo traces.
    threading.Thread(target=_list_headers, args=(toolchain_dir,), name="fxpool-headers").start()
    devices.library_ahead(toolchain_dir)


def _list_headers(toolchain_dir: str | None) -> None:
    from fxpool.codecache.key import source_toolchain  # imports parts of torch, beside Dynamo

    with contextlib.suppress(Exception):  # the first graph that needs them reports the error
        source_toolchain.key_facts(toolchain_dir)
