"""This process's share of fxpool: its pool of workers and its stores, made when first needed.

One pool per process serves every graph; it starts on the first miss and ends with the process. A
store is a directory; one that may not be used (owned by somebody else, writable by others) is
refused once, counted and warned of, and compilation goes on without a cache.

What a pool needs is imported when there is to be one: a process whose graphs are in the store has none.
"""

from __future__ import annotations

import contextlib
import glob
import importlib.util
import logging
import os
import site
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fxpool import config, descriptors, forks, notices, statistics
from fxpool.codecache import answers
from fxpool.codecache.store import LocalStore
from fxpool.errors import FxpoolError, PoolError, PoolUnavailableError, ProtocolError, StoreError

if TYPE_CHECKING:
    from fxpool.pool import PoolClient

log = logging.getLogger("fxpool.lowering")

_PRELOAD = ("fxpool.lowering.worker.jobs:import_compiler",)
# What a zygote does when nobody asks for anything, the most useful first.
_IDLE = ",".join(
    f"fxpool.lowering.worker.warmup:{name}" for name in ("warm", "rehearse_devices", "rehearse", "rehearse_training")
)
# What server and zygote need to find their interpreter, libraries and temporary files. Whatever a
# job needs beyond that travels with the job.
_ENVIRONMENT = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "LC_CTYPE", "TMPDIR", "LD_LIBRARY_PATH",
                "PYTHONHOME", "VIRTUAL_ENV", "SSL_CERT_FILE", "LD_PRELOAD", "PYTHONDONTWRITEBYTECODE",
                "PYTHONPYCACHEPREFIX")  # fmt: skip

# Where devices are named. They are hidden while the zygote imports, and from jobs that can do without.
DEVICES = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
# What a server has of the process that started it, and another program may not have set: compilers are found by it.
_OF_THE_STARTER = ("PATH", "HOME")

_lock = forks.rlock(__name__, "_lock")
_pool: PoolClient | None = None
_pool_settings: tuple[Any, ...] = ()
_stores: dict[str, LocalStore | None] = {}
_bases: dict[str, LocalStore | None] = {}
_prepared: set[str] = set()
_ahead = False
_asked_ahead = False  # each thread that looks the backend up asks


def pool() -> PoolClient:
    """The pool of this process under the settings in force (other settings, another pool)."""
    global _pool, _pool_settings, _ahead
    _ahead = False  # it is wanted
    settings = config.current()
    wanted = (
        os.getpid(),
        settings.pool,
        settings.workers,
        settings.runtime_dir,
        settings.idle_timeout,
        settings.memory_mark,
    )
    with _lock:
        if _pool is None or _pool_settings != wanted:
            # A background thread may be the first to come here, and the program may fork meanwhile.
            with forks.held_off():
                from fxpool.lowering.cpp import host_facts  # noqa: F401
                from fxpool.pool import PoolClient, PoolConfig, identity

            shared = settings.pool == "host"
            environment = _environment()
            if _pool is not None and _pool_settings[0] == os.getpid():
                _pool.close()
            _pool = PoolClient(
                PoolConfig(
                    workers=settings.workers,
                    preload=_PRELOAD,
                    idle=_IDLE,
                    environment=environment,
                    # A module of one program's must not be in the way of another's.
                    sys_path=() if shared else tuple(path for path in sys.path if path),
                    host=identity.digest(environment, _PRELOAD, kept=_kept(settings)) if shared else "",
                    idle_timeout=settings.idle_timeout,
                    # Each job brings its own; a process that starts the host's server sets none for the others.
                    job_timeout=PoolConfig.job_timeout if shared else settings.job_timeout,
                    job_memory=None if shared else settings.job_memory,
                    memory_mark=settings.memory_mark,
                    runtime_dir=str(settings.runtime_dir) if settings.runtime_dir is not None else None,
                )
            )
            _pool_settings = wanted
        return _pool


def bounds() -> dict[str, Any]:
    """What a job of this process may take, as arguments of `PoolClient.submit`."""
    settings = config.current()
    return {"timeout": settings.job_timeout, "memory": settings.job_memory}


def limits() -> dict[str, float]:
    """What a job of this process may take where no other process waits for it, too: seconds and bytes."""
    from fxpool.pool import memory

    settings = config.current()
    found = settings.job_memory or memory.default_limit(memory.Host.look())[0]
    return {"timeout": settings.job_timeout, "memory": float(found)}


