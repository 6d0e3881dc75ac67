"""Checks of `fxpool doctor` that need no compile: versions, toolchain, directories, limits. Does not import torch.

Each check imports its modules inside functions, so that a failed import fails that check only.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import importlib.metadata
import importlib.util
import json
import os
import platform
import resource
import shutil
import socket
import stat
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path

from fxpool import config, directories, quantities, remedies, temporary
from fxpool.doctor.farm import farm
from fxpool.doctor.findings import FAIL, OK, WARN, Check, Finding
from fxpool.errors import FxpoolError, UnsafeRuntimeDirectoryError
from fxpool.setting_values import without_secrets
from fxpool.torch_compat import versions

__all__ = ["CHECKS"]

_SOURCE = """#include <omp.h>
#include <vector>
extern "C" int fxpool_doctor(int n) {
    std::vector<int> values(n);
    #pragma omp parallel for
    for (int i = 0; i < n; ++i) values[i] = 1;
    int sum = 0;
    for (int value : values) sum += value;
    return omp_get_max_threads() > 0 ? sum : -1;
}
"""
_PATIENCE = 60.0
# Bytes; a precompiled header is 150 MB, and a graph of a large model some MB.
_ROOM, _ROOM_TMP = 1 << 30, 256 << 20
_INODES = 1000
# Bytes; the zygote with torch and its compiler takes 0.5 GB, each compile as much again and more.
_MEMORY_LEAST = 2 << 30
_FILES_LEAST, _PROCESSES_LEAST = 256, 100
_OTHER_LIMITS = {
    "address space (ulimit -v)": resource.RLIMIT_AS,
    "file size (ulimit -f)": resource.RLIMIT_FSIZE,
    "data (ulimit -d)": resource.RLIMIT_DATA,
}


def python() -> Iterator[Finding]:
    """Check Python and torch against the supported versions."""
    yield from _platform()
    try:
        version = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        yield Finding("torch", FAIL, f"not installed for {sys.executable}", "pip install torch")
        return
    host = (sys.version_info[:2], sys.platform)
    refused = versions.refusal(version, *host)
    where = importlib.util.find_spec("torch")
    place = f" in {os.path.dirname(where.origin)}" if where is not None and where.origin else ""
    if not refused:
        yield Finding("torch", OK, f"{version}{place}")
    elif versions.refusal(version, *host, untested=True) is None and _tries_untested_torch():
        yield Finding(
            "torch", WARN, f"{version}{place} is newer than any tested release", "compare results with stock Inductor's"
        )
    else:
        yield Finding("torch", FAIL, refused, 'install a version in that range, or use backend="inductor"')


def _tries_untested_torch() -> bool:
    try:
        return config.current().untested_torch
    except FxpoolError:
        return False  # `settings` reports it


def _platform() -> Iterator[Finding]:
    version = f"{platform.python_implementation()} {platform.python_version()} at {sys.executable}"
    oldest, newest = versions.PYTHONS
    supported = oldest <= sys.version_info[:2] <= newest and platform.python_implementation() == "CPython"
    remedy = "" if supported else f"use CPython {oldest[0]}.{oldest[1]} to {newest[0]}.{newest[1]}"
    yield Finding("python", OK if supported else FAIL, version, remedy)


def settings() -> Iterator[Finding]:
    """Check that the settings parse, and list the variables that are set."""
    ours = ("FXPOOL_", "TORCHINDUCTOR_", "TORCH_COMPILE_", "TORCHDYNAMO_", "TORCH_LOGS")
    shown = sorted((name, without_secrets(value)) for name, value in os.environ.items() if name.startswith(ours))
    said = ", ".join(f"{name}={value}" for name, value in shown)
    try:
        known = config.current()
    except FxpoolError as error:
        yield Finding("settings", FAIL, error.message, error.remedy or "correct or remove it")
        return
    if known.pool == "off":
        remedy = "unset FXPOOL_POOL=off, unless it is intended"
        yield Finding("settings", WARN, f"the pool is off, so each process compiles its own graphs ({said})", remedy)
        return
    yield Finding("settings", OK, said or "defaults")


def compiler() -> Iterator[Finding]:
    """Check the C++ compiler: it must make a library with OpenMP that loads."""
    name = os.environ.get("CXX", "g++")
    path = shutil.which(name)
    if path is None:
        where = "from CXX" if "CXX" in os.environ else f"PATH is {os.environ.get('PATH', '')!r}"
        yield Finding("compiler", FAIL, f"{name!r} not found ({where})", remedies.INSTALL_COMPILER)
        return
    said = _run([path, "--version"])
    version = (said.stdout.splitlines() or ["unknown version"])[0]
    with temporary.directory("doctor") as directory:
        source, made = os.path.join(directory, "a.cpp"), os.path.join(directory, "a.so")
        Path(source).write_text(_SOURCE)
        built = _run([path, "-shared", "-fPIC", "-O1", "-fopenmp", source, "-o", made])
        if built.returncode != 0:
            lines = [line for line in built.stderr.splitlines() if line.strip()]
            why = next((line for line in lines if "error" in line), (lines or ["no error message"])[-1])
            openmp = "omp" in built.stderr
            remedy = "install OpenMP for it (clang: libomp-dev)" if openmp else remedies.INSTALL_COMPILER
            yield Finding("compiler", FAIL, f"{path} ({version}) fails: {why.strip()}", remedy, built.stderr)
            return
        try:
            counted = ctypes.CDLL(made).fxpool_doctor(10)
        except OSError as error:
            remedy = (
                "set TMPDIR to a directory on a disk that is not mounted noexec, and check that libgomp is installed"
            )
            yield Finding("compiler", FAIL, f"{path}: the compiled library does not load: {error}", remedy)
            return
    if counted != 10:
        yield Finding("compiler", FAIL, f"{path}: the compiled code counts {counted} of 10", "use another compiler")
    else:
        yield Finding("compiler", OK, f"{path}, {version}; compiles, links and loads, with OpenMP")


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=_PATIENCE,
        check=False,
        env={**os.environ, "LC_ALL": "C"},
    )


def python_headers() -> Iterator[Finding]:
    """Check for Python.h, which the bindings of C++ kernels and Triton's launchers include."""
    header = Path(sysconfig.get_paths()["include"], "Python.h")
    if header.is_file():
        yield Finding("Python.h", OK, str(header))
    else:
        summary = f"{header} is missing: C++ and Triton kernels do not compile"
        yield Finding("Python.h", FAIL, summary, remedies.INSTALL_PYTHON_HEADERS)


