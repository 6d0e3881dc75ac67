"""Facts for the key about the C++ compiler that Inductor would use.

Asking a compiler for its version starts a process, so the answer is cached in memory and, for the next process, beside
the graphs (`probe_cache`). If the compiler command is a script or `ccache`, its file does not determine what it runs,
so each process asks again. A version is only the program's own report: the content of the compiler's programs is also
part of the key (`compiler_programs`), as is that of the headers that generated sources include (`headers`).

Facts contain no paths: values from the environment are stored as digests.

Inductor's builder is imported inside functions: it is not needed when the answers are cached.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fxpool import failures, forks, interruptions
from fxpool.codecache.key import cacheable, compiler_examination, compiler_programs, probe_cache
from fxpool.errors import NoCompilerError, ShortageError

if TYPE_CHECKING:
    from fxpool.torch_compat.cpp import included_headers

#: Environment variables that redirect the compiler to other headers, libraries or programs, or change its output.
ENVIRONMENT = (
    "CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "LIBRARY_PATH", "COMPILER_PATH", "GCC_EXEC_PREFIX",
    "OMP_PREFIX", "CONDA_PREFIX", "SOURCE_DATE_EPOCH", "CCC_OVERRIDE_OPTIONS",
)  # fmt: skip
_NO_PYTHON_H = re.compile(r"fatal error: '?Python\.h\b")


@dataclass(frozen=True)
class Compiler:
    """A working compiler: its path, the first line of `--version`, and the machine it compiles for.

    `arguments` precede all others on its command line: ``g++`` behind a front end, or an option.
    """

    path: str
    version: str
    target: str
    arguments: tuple[str, ...] = ()


_known: dict[tuple[Any, ...], tuple[str, str]] = {}
_known_lock = forks.lock(__name__, "_known_lock")


def toolchain_facts(root: str | None = None) -> dict[str, str]:
    """Return the facts for the key about the C++ compiler; `compiler` is `none` without a working compiler.

    `compiler_unknown` is the reason if its programs can't be identified; then its output may not be cached. `root` is
    the store's directory, where answers are shared between processes; with None they are cached in this process only.
    """
    return _facts_of(find_compiler(root), root)


def _facts_of(compiler: Compiler | None, root: str | None) -> dict[str, str]:
    names: tuple[str, ...] = ENVIRONMENT
    if compiler is None:
        facts = {"compiler": "none"}
    else:
        program = compiler_programs.identify(compiler.path, root)
        facts = {"compiler": compiler.version, "compiler_target": compiler.target, "compiler_files": program.digest}
        if compiler.arguments:
            behind = [compiler_programs.identify(path, root) for path in filter(None, map(_found, compiler.arguments))]
            facts["compiler_arguments"] = " ".join((*compiler.arguments, *(other.digest for other in behind)))
            reasons = filter(None, (program.unknown, *(other.unknown for other in behind)))
            names = tuple(name for other in (program, *behind) for name in other.variables)
            program = compiler_programs.Program(program.digest, names, "; ".join(reasons))
        if program.unknown:
            facts["compiler_unknown"] = program.unknown
        names = tuple(dict.fromkeys((*ENVIRONMENT, *program.variables)))
    for name in names:
        if value := os.environ.get(name):
            facts[f"env_{name}"] = hashlib.sha256(value.encode("utf-8", "surrogateescape")).hexdigest()[:16]
    return facts


def key_facts(root: str | None = None, kinds: Sequence[included_headers.Kind] = ()) -> dict[str, str]:
    """Return `toolchain_facts` for a key, and the digests of the headers that some kinds of generated sources include.

    Raises Bypass: the compiler's programs or these headers can't be identified.
    """
    compiler = find_compiler(root)
    facts = _facts_of(compiler, root)
    if "compiler_unknown" in facts:
        raise cacheable.Bypass("compiler_unknown", facts["compiler_unknown"])
    if compiler is None or not kinds:
        return facts
    from fxpool.codecache.key import headers  # imports torch, without which the command line asks for other facts

    command = (compiler.path, *compiler.arguments)
    try:
        return {**facts, **headers.digests(command, facts, kinds, root, lambda: settle(root))}
    except headers.UnlistedError as error:
        raise cacheable.Bypass("compiler_unknown", str(error)) from error


def variables_read(root: str | None = None) -> tuple[str, ...]:
    """Return the names of other environment variables that compiler wrappers, or programs they run, may read.

    Workers need these variables, too.
    """
    for first, *arguments in filter(None, map(_words, _candidates())):
        if (path := _found(first)) is not None:
            places = [path, *filter(None, map(_found, arguments))]
            return tuple(name for place in places for name in compiler_programs.identify(place, root).variables)
    return ()


def require_compiler(root: str | None = None) -> Compiler:
    """Return the compiler that Inductor would use. Raises NoCompilerError, which lists the candidates."""
    compiler = find_compiler(root)
    if compiler is None:
        raise _no_compiler()
    return compiler


def _no_compiler() -> NoCompilerError:
    from fxpool.torch_compat.cpp import cpp_toolchain

    return NoCompilerError(_candidates(), arguments=cpp_toolchain.takes_arguments())


@contextlib.contextmanager
def failures_explained(root: str | None = None) -> Iterator[None]:
    """Turn a failure caused by a missing compiler, or by missing headers of Python, into NoCompilerError.

    Inductor looks for its compiler in many places and raises a different error in each (2.13: an OSError from
    `subprocess` if CXX is empty).
    """
    try:
        yield
    except NoCompilerError:
        raise
    except Exception as error:
        if _wanted_a_compiler(error) and failures.shortage(error) is None and find_compiler(root) is None:
            raise _no_compiler() from error
        # The bindings of kernels include it, Inductor's as well as fxpool's.
        if any(_NO_PYTHON_H.search(str(cause)) for cause in interruptions.with_causes(error)):
            raise NoCompilerError(_candidates(), python_header=True) from error
        raise


def _wanted_a_compiler(error: BaseException) -> bool:
    return any(
        isinstance(cause, OSError) or type(cause).__name__ == "InvalidCxxCompiler"
        for cause in interruptions.with_causes(error)
    )


@contextlib.contextmanager
def of_stock(root: str | None = None) -> Iterator[None]:
    """Settle and explain failures (see above and below) in a ``with`` block that compiles as stock Inductor does."""
    with failures_explained(root):
        with contextlib.suppress(ShortageError):  # Inductor calls the compiler when it needs it
            settle(root)
        yield


def settle(root: str | None = None) -> Compiler | None:
    """Return `find_compiler`'s result, and clear Inductor's caches if they belong to another compiler.

    Call before Inductor compiles: the compiler may change between compiles of a process, and differs in a worker whose
    zygote warmed up with another compiler.
    """
    from fxpool.torch_compat.cpp import cpp_toolchain

    compiler = find_compiler(root)
    facts = _facts_of(compiler, root) if compiler is not None else {}
    # Includes the path, because Inductor detects the kind of a compiler by its name.
    names = (*_candidates(), *((compiler.path, *compiler.arguments) if compiler is not None else ()))
    cpp_toolchain.settle((names, tuple(sorted(facts.items()))))
    return compiler


def find_compiler(root: str | None = None) -> Compiler | None:
    """Return the first of Inductor's compilers that exists and runs, or None. Raises ShortageError."""
    for first, *arguments in filter(None, map(_words, _candidates())):
        path = _found(first)
        if path is None:
            continue
        answer = _ask(path, tuple(arguments), root)
        if answer is not None:
            return Compiler(path, *answer, tuple(arguments))
    return None


