"""Facts for keys about the compilers of CUDA, ROCm and Halide sources.

They are collected as `toolchain` does for the C++ compiler: the version that a compiler reports, and the content of the
program or of a script that wraps it. They are collected only if the configuration lets Inductor generate such sources.
The headers of a template library (CUTLASS, CK) and of directories in the environment are identified by content,
whichever directories these are.

Inductor's configuration is imported inside functions: a process that computes keys has already loaded it.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import importlib.util
import os
from collections.abc import Sequence
from typing import Any

from fxpool.codecache.key import cacheable, compiler_programs, probe_cache, toolchain
from fxpool.errors import NoHalideError

__all__ = ["SOURCES", "compiler_facts", "key_facts", "require"]

#: The name of these facts in the `toolchain` component of a key.
SOURCES = "sources"

# Variables that name directories of headers, for nvcc and ROCm's clang, and of Halide.
_INCLUDED = ("CPATH", "CPLUS_INCLUDE_PATH")
_OF_HALIDE = ("HALIDE_INCLUDE", "HALIDE_LIB")
# Programs of the CUDA toolkit that nvcc runs, in its own directory and in `nvvm/bin`.
_OF_NVCC = ("cicc", "ptxas", "fatbinary", "nvlink", "cudafe++")


def require(devices: set[str]) -> None:
    """Raise NoHalideError if the configuration requires Halide and it is not installed."""
    from fxpool.torch_compat.cpp import source_compilers, source_kernels

    kinds = source_compilers.in_use(devices)
    if source_kernels.HALIDE in kinds and importlib.util.find_spec("halide") is None:
        raise NoHalideError()


def key_facts(
    root: str | None = None, *, headers: bool = True, package: bool = False, gpu: bool = False
) -> dict[str, Any]:
    """Return `toolchain.key_facts` and, under `SOURCES`, facts about the compilers of other sources in use, if any.

    Without `headers`, those that C++ includes are left out; with `package`, those of an exported program are included,
    and with `gpu` those that C++ for GPUs includes.
    Raises Bypass: a compiler's programs or the headers can't be identified.
    """
    from fxpool.torch_compat.cpp import included_headers, source_compilers, source_kernels

    kinds = included_headers.in_use(package=package, gpu=gpu) if headers else ()
    found: dict[str, Any] = dict(toolchain.key_facts(root, kinds))
    sources: dict[str, dict[str, str]] = {}
    for kind in source_compilers.in_use():
        sources[kind] = _halide() if kind == source_kernels.HALIDE else compiler_facts(kind, root)
        if "unknown" in sources[kind]:
            raise cacheable.Bypass("compiler_unknown", sources[kind]["unknown"])
    if sources:
        found[SOURCES] = sources
    return found


def compiler_facts(kind: str, root: str | None = None) -> dict[str, str]:
    """Return the version text of nvcc or ROCm's clang as `compiler`, and digests of its `files` and `headers`.

    Without a compiler, return `none` as `compiler`. If its programs can't be identified, `unknown` is the reason.
    """
    from fxpool.torch_compat.cpp import source_compilers

    path = source_compilers.compiler(kind)
    if path is None:
        return {"compiler": "none"}
    program = compiler_programs.identify(path, root)
    digests = [program.digest, *(compiler_programs.identify(one, root).digest for one in _run_by(path))]
    headers = [*map(_tree, source_compilers.header_directories(kind)), *_named_by(_INCLUDED)]
    found = {
        "compiler": _version(path, probe_cache.identity_of(path)),
        "files": " ".join(digests),
        "headers": " ".join(headers),
    }
    return {**found, "unknown": program.unknown} if program.unknown else found


def _run_by(path: str) -> list[str]:
    """Return the programs of its toolkit that a compiler runs, found from its own directory."""
    top = os.path.dirname(os.path.dirname(os.path.realpath(path)))
    places = (os.path.join(top, "bin"), os.path.join(top, "nvvm", "bin"))
    candidates = [os.path.join(place, name) for place in places for name in _OF_NVCC]
    return [one for one in candidates if os.path.isfile(one)]


@functools.lru_cache(maxsize=16)
def _version(path: str, identity: probe_cache.Identity) -> str:
    """Return a compiler's full version text: the first line from nvcc has no version number."""
    said = compiler_programs.output_of([path, "--version"])
    if said is None:
        return "unknown"
    # Leave out paths: the text from clang contains its installation directory.
    lines = said.strip().splitlines()
    return "\n".join(line for line in lines if not line.startswith("InstalledDir"))


@functools.lru_cache(maxsize=4)
def _tree(directory: str) -> str:
    """Return the digest of all files below a directory, cached per process: CUTLASS's headers take 0.1 s."""
    whole = hashlib.sha256()
    for place, directories, names in os.walk(directory):
        directories.sort()
        for name in sorted(names):
            path = os.path.join(place, name)
            try:
                with open(path, "rb") as file:
                    digest = hashlib.sha256(file.read()).hexdigest()
            except OSError:
                continue
            whole.update(f"{os.path.relpath(path, directory)} {digest}\n".encode())
    return whole.hexdigest()


def _named_by(variables: Sequence[str]) -> list[str]:
    """Return the digests of the directories that environment variables name."""
    named = [part for name in variables for part in os.environ.get(name, "").split(os.pathsep)]
    return [_tree(directory) for directory in named if os.path.isabs(directory) and os.path.isdir(directory)]


def _halide() -> dict[str, str]:
    if named := _named_by(_OF_HALIDE):
        return {"files": " ".join(named)}
    try:
        return {"version": importlib.metadata.version("halide")}
    except importlib.metadata.PackageNotFoundError:  # built from source
        spec = importlib.util.find_spec("halide")
        places = list(spec.submodule_search_locations or ()) if spec is not None else []
        return {"files": " ".join(map(_tree, places))}