def triton() -> Iterator[Finding]:
    """Check for Triton, which only graphs for GPUs need."""
    try:
        yield Finding("triton", OK, importlib.metadata.version("triton"))
    except importlib.metadata.PackageNotFoundError:
        yield Finding("triton", OK, "not installed: only graphs for GPUs need it")


def header() -> Iterator[Finding]:
    """Check the cache's precompiled header: ready, not built yet, or left over from failed attempts."""
    root = config.current().cache_dir / "toolchain" / "headers"
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        names = os.listdir(root)
        half, building = _headers_in_the_making(root, names)
        ready = [name for name in names if name.endswith(".json") and _is_as_recorded(root / name)]
        stale = sum(name.endswith(".json") for name in names) - len(ready)
        size = sum((root / name).stat().st_size for name in names if name.endswith(".gch"))
        if ready:
            more = "".join(f", {text}" for text in building)
            yield Finding("header", OK, f"{len(ready)} precompiled, {quantities.size(size)}{more}")
            return
        if building:
            yield Finding("header", OK, "; ".join(building))
            return
        refused = [root / name for name in names if name.endswith(".failed")]
        if refused and not half:
            said = max(refused, key=lambda path: path.stat().st_mtime).read_text(errors="replace").strip().splitlines()
            remedy = "kernels compile without it, which takes longer; the next attempt is after an hour"
            yield Finding("header", WARN, f"the compiler rejects it: {said[0] if said else 'no error message'}", remedy)
            return
        if stale or half:
            counts = [f"{stale} out of date"] * bool(stale)
            counts += [f"{half} left over from a process that was killed"] * bool(half)
            yield Finding("header", WARN, ", ".join(counts), "the next compile builds a new one")
            return
    yield Finding("header", OK, "not precompiled yet; the first compile on this host builds it")


def _headers_in_the_making(root: Path, names: list[str]) -> tuple[int, list[str]]:
    """Return the number of directories that killed compiles left, and a text for each header that is being compiled.

    The process that compiles a header holds its lock, and its id is in the directory's name.
    """
    left, building = 0, []
    for name in names:
        if name.startswith("building-"):
            digest, pid, *_ = [*name.removeprefix("building-").split("-"), ""]
            if _is_locked(root / f"{digest}.lock"):
                building.append("being compiled" + (f" by process {pid}" if pid.isdigit() else ""))
            else:
                left += 1
    return left, building


def _is_locked(path: Path) -> bool:
    try:
        with open(path) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _is_as_recorded(record: Path) -> bool:
    """Return whether the files that a header was made from are unchanged."""
    try:
        # Paths, and a digest under a name.
        read = {name: value for name, value in json.loads(record.read_bytes()).items() if os.path.isabs(name)}
        states = {path: [os.stat(path).st_size, os.stat(path).st_mtime_ns] for path in read}
    except (OSError, ValueError, TypeError, AttributeError):
        return False
    return bool(states == read)