def _words(candidate: str) -> list[str]:
    from fxpool.torch_compat.cpp import cpp_toolchain

    return cpp_toolchain.words(candidate)


@compiler_examination.once
def _found(candidate: str) -> str | None:
    """Return a command's absolute path: PATH may contain directories relative to the working directory."""
    path = shutil.which(candidate)
    return os.path.abspath(path) if path is not None else None


def _candidates() -> list[str]:
    from fxpool.torch_compat.cpp import cpp_toolchain

    return cpp_toolchain.compiler_candidates()


@compiler_examination.once
def _ask(path: str, arguments: tuple[str, ...], root: str | None) -> tuple[str, str] | None:
    """Return (version, target) of a compiler from memory, from `root` or by running it; None if it fails to run."""
    try:
        identity = probe_cache.identity_of(path)
        # The compiler behind a front end or script may change while the file at `path` stays the same.
        followed = bool(arguments) or _is_followed(path)
    except OSError:
        return None
    name = os.path.basename(path)  # some compilers act on the name by which they are called
    known = (name, identity, *map(_identity_of_argument, arguments))
    with _known_lock:
        if known in _known:
            return _known[known]
    kept = None if followed else root
    answer = _read(kept, name, identity)
    if answer is None:
        answer = _run([path, *arguments])
        if answer is not None:
            probe_cache.write(kept, ["compiler", name], identity, {"version": answer[0], "target": answer[1]})
    if answer is not None:
        with _known_lock:
            _known[known] = answer
    return answer


def _identity_of_argument(argument: str) -> tuple[str, Any]:
    """Return an argument and the identity of the file it names, if any: it may be the compiler behind a front end."""
    path = _found(argument)
    try:
        return argument, probe_cache.identity_of(path) if path is not None else None
    except OSError:
        return argument, None


def _is_followed(path: str) -> bool:
    """Return whether a program is a front end or script that runs another compiler."""
    try:
        return _is_such(probe_cache.identity_of(path))
    except OSError:
        return False


@functools.lru_cache(maxsize=64)
def _is_such(identity: probe_cache.Identity) -> bool:
    real = str(identity[0])
    return os.path.basename(real) in compiler_programs.FRONTS or compiler_programs.is_script(real)


def _read(root: str | None, name: str, identity: probe_cache.Identity) -> tuple[str, str] | None:
    answer = probe_cache.read(root, ["compiler", name], identity)
    return (answer["version"], answer["target"]) if answer and answer.keys() >= {"version", "target"} else None


def _run(command: Sequence[str]) -> tuple[str, str] | None:
    """Return a compiler's (version, target); None if it does not work. Raises ShortageError."""
    version = compiler_programs.output_of([*command, "--version"])
    if version is None:
        return None
    target = compiler_programs.output_of([*command, "-dumpmachine"]) or ""  # not every compiler has this option
    # The first line has the name and version. Other lines from clang contain its installation directory.
    return (version.strip().splitlines() or [""])[0].strip(), target.strip()
