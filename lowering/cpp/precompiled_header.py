"""The header of all C++ kernels, compiled once per host and set of flags.

Precompiling it takes as long as compiling several graphs (8 s), and saves two thirds of each library's compile time.
Inductor's own precompiled header is not used, for two reasons. A process that is killed while writing it leaves half a
file, which g++ silently ignores from then on. And Inductor runs the preprocessor in each process to see whether a file
changed; here the list of files that the compiler read is stored, and compared by size and modification time.

    <directory>/<digest>.h        one line, the #include
    <directory>/<digest>.h.gch    the compiled header, written atomically
    <directory>/<digest>.json     files read for it, and itself: path -> [size, modification time in ns]; the digest of
                                  `codecache.key.headers`, which shows headers that came before those
    <directory>/<digest>.failed   the compiler's message if it fails; no process tries again for an hour
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time

import filelock

from fxpool import directories, failures, notices
from fxpool.codecache.key import cacheable, headers, toolchain
from fxpool.codecache.store import blobs
from fxpool.errors import ShortageError, StoreError
from fxpool.torch_compat.cpp import compile_commands, included_headers

log = notices.logger(__name__)
#: The longest wait, in seconds, for another process that is compiling the same header.
_PATIENCE = 120.0
#: Headers that have not been used for this many seconds are removed: each takes 120 to 160 MB.
_UNUSED = 14 * 24 * 3600.0
#: Seconds before a header that failed to compile is tried again: the reason may be temporary, such as a full disk.
_FAILED_FOR = 3600.0
_BUILDING = "building-"


def command(toolchain_dir: str | None, *, build: bool = True) -> compile_commands.Command:
    """Return the compiler's command for kernels on this host, with the precompiled header of `toolchain_dir`.

    Kernels include the header as text if `toolchain_dir` is None, if the header does not compile, or if it is missing
    and `build` is false.
    """
    wanted = bare_command(toolchain_dir)
    if toolchain_dir is not None and wanted.precompiles_headers():
        header = _find_or_build(toolchain_dir, wanted, build)
        if header is not None:
            wanted.use_header(header)
    return wanted


def bare_command(toolchain_dir: str | None) -> compile_commands.Command:
    """Return the compiler's command for kernels on this host, without a precompiled header."""
    # The flags depend on what Inductor has cached about its compiler, and the header's name on the flags.
    compiler = toolchain.settle(toolchain_dir)
    return compile_commands.Command((compiler.path, *compiler.arguments) if compiler is not None else ())


def _content() -> str:
    return compile_commands.HEADER + "\n"


def is_ready(toolchain_dir: str | None) -> bool:
    """Return whether `command` would return at once: the header exists, or none is used."""
    wanted = bare_command(toolchain_dir)
    if toolchain_dir is None or not wanted.precompiles_headers():
        return True
    header = _path(toolchain_dir, wanted)
    listed = _listed(toolchain_dir)
    return listed is None or _is_current(header, listed) or _has_failed(header)


def _path(toolchain_dir: str, wanted: compile_commands.Command) -> str:
    arguments, _ = wanted.precompile("/header.h")
    facts = toolchain.toolchain_facts(toolchain_dir)
    asked = json.dumps([_content(), arguments[1:], sorted(facts.items())])  # the compiler is among the facts
    return os.path.join(toolchain_dir, "headers", hashlib.sha256(asked.encode()).hexdigest()[:32] + ".h")


def _listed(toolchain_dir: str) -> str | None:
    """Return the digest of the headers that kernels include; None if the compiler does not list them."""
    try:
        return toolchain.key_facts(toolchain_dir, (included_headers.KERNELS,)).get(headers.KERNELS)
    except cacheable.Bypass:
        return None