def cache_directory() -> Iterator[Finding]:
    """Check the cache directory: private to this user, executable, with room, and in the home unless set."""
    from fxpool.codecache.store import blobs

    path, why = config.current().cache_dir, config.why_temporary()
    more = f"; it is used because the home cannot hold the cache: {why}" if why else ""
    try:
        blobs.check_directory(str(path))
    except FxpoolError as error:
        yield Finding("cache", FAIL, error.message + more, error.remedy)
        return
    found = _place("cache", path, _ROOM, "set FXPOOL_CACHE_DIR to another directory", runs=True)
    if why:
        remedy = found.remedy or "set FXPOOL_CACHE_DIR to a directory that you own and that stays"
        found = Finding("cache", WARN if found.state == OK else found.state, found.found + more, remedy)
    yield found


def cache_base() -> Iterator[Finding]:
    """Check the cache base, if there is one: safe and readable."""
    from fxpool.codecache.store.base_store import BaseStore

    path = config.current().cache_base
    if path is None:
        return
    try:
        entries = BaseStore(str(path)).sizes()["entries"]
    except FxpoolError as error:
        yield Finding("cache base", FAIL, error.message, error.remedy)
        return
    yield Finding("cache base", OK, f"{path}, {quantities.counted(entries, 'entry', 'entries')}")


def key_file() -> Iterator[Finding]:
    """Check the key file, if there is one: keys that only this user can read. A remote cache needs it."""
    from fxpool.codecache.bundle.authentication import Keyring

    known = config.current()
    if known.remote_key_file is None:
        if known.remote_cache is not None:
            remedy = "create a key with `fxpool cache key FILE`, and set FXPOOL_REMOTE_KEY_FILE=FILE"
            yield Finding("key file", FAIL, "FXPOOL_REMOTE_CACHE is set, but the remote cache needs a key file", remedy)
        return
    try:
        Keyring.load(known.remote_key_file)
    except FxpoolError as error:
        yield Finding("key file", FAIL, error.message, error.remedy)
        return
    yield Finding("key file", OK, f"{known.remote_key_file}, closed to other users")


def runtime_directory() -> Iterator[Finding]:
    """Check the directory of sockets and logs. Creates a socket, because its path is limited to 107 bytes."""
    from fxpool.pool.host import runtime_dir

    configured = config.current().runtime_dir
    remedy = "set FXPOOL_RUNTIME_DIR to another directory"
    try:
        root = runtime_dir.runtime_root(str(configured) if configured is not None else None)
        private = runtime_dir.make_private(root)
    except UnsafeRuntimeDirectoryError as error:
        yield Finding("runtime", FAIL, error.message, error.remedy)
        return
    except FxpoolError as error:
        yield Finding("runtime", FAIL, error.message, error.remedy or remedy)
        return
    try:
        path = private / runtime_dir.SOCKET
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(str(path))
    except OSError as error:
        yield Finding("runtime", FAIL, f"cannot create a socket in {private}: {error}", remedy)
        return
    finally:
        shutil.rmtree(private, ignore_errors=True)
    place = _place("runtime", root, 1 << 20, remedy)
    length = len(os.fsencode(path))
    yield Finding(place.check, place.state, f"{place.found}; socket paths take {length} of 107 bytes", place.remedy)


def temporary_directory() -> Iterator[Finding]:
    """Check the directory where compilers write. Kernels of graphs that are not cached are loaded from it."""
    remedy = "set TMPDIR to another directory"
    try:
        path = Path(tempfile.gettempdir())
        with tempfile.TemporaryFile(dir=path) as file:
            file.write(b"x")
    except OSError as error:
        yield Finding("tmp", FAIL, f"cannot write to a temporary directory: {error}", remedy)
        return
    yield _place("tmp", path, _ROOM_TMP, remedy, runs=True)


def _place(name: str, path: Path, room: int, remedy: str, *, runs: bool = False) -> Finding:
    """Check a directory, or its first existing parent: owner, access, `room` (bytes); with `runs`, noexec."""
    there = next(Path(above) for above in directories.ancestors(str(path)) if os.path.lexists(above))
    try:
        status = os.stat(there)
        disk = os.statvfs(there)
    except OSError as error:
        return Finding(name, FAIL, f"{there}: {error.strerror}", remedy)
    owner, mode = directories.user_name(status.st_uid), f"{stat.S_IMODE(status.st_mode):04o}"
    what = f"{path}" if there == path else f"{path} (to be created in {there})"
    real = os.path.realpath(there)
    what += f" -> {real}" if real != str(there) else ""
    free = disk.f_bavail * disk.f_frsize
    facts = f"{what}, owner {owner}, mode {mode}, {quantities.size(free)} free"
    if not stat.S_ISDIR(status.st_mode):
        return Finding(name, FAIL, f"{there} is not a directory", remedy)
    if disk.f_flag & os.ST_RDONLY:
        return Finding(name, FAIL, f"{facts}; its disk is read-only", remedy)
    if not os.access(there, os.W_OK | os.X_OK):
        return Finding(name, FAIL, f"{facts}; not writable by {directories.user_name(os.geteuid())}", remedy)
    if runs and disk.f_flag & os.ST_NOEXEC:
        return Finding(name, FAIL, f"{facts}; its disk is mounted noexec, so kernels cannot be loaded from it", remedy)
    if free < room:
        return Finding(name, WARN, f"{facts}: less than {quantities.size(room)}", f"make room, or {remedy}")
    if disk.f_files and disk.f_favail < _INODES:
        return Finding(
            name,
            WARN,
            f"{facts}; only {quantities.counted(disk.f_favail, 'more file')} can be created",
            f"make room, or {remedy}",
        )
    return Finding(name, OK, facts)


