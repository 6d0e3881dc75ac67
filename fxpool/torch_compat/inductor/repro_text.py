"""The script that reproduces a graph, which Inductor keeps with its code for ``TORCH_TRACE``.

It begins with environment variables and configuration of the process that compiled the graph: secrets among them, and a
worker's temporary folders. An entry has marks in their place, which become those of the process that traces.
"""

from __future__ import annotations

import contextlib
import re
import textwrap
from collections.abc import Callable, Iterator

from fxpool.torch_compat.patching import patched

__all__ = ["forget", "marked", "of_this_process"]

# torch's functions for the two parts.
_PARTS = {"generate_env_vars_string": "environment", "generate_config_string": "configuration"}
_MARKED = re.compile(r"^# (\w+) of the process:$.*?^# end of the \1$", re.DOTALL | re.MULTILINE)


@contextlib.contextmanager
def marked() -> Iterator[None]:
    """Let scripts that torch makes in the block have marks around what is of this process."""
    from torch._dynamo.repro import after_aot

    def around(part: str, make: Callable[..., str]) -> Callable[..., str]:
        return lambda **options: f"# {part} of the process:\n{make(**options)}\n# end of the {part}"

    with contextlib.ExitStack() as stack:
        for name, part in _PARTS.items():
            stack.enter_context(patched(after_aot, name, around(part, getattr(after_aot, name))))
        yield


def forget(script: str | None) -> str | None:
    """Return a script without what its marks surround; an empty one if it has no marks."""
    if not script:
        return script
    emptied, found = _MARKED.subn(r"# \1 of the process:\n# end of the \1", script)
    return emptied if found == len(_PARTS) else ""


def of_this_process(script: str | None) -> str | None:
    """Return a script of `forget` with this process's environment and configuration."""
    if not script:
        return script
    from torch._dynamo.repro import after_aot  # imports Inductor: only for a trace

    for name, part in _PARTS.items():
        empty = f"# {part} of the process:\n# end of the {part}"
        if empty in script:
            script = script.replace(empty, textwrap.dedent(getattr(after_aot, name)()))
    return script
