"""Which environment a host's server belongs to: what its workers would run.

Clients of one environment share a server, clients of another get another: every rank runs the same compiler by
construction. An environment is the interpreter, fxpool, the distributions whose code compiles (the digests in their
RECORD, and every file that was edited since they were installed), and the variables that server and zygote see.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence

from fxpool import __version__
from fxpool.pool.protocol import PROTOCOL_VERSION

__all__ = ["DISTRIBUTIONS", "digest", "edited_files"]

#: Whose code compiles, and the packages it lies in.
DISTRIBUTIONS: dict[str, tuple[str, ...]] = {
    "torch": ("torch/_dynamo", "torch/_functorch", "torch/_inductor", "torch/_higher_order_ops", "torch/fx",
              "torch/_refs", "torch/_prims", "torch/_decomp", "torch/_library", "torch/_subclasses"),
    "triton": ("triton",),
    "pytorch-triton": ("triton",),
    "sympy": ("sympy/core", "sympy/functions", "sympy/simplify"),
}  # fmt: skip
_OWN = ("fxpool", "fxpool.pool", "fxpool.lowering", "fxpool.codecache", "fxpool.torch_compat")
# Variables that change what an interpreter imports. Jobs bring those that change what they do.
_VARIABLES = ("LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONHOME", "PYTHONPATH")
# Seconds by which a file may be newer than the RECORD that was written when it was installed.
_SLACK = 5.0


def digest(
    environment: Mapping[str, str],
    preload: Sequence[str],
    distributions: Mapping[str, Sequence[str]] = DISTRIBUTIONS,
) -> str:
    """32 hexadecimal digits that name an environment. Looks at some thousand files, which a compile can afford."""
    facts = {
        "protocol": PROTOCOL_VERSION,
        "fxpool": __version__,
        "python": [sys.implementation.name, list(sys.version_info[:3]), os.path.realpath(sys.executable)],
        "fxpool_files": _own_sources(),
        "environment": {name: environment.get(name, "") for name in _VARIABLES},
        "preload": list(preload),
        "distributions": {name: _distribution(name, packages) for name, packages in sorted(distributions.items())},
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:32]


def _own_sources() -> str:
    """Digest of our own source, which changes without a version while one develops."""
    whole = hashlib.sha256()
    for package in _OWN:
        spec = importlib.util.find_spec(package)
        for top in (spec.submodule_search_locations or ()) if spec is not None else ():
            for name in sorted(os.listdir(top)):
                if name.endswith(".py"):
                    with open(os.path.join(top, name), "rb") as file:
                        whole.update(f"{package}/{name}\n".encode() + file.read())
    return whole.hexdigest()


def _distribution(name: str, packages: Sequence[str]) -> list[str]:
    try:
        found = importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return []
    record = found.read_text("RECORD") or ""
    place = os.path.join(str(getattr(found, "_path", "")), "RECORD")
    facts = [found.version, hashlib.sha256(record.encode()).hexdigest()]
    try:
        installed = os.stat(place).st_mtime
    except OSError:  # nothing says when: every file counts by its content
        installed = 0.0
    for package in packages:
        facts += edited_files(str(found.locate_file(package)), installed)
    return facts


def edited_files(top: str, installed: float) -> Iterator[str]:
    """A line for each Python file under `top` that is newer than its installation: its place, its content's digest."""
    for directory, names, files in os.walk(top):
        names.sort()
        for name in sorted(files):
            if not name.endswith(".py"):
                continue
            path = os.path.join(directory, name)
            try:
                if os.stat(path).st_mtime <= installed + _SLACK:
                    continue
                with open(path, "rb") as file:
                    content = hashlib.sha256(file.read()).hexdigest()
            except OSError:
                continue
            yield f"{os.path.relpath(path, top)} {content}"