def start_ahead(meanwhile: Callable[[str | None], None]) -> None:
    """Start the pool before the first graph comes, if the first graph can only be a miss.

    Called when the backend is asked for by its name: importing Dynamo and tracing a model take as long as a zygote
    takes to be ready. Says nothing of what is wrong; the first graph does. Where nobody waits for workers
    (``async+``) and there is no core to spare, they are started when the first call is over. `meanwhile` is called
    before, with the toolchain directory. Does something once per process.
    """
    global _ahead, _asked_ahead
    with _lock:
        if _asked_ahead:
            return
        _asked_ahead = True
    try:
        settings = config.current()
        if settings.pool == "off" or not settings.mode.endswith("subprocess"):
            return
        if "async+" in settings.mode and len(os.sched_getaffinity(0)) <= 2:
            return
        directory = store()
        if all(one.is_empty() for one in stores()):
            meanwhile(tools_directory(directory))
            with _lock:
                first = _pool is None  # another thread's may be wanted already
                started = pool()
                _ahead = first
            started.start()
    except FxpoolError as error:
        log.debug("no pool ahead of the first graph: %s", error)


def end_start_ahead() -> None:
    """End a pool that was started ahead and not wanted since: graphs are not for workers."""
    global _ahead
    with _lock:
        if _ahead:
            _ahead = False
            close()


