"""Starts modules of fxpool in another Python process, without the working directory on its import path.

``python -m`` looks for modules in the working directory first, so that a file ``json.py`` there would be run.
"""

from __future__ import annotations

import os
import site
import sys
from collections.abc import Mapping

import fxpool

__all__ = ["command", "environment"]

_RUN = "import sys; sys.path.remove(''); import runpy; runpy.run_module(sys.argv.pop(1), None, '__main__', True)"


def command(module: str, *arguments: str) -> list[str]:
    """Return the command line that runs a module of fxpool as a script."""
    how = ["-P", "-m"] if sys.version_info >= (3, 11) else ["-c", _RUN]
    return [sys.executable, *how, module, *arguments]


def environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the child's environment: `variables`, and where fxpool is if only the working directory told."""
    place = os.path.dirname(os.path.dirname(os.path.abspath(fxpool.__file__)))
    if place in (*site.getsitepackages(), site.getusersitepackages()):
        return dict(variables)
    known = [path for path in variables.get("PYTHONPATH", "").split(os.pathsep) if path]
    return {**variables, "PYTHONPATH": os.pathsep.join(dict.fromkeys([*known, place]))}