def processors() -> Iterator[Finding]:
    """Check the number of workers, and the limit that sets it."""
    from fxpool.pool.host import limits

    count, rule = limits.default_workers()
    wanted = config.current().workers
    workers = quantities.counted(wanted or count, "worker")
    has = quantities.counted(os.cpu_count() or 1, "CPU")
    yield Finding("CPUs", OK, f"{workers} ({'FXPOOL_WORKERS' if wanted else rule}); the host has {has}")


def memory() -> Iterator[Finding]:
    """Check the memory limit, its use, and the limit of a job."""
    from fxpool.pool.host import memory as looked

    host = looked.Host.look()
    total, rule = host.total()
    used, of = host.used()
    known = config.current()
    job = known.job_memory or looked.default_limit(host)[0]
    in_use = quantities.percent(used) + (f" of {of}" if of != rule else "")
    usage = f"{quantities.size(total)} ({rule}), {in_use} in use; a job may use {quantities.size(job)}"
    if used > known.memory_high_watermark:
        remedy = "free memory, or raise FXPOOL_MEMORY_HIGH_WATERMARK"
        mark = quantities.percent(known.memory_high_watermark)
        yield Finding("memory", WARN, f"{usage}; above {mark} one job runs at a time", remedy)
    elif total < _MEMORY_LEAST:
        remedy = f"allow at least {quantities.size(_MEMORY_LEAST)}, or set FXPOOL_POOL=off"
        yield Finding("memory", WARN, f"{usage}: workers may be killed", remedy)
    else:
        yield Finding("memory", OK, usage)


def limits_of_processes() -> Iterator[Finding]:
    """Check the limits of open files and processes, and other limits of `ulimit`."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if 0 <= files < _FILES_LEAST:
        remedy = f"ulimit -n {max(1024, _FILES_LEAST)}"
        yield Finding("open files", WARN, f"{_at_most(files)}: a busy server needs more", remedy)
    else:
        yield Finding("open files", OK, _at_most(files))
    processes = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    group = _pids()
    counts = _at_most(processes) + (f", {group[0]:,} of {group[1]:,} in its cgroup" if group else "")
    short = 0 <= processes < _PROCESSES_LEAST or (group is not None and group[1] - group[0] < _PROCESSES_LEAST)
    remedy = "raise `ulimit -u`, or pids.max of the cgroup" if short else ""
    yield Finding("processes", WARN if short else OK, counts, remedy)
    for name, number in _OTHER_LIMITS.items():
        allowed = resource.getrlimit(number)[0]
        if allowed != resource.RLIM_INFINITY:
            remedy = "raise the limit if compiles fail"
            yield Finding("ulimit", WARN, f"{name} is limited to {quantities.size(allowed)}", remedy)


def _at_most(limit: int) -> str:
    return "unlimited" if limit == resource.RLIM_INFINITY else f"at most {limit:,}"


def _pids() -> tuple[int, int] | None:
    """Return (current, allowed) processes and threads of the cgroup with the least room left; None without a limit."""
    groups = []
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            number, controllers, path = [*line.split(":", 2), "", ""][:3]
            roots = ["/sys/fs/cgroup"] if number == "0" else ["/sys/fs/cgroup/pids"] if controllers == "pids" else []
            for root in roots:
                for group in (Path(root + path), Path(root)):
                    with contextlib.suppress(OSError, ValueError):
                        allowed = int((group / "pids.max").read_text())  # "max" does not parse
                        groups.append((int((group / "pids.current").read_text()), allowed))
    return min(groups, key=lambda pair: pair[1] - pair[0], default=None)


CHECKS: list[Check] = [
    ("python", python),
    ("settings", settings),
    ("compiler", compiler),
    ("Python.h", python_headers),
    ("triton", triton),
    ("cache", cache_directory),
    ("cache base", cache_base),
    ("key file", key_file),
    ("farm", farm),
    ("runtime", runtime_directory),
    ("tmp", temporary_directory),
    ("header", header),
    ("CPUs", processors),
    ("memory", memory),
    ("limits", limits_of_processes),
]
