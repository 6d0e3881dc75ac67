"""Computes the digest of an environment: the code that a host's server and its workers run.

Clients with the same digest share a server, so all ranks of a job run the same compiler. An environment consists of the
interpreter, fxpool, the packages that compile (`fxpool.installed_packages`, also a part of every key), the preloaded
modules, and the environment variables that affect imports.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import sys
from collections.abc import Mapping, Sequence

from fxpool import installed_packages
from fxpool.pool.wire.protocol import PROTOCOL_VERSION
from fxpool.version import __version__

__all__ = ["digest"]

# Variables that affect imports. Variables that affect a job are sent with the job.
_VARIABLES = ("LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONHOME", "PYTHONPATH")


def digest(
    environment: Mapping[str, str],
    preload: Sequence[str],
    packages: Sequence[installed_packages.Package] = installed_packages.PACKAGES,
    cache: installed_packages.FactCache | None = None,
) -> str:
    """Return 32 hexadecimal digits that identify an environment. Checks some thousand files, a small part of a compile.

    `cache` caches facts from earlier processes: it saves time and does not change the digest.
    """
    facts = {
        "protocol": PROTOCOL_VERSION,
        "fxpool": __version__,
        "python": [sys.implementation.name, list(sys.version_info[:3]), os.path.realpath(sys.executable or os.devnull)],
        "fxpool_files": _own_sources(),
        "environment": {name: environment.get(name, "") for name in _VARIABLES},
        "preload": list(preload),
        "installed": installed_packages.facts(cache, packages),
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:32]


def _own_sources() -> str:
    """Return a digest of fxpool's source, which changes without a new version during development."""
    whole = hashlib.sha256()
    spec = importlib.util.find_spec("fxpool")
    for top in (spec.submodule_search_locations or ()) if spec is not None else ():
        # In a checkout, fxpool/pool and other packages are symbolic links.
        for directory, below, names in os.walk(top, followlinks=True):
            below.sort()
            for name in sorted(names):
                if name.endswith(".py"):
                    path = os.path.join(directory, name)
                    with open(path, "rb") as file:
                        whole.update(f"{os.path.relpath(path, top)}\n".encode() + file.read())
    return whole.hexdigest()
