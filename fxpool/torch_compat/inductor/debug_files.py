"""Inductor's debug files (``TORCH_COMPILE_DEBUG=1``, ``trace.enabled``).

The compile runs in a worker, which has another configuration of these files and another directory. So the program's
settings for both are sent with the graph; they are in no key. As with stock Inductor, a graph that is served from the
cache writes no files, because it is not lowered.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterator
from typing import Any

import torch._dynamo  # noqa: F401  # first, see torch_compat
import torch._inductor.config as inductor_config

from fxpool.torch_compat.patching import patched, patched_item
from fxpool.torch_compat.state.config_decisions import STAYS

__all__ = ["DebugFiles", "requested", "written"]

_VARIABLE = "TORCH_COMPILE_DEBUG"
_PLAIN = (bool, int, float, str, type(None))


@dataclasses.dataclass(frozen=True)
class DebugFiles:
    """The `directory` of a program's run, the `options` that select files, and whether AOTAutograd writes a `log`."""

    directory: str
    options: dict[str, Any]
    log: bool


def requested() -> DebugFiles | None:
    """Return the debug files that this process wants for its graphs; None if debugging is off."""
    if not inductor_config.trace.enabled:
        return None
    from torch._dynamo.utils import get_debug_dir

    options: dict[str, Any] = {}
    for name in STAYS["inductor"]:
        if name.startswith("trace.") and name in inductor_config._config:  # exists in this release
            value = getattr(inductor_config.trace, name.partition(".")[2])
            if isinstance(value, _PLAIN):  # a function that uploads the files is not sent
                options[name] = value
    if options.get("trace.debug_dir"):
        options["trace.debug_dir"] = os.path.abspath(options["trace.debug_dir"])
    return DebugFiles(os.path.abspath(get_debug_dir()), options, os.environ.get(_VARIABLE) == "1")


@contextlib.contextmanager
def written(files: DebugFiles | None) -> Iterator[None]:
    """Write the debug files that the client wants for a compile in this process."""
    if files is None:
        yield
        return
    from torch._inductor import debug

    with (
        patched(debug, "get_debug_dir", lambda: files.directory),
        patched_item(os.environ, _VARIABLE, str(int(files.log))),
        inductor_config.patch(files.options),
    ):
        yield