def _environment() -> dict[str, str]:
    found = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
    # One thread while it is only importing: forking needs that.
    found.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")
    # A GPU that is looked for is found through NVML (a CUDA call would mark the process as one that
    # can't be forked), and is not seen while the zygote imports: NVML's first call starts a thread.
    found["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    found.update(dict.fromkeys(DEVICES, ""))
    # Where Triton is installed, importing Inductor starts a compile pool of its own, and threads with it.
    found.update(TORCH_WARM_POOL="0", TORCHINDUCTOR_COMPILE_THREADS="1")
    path = _import_path_of_libraries()
    if path:
        found["PYTHONPATH"] = os.pathsep.join(path)
    return found


def _import_path_of_libraries() -> list[str]:
    """Directories a fresh interpreter must be told of to find what this one found, in this one's order.

    PYTHONPATH's, and those that fxpool, its dependencies and what compiles were imported from, unless they are the
    interpreter's own. Not the program's directory: a file there could shadow a module of Python's.
    """
    sites = [*site.getsitepackages(), site.getusersitepackages()]
    own = {os.path.realpath(p) for p in (*sites, *_named_by(sites), os.path.dirname(os.__file__))}
    here = working_directory()

    def known(paths: list[str]) -> list[str]:  # relative ones are of the working directory, which may be gone
        return [p for p in paths if os.path.isabs(p) or (p and here is not None)]

    order = list(map(os.path.realpath, known(sys.path)))
    wanted = known(os.environ.get("PYTHONPATH", "").split(os.pathsep))
    for module in ("fxpool", "torch", "triton", "sympy", "msgspec", "psutil", "tblib", "zstandard"):
        try:
            spec = importlib.util.find_spec(module)
        except ValueError:  # imported, by something that makes modules
            continue
        if spec is not None and spec.origin is not None:
            # Where it was found, not where it lies: an overlay may be made of links.
            place = os.path.dirname(os.path.dirname(os.path.abspath(spec.origin)))
            if os.path.realpath(place) in order:
                wanted.append(place)

    def rank(place: str) -> int:
        real = os.path.realpath(place)
        return order.index(real) if real in order else len(order)

    found = [p for p in dict.fromkeys(map(os.path.abspath, wanted)) if os.path.realpath(p) not in own]
    return sorted(found, key=rank)


def _named_by(sites: list[str]) -> list[str]:
    """Directories that every interpreter puts behind its own, because a ``.pth`` file there says so.

    In front of its own they would change which of two modules of one name is found.
    """
    found = []
    for place in sites:
        for path in sorted(glob.glob(os.path.join(glob.escape(place), "*.pth"))):
            with contextlib.suppress(OSError), open(path, encoding="utf-8", errors="surrogateescape") as file:
                lines = [line.strip() for line in file]
                found += [os.path.join(place, line) for line in lines if line and not line.startswith(("#", "import"))]
    return found


def _kept(settings: config.Settings) -> answers.Kept:
    """What this process may read of what was found out on this host before."""
    return answers.Kept(tools_directory(_stores.get(str(settings.cache_dir))))


def store() -> LocalStore | None:
    """The store under the cache directory in force, or None where it may not be used."""
    root = str(config.current().cache_dir)
    with _lock:
        if root not in _stores:
            descriptors.keep_standard()  # what is printed must not get into an entry
            try:
                _check_name(root)
                _stores[root] = LocalStore(root)
            except (StoreError, OSError) as error:
                _stores[root] = None
                statistics.count("bypasses", "cache_directory_refused")
                notices.switched_off("cache_directory_refused", f"compiles without a cache: {error}", about=root)
        elif _stores[root] is None:
            statistics.count("bypasses", "cache_directory_refused")
        return _stores[root]


def base() -> LocalStore | None:
    """The store that was filled before, of the setting `cache_base`; None without, and where it may not be used."""
    place = config.current().cache_base
    if place is None:
        return None
    root = str(place)
    with _lock:
        if root not in _bases:
            from fxpool.codecache.base_store import BaseStore

            try:
                _bases[root] = BaseStore(root)
            except (StoreError, OSError) as error:
                _bases[root] = None
                notices.switched_off("cache_base_refused", f"does without its cache base: {error}", about=root)
        return _bases[root]


def stores(*, cache: bool = True) -> list[LocalStore]:
    """Where to look for a graph, in that order: what was filled before holds what most processes need."""
    if not cache:
        return []
    own, below = store(), base()
    if own is not None and below is not None and own.root == below.root:
        below = None
    return [one for one in (below, own) if one is not None]


def _check_name(root: str) -> None:
    """Raises StoreError for a directory whose name can't be told to a worker, or stand in a record."""
    if not _is_text(root):
        raise StoreError(
            f"the name of the cache directory is no UTF-8: {os.fsencode(root)!r}",
            remedy="set FXPOOL_CACHE_DIR to a directory whose name is",
        )


def say_not_kept(why: object) -> None:
    """Say once that what is compiled can't be kept, and why (with the remedy, where there is one)."""
    notices.switched_off(
        "cache_not_written",
        f"can't keep what it compiles in {config.current().cache_dir}; each process compiles it again: {why}",
    )


def say_compiler_changed() -> None:
    """Say once that what another compiler compiled than the one of the key is not kept."""
    notices.switched_off(
        "compiler_changed",
        "did not keep what it compiled: the C++ compiler, or a file that a script in its place names, was changed "
        "while a graph was compiled. If that is so every time, such a script writes to a file that it names in another "
        "way than by > and >>: set CXX to the compiler itself",
    )


def counted_as(error: PoolError) -> str:
    """The name under which doing without the pool is counted."""
    return error.counted if isinstance(error, PoolUnavailableError) else f"pool:{type(error).__name__}"


def say_without_pool(error: PoolError, instead: str = "graphs are compiled in this process") -> None:
    """Say once that the pool can't be used, why, and what happens `instead`. A switch that is off says nothing."""
    if isinstance(error, (PoolUnavailableError, ProtocolError)) and config.current().pool != "off":
        more = "\n  `fxpool status` names the server's log; FXPOOL_POOL=off does without a pool"
        more = "" if "FXPOOL_" in str(error) else more
        notices.switched_off(counted_as(error), f"does without its workers, {instead}: {error}{more}")


def tools_directory(found: LocalStore | None) -> str | None:
    """Where facts about this host's tool chain and its precompiled header are kept."""
    return os.path.join(found.root, "toolchain") if found is not None else None


def first_of_host(tools: str) -> bool:
    """Whether to have this host's tool chain asked under `tools`: once per process, where a core can be spared."""
    with _lock:
        if tools in _prepared:
            return False
        _prepared.add(tools)
    from fxpool.lowering.cpp import host_facts

    return host_facts.worth_preparing()


def close() -> None:
    """End this process's pool now. The next miss starts another."""
    global _pool
    with _lock:
        if _pool is not None and _pool_settings[0] == os.getpid():
            _pool.close()
        _pool = None


def forget_stores() -> None:
    """Look at cache directories anew (their rights may have been mended)."""
    with _lock:
        _stores.clear()
        _bases.clear()


def job_environment(wanted: dict[str, str]) -> dict[str, str | None]:
    """Variables a job's worker gets besides its zygote's; None takes one away.

    One whose value is no UTF-8 can't be sent: the worker has its server's, which the host's first process started.
    """
    sent = {name: value for name, value in wanted.items() if _is_text(value)}
    return {**dict.fromkeys((*DEVICES, *_OF_THE_STARTER)), **sent}


def import_path() -> tuple[str, ...]:
    """Where this program finds its modules; an empty entry is its working directory."""
    here = working_directory()
    paths = (path or here for path in sys.path)
    return tuple(path for path in paths if path and _is_text(path))


def working_directory() -> str | None:
    """None for one that a worker can't be told of, or that was removed under us."""
    try:
        found = os.getcwd()
    except OSError:
        return None
    return found if _is_text(found) else None


def _is_text(path: str) -> bool:
    """Whether a path or a variable's value can be sent to a worker: not every one is UTF-8."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True
