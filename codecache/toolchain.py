"""The C++ compiler that Inductor would use, as facts for the key.

Asking a compiler for its version starts a process, so the answer is kept: per process, and in
`<root>/toolchain/<digest of the file's identity>.json` for the next one. The identity is the compiler's real path,
inode, size and modification time. A script or a `ccache` in the compiler's place says nothing about what it will run,
so these are asked in every process.

Facts hold no paths: what a search path in the environment says is in them as a digest.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass

from fxpool.codecache.blobs import check_directory, read_private, write_private
from fxpool.errors import NoCompilerError, StoreError

# Variables that lead the compiler to other headers, libraries or programs, or change its output.
_ENVIRONMENT = (
    "CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "LIBRARY_PATH", "COMPILER_PATH", "GCC_EXEC_PREFIX",
    "OMP_PREFIX", "CONDA_PREFIX", "SOURCE_DATE_EPOCH", "CCC_OVERRIDE_OPTIONS",
)  # fmt: skip
_FRONTS = ("ccache", "sccache", "distcc", "icecc")
_TIMEOUT = 60.0


@dataclass(frozen=True)
class Compiler:
    """A compiler that runs: where it is, the first line of its `--version`, and the machine it compiles for."""

    path: str
    version: str
    target: str


_known: dict[tuple[str, str, int, int, int, int], tuple[str, str]] = {}
_known_lock = threading.Lock()


def toolchain_facts(root: str | None = None) -> dict[str, str]:
    """What the key has to know of the C++ compiler; `compiler` is `none` if there is no working one.

    `root` is the store's directory, where answers are kept between processes; None keeps them in this one only.
    """
    compiler = find_compiler(root)
    if compiler is None:
        facts = {"compiler": "none"}
    else:
        facts = {"compiler": compiler.version, "compiler_target": compiler.target}
    for name in _ENVIRONMENT:
        if value := os.environ.get(name):
            facts[f"env_{name}"] = hashlib.sha256(value.encode("utf-8", "surrogateescape")).hexdigest()[:16]
    return facts


def require_compiler(root: str | None = None) -> Compiler:
    """The compiler that Inductor would use. Raises NoCompilerError, which says what was tried."""
    compiler = find_compiler(root)
    if compiler is None:
        raise NoCompilerError(_candidates())
    return compiler


@contextlib.contextmanager
def failures_explained(root: str | None = None) -> Iterator[None]:
    """Turn a failure that comes of having no compiler into NoCompilerError.

    Inductor asks for its compiler in many places, and says so in as many ways (2.13: an OSError of `subprocess` if CXX
    is empty).
    """
    try:
        yield
    except NoCompilerError:
        raise
    except Exception as error:
        if _wanted_a_compiler(error) and find_compiler(root) is None:
            raise NoCompilerError(_candidates()) from error
        raise


def _wanted_a_compiler(error: BaseException) -> bool:
    seen: list[BaseException] = []
    found: BaseException | None = error
    while found is not None and found not in seen:
        if isinstance(found, OSError) or type(found).__name__ == "InvalidCxxCompiler":
            return True
        seen.append(found)
        found = getattr(found, "inner_exception", None) or found.__cause__ or found.__context__
    return False


def find_compiler(root: str | None = None) -> Compiler | None:
    """The first of Inductor's compilers that is there and runs."""
    for candidate in _candidates():
        path = shutil.which(candidate)
        if path is None:
            continue
        answer = _ask(path, root)
        if answer is not None:
            return Compiler(path, *answer)
    return None


def _candidates() -> list[str]:
    from fxpool.torch_compat.cpp_toolchain import compiler_candidates

    return compiler_candidates()


def _ask(path: str, root: str | None) -> tuple[str, str] | None:
    """(version, target) of a compiler, from memory, from `root`, or by running it; None if it does not run."""
    real = os.path.realpath(path)
    try:
        status = os.stat(real)
        with open(real, "rb") as file:
            is_script = file.read(2) == b"#!"
    except OSError:
        return None
    # The name it is called by counts: some compilers look at it.
    identity = (
        real, os.path.basename(path), status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns,
    )  # fmt: skip
    with _known_lock:
        if identity in _known:
            return _known[identity]
    lasting = not is_script and os.path.basename(real) not in _FRONTS
    file_name = _file_name(root, identity) if root is not None and lasting else None
    answer = _read(file_name)
    if answer is None:
        answer = _run(path)
        if answer is not None:
            _write(file_name, answer)
    if answer is not None:
        with _known_lock:
            _known[identity] = answer
    return answer


def _run(path: str) -> tuple[str, str] | None:
    environment = {**os.environ, "LC_ALL": "C"}  # versions are translated otherwise

    def output(argument: str) -> str:
        run = subprocess.run(
            [path, argument],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=_TIMEOUT,
            check=True,
        )
        return run.stdout.decode("utf-8", "replace")

    try:
        version = output("--version").strip()
    except (OSError, subprocess.SubprocessError):
        return None
    try:
        target = output("-dumpmachine").strip()
    except (OSError, subprocess.SubprocessError):
        target = ""  # not known to every compiler
    # The first line has name and version; clang's others name the directory it is installed in.
    return (version.splitlines() or [""])[0].strip(), target


def _file_name(root: str, identity: tuple[str, str, int, int, int, int]) -> str:
    digest = hashlib.sha256(json.dumps(identity).encode()).hexdigest()
    return os.path.join(root, "toolchain", f"{digest}.json")


def _read(file_name: str | None) -> tuple[str, str] | None:
    if file_name is None:
        return None
    try:
        check_directory(os.path.dirname(os.path.dirname(file_name)))
        found = json.loads(read_private(file_name)[0])
        version, target = found["version"], found["target"]
    except (OSError, StoreError, ValueError, KeyError, TypeError):
        return None
    return (version, target) if isinstance(version, str) and isinstance(target, str) else None


def _write(file_name: str | None, answer: tuple[str, str]) -> None:
    """Keep an answer; not being able to costs a process start, no more."""
    if file_name is None:
        return
    try:
        check_directory(os.path.dirname(os.path.dirname(file_name)))
        write_private(file_name, json.dumps({"version": answer[0], "target": answer[1]}).encode())
    except StoreError:
        pass