def _find_or_build(toolchain_dir: str, wanted: compile_commands.Command, build: bool) -> str | None:
    """Return the path of the header to include, with its compiled form beside it; None if there is no such header."""
    header, listed = _path(toolchain_dir, wanted), _listed(toolchain_dir)
    if listed is not None and _is_current(header, listed):
        return header
    if listed is None or not build or _has_failed(header):
        return None
    directory = os.path.dirname(header)
    try:
        directories.make_private(directory)
        with filelock.FileLock(f"{header[:-2]}.lock", timeout=_PATIENCE, mode=0o600):
            if not _is_current(header, listed) and not _has_failed(header):
                _sweep(directory, os.path.basename(header)[:-2])
                _build(header, _content(), wanted, listed)
    except (OSError, StoreError, ShortageError, filelock.Timeout, subprocess.SubprocessError) as error:
        said = (getattr(error, "stderr", None) or b"").decode("utf-8", "replace")[-2000:]
        log.warning("compiling kernels without a precompiled header, which takes longer: %s\n%s", error, said)
        if isinstance(error, subprocess.CalledProcessError):
            with contextlib.suppress(OSError, StoreError):
                blobs.write_private(_failure(header), said.encode())
        return None
    return header if _is_current(header, listed) else None


def _failure(header: str) -> str:
    return f"{header[:-2]}.failed"


def _has_failed(header: str) -> bool:
    """Return whether this compiler rejected the header within the last hour, in any process."""
    try:
        return 0 <= time.time() - os.stat(_failure(header)).st_mtime < _FAILED_FOR
    except OSError:
        return False


def _is_current(header: str, listed: str) -> bool:
    record = f"{header[:-2]}.json"
    try:
        read = json.loads(blobs.read_stored(record)[0])
        current = read.pop(headers.KERNELS) == listed and all(_state(path) == state for path, state in read.items())
    except (OSError, StoreError, ValueError, AttributeError, KeyError, TypeError):
        return False
    if current:
        with contextlib.suppress(OSError):
            os.utime(record)
    return current


def _state(path: str) -> list[int]:
    status = os.stat(path)
    return [status.st_size, status.st_mtime_ns]


def _build(header: str, content: str, wanted: compile_commands.Command, listed: str) -> None:
    # The record is removed first and written last: without it the other files are ignored.
    with contextlib.suppress(FileNotFoundError):
        os.unlink(f"{header[:-2]}.json")
    blobs.write_private(header, content.encode())
    arguments, output = wanted.precompile(header)
    place, name = os.path.split(header)
    # `fxpool doctor` shows the process id.
    prefix = f"{_BUILDING}{name[:-2]}-{os.getpid()}-"
    with tempfile.TemporaryDirectory(dir=place, prefix=prefix) as directory:
        made, files = os.path.join(directory, "header.gch"), os.path.join(directory, "files")
        arguments = [made if argument == output else argument for argument in arguments]
        started = time.time_ns()
        rule = ["-MD", "-MF", files, "-MT", headers.TARGET]
        failures.run([*arguments, *rule], directory=directory).check_returncode()
        with open(files, encoding=sys.getfilesystemencoding(), errors="surrogateescape") as file:
            read = {path: _state(path) for path in headers.prerequisites(file.read())}
        if any(modified >= started for _, modified in read.values()):
            raise StoreError("a header changed during its compile")
        os.replace(made, f"{header}.gch")
        read[f"{header}.gch"] = _state(f"{header}.gch")
    blobs.write_private(f"{header[:-2]}.json", json.dumps({**read, headers.KERNELS: listed}).encode())


def _sweep(directory: str, held: str) -> None:
    """Remove headers unused for long, and files of killed processes. The caller holds the lock of `held`."""
    now = time.time()
    with os.scandir(directory) as listing:
        entries = list(listing)
    for entry in entries:
        with contextlib.suppress(OSError):
            if entry.name.startswith(_BUILDING):
                name = entry.name.removeprefix(_BUILDING).partition("-")[0]
                if name == held or _is_unlocked(os.path.join(directory, f"{name}.lock")):
                    shutil.rmtree(entry.path, ignore_errors=True)
            elif entry.name.endswith(".failed"):
                if now - entry.stat().st_mtime > _UNUSED:
                    os.unlink(entry.path)
            elif entry.name.endswith(".gch"):
                stem = entry.path[: -len(".h.gch")]
                used = [os.stat(path).st_mtime for path in (entry.path, f"{stem}.json") if os.path.exists(path)]
                if now - max(used) > _UNUSED:
                    for ending in (".json", ".h.gch", ".h"):
                        os.unlink(stem + ending)


def _is_unlocked(lock: str) -> bool:
    """Return whether no process holds a header's lock: the process that started to compile it has ended."""
    try:
        with filelock.FileLock(lock, timeout=0, mode=0o600):
            return True
    except (OSError, filelock.Timeout):
        return False
