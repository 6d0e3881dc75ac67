"""Starts modules of fxpool in another Python process, without the working directory on its import path.

``python -m`` looks for modules in the working directory first, so that a file ``json.py`` there would be run.
"""

from __future__ import annotations

import os
import site
import sys
from collections.abc import Mapping

__all__ = ["PROGRAM_RUN", "command", "environment"]

#: The variable with which ``fxpool run`` starts a program; workers do not get it. Without the underscore, it would be
#: a setting.
PROGRAM_RUN = "_FXPOOL_RUN"
_RUN = "import sys; sys.path.remove(''); import runpy; runpy.run_module(sys.argv.pop(1), None, '__main__', True)"


def command(module: str, *arguments: str) -> list[str]:
    """Return the command line that runs a module of fxpool as a script."""
    options = ["-P", "-m"] if sys.version_info >= (3, 11) else ["-c", _RUN]
    return [sys.executable, *options, module, *arguments]


def environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the child's environment: `variables`, and where fxpool is if only the working directory leads to it."""
    directory = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    if directory in (*site.getsitepackages(), site.getusersitepackages()):
        return dict(variables)
    paths = [path for path in variables.get("PYTHONPATH", "").split(os.pathsep) if path]
    return {**variables, "PYTHONPATH": os.pathsep.join(dict.fromkeys([*paths, directory]))}
