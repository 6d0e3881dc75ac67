"""Scripts of `bench/` that measure in children of their own file, each with its caches."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from .children import LIMIT, ChildError, Children

__all__ = ["caches", "finish", "report_of", "report_or_exit"]


def caches(directory: str, root: str, store: str = "") -> dict[str, str]:
    """Return a child's caches in `directory`, or fxpool's in `store`. The runtime directory is in `root`.

    A cold start is one without a server that another run left, so each child has its own.
    """
    return {
        "TORCHINDUCTOR_CACHE_DIR": f"{directory}/i",
        "TRITON_CACHE_DIR": f"{directory}/t",
        "FXPOOL_CACHE_DIR": store or f"{directory}/c",
        "FXPOOL_RUNTIME_DIR": f"{root}/r",
        "FXPOOL_POOL": "embedded",
    }


def report_of(
    script: str, request: Mapping[str, Any], environment: Mapping[str, str], limit: float = LIMIT
) -> dict[str, Any]:
    """Run a script with ``--child`` and a request; return the object on its last line of output. Raises ChildError."""
    text = json.dumps(request)
    return Children().result([script, "--child", text], {**os.environ, **environment}, text, limit)


def report_or_exit(script: str, request: Mapping[str, Any], environment: Mapping[str, str]) -> dict[str, Any]:
    """Return `report_of` a script; exit with the end of its output if it fails."""
    try:
        return report_of(script, request, environment)
    except ChildError as error:
        sys.exit(f"{error.message}:\n{error.output}")


def finish(failures: Sequence[str], out: str | None = None, results: object = None) -> NoReturn:
    """Write `results` to the file `out`, print failures, and exit with status 1 if there are any."""
    if out:
        Path(out).write_text(json.dumps(results, indent=1))
    for failure in failures:
        print("FAILED:", failure)
    sys.exit(bool(failures))
