"""Prints the generated code of one entry as JSON, in a separate process, because it imports torch and unpickles.

    python -m fxpool.dashboard.generated_code DIRECTORY KEY NAME     [[name in tracebacks, text], ...]

An error is one line on standard error and exit status 1.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any

from fxpool import child_python

__all__ = ["generated_code", "main"]

# Seconds; torch's import takes a few.
_PATIENCE = 90.0
_MOST = 32 << 20


async def generated_code(root: str, key: str, name: str) -> dict[str, Any]:
    """Return {"code": [[name, text], ...]} or {"error": the reason for its absence}, from a child process."""
    arguments = child_python.command("fxpool.dashboard.generated_code", root, key, name)
    child = await asyncio.create_subprocess_exec(
        *arguments,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        # A server is not wanted for this, and the store is the one that is shown.
        env=child_python.environment({**os.environ, "FXPOOL_POOL": "off", "FXPOOL_CACHE_DIR": root}),
    )
    try:
        output, errors = await asyncio.wait_for(child.communicate(), _PATIENCE)
    except asyncio.TimeoutError:
        return {"error": f"reading it with torch took longer than {_PATIENCE:g} s"}
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
    if child.returncode:
        said = errors.decode("utf-8", "replace").strip().splitlines()
        return {"error": said[-1] if said else f"the process that reads it exited with status {child.returncode}"}
    if len(output) > _MOST:
        return {"error": f"it has {len(output) >> 20} MB: use `fxpool cache show {key[:12]} --code`"}
    return {"code": json.loads(output)}


def main(arguments: list[str]) -> int:
    # Here: torch takes seconds to import, and the page's own process never does.
    from fxpool.codecache.store.base_store import BaseStore
    from fxpool.codecache.store.catalogue import load
    from fxpool.errors import FxpoolError
    from fxpool.lowering.artifact.entry_parts import generated_code as code_of

    root, key, name = arguments
    try:
        entry = load(root, key, name)
        if entry is None:
            print("the entry was removed or cannot be read", file=sys.stderr)
            return 1
        code = code_of(entry, BaseStore(root))  # which does not set damaged files aside: a page changes nothing
    except FxpoolError as error:
        print(error.message, file=sys.stderr)
        return 1
    json.dump([list(pair) for pair in code], sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
