"""The state of fxpool in this process: its pool client, its stores, and the per-process state of other modules.

All state that lives as long as the process belongs to the single `runtime`, which has the only fork hook and the only
`reset` for tests. A module with its own per-process state (compiles in the background, graphs on trial) gets it from
`Runtime.part`.

One pool client per process serves every graph; it connects on the first miss and closes with the process. A store is a
directory; one that may not be used (owned by another user, writable by others) is refused once, counted and warned of,
and compilation continues without a cache.

The pool's modules are imported when the pool is first needed: a process with only hits does not load them.
"""

from __future__ import annotations

import collections
import contextlib
import os
import re
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from fxpool import config, counters, forks, notices, standard_streams
from fxpool.codecache.key import probe_cache
from fxpool.codecache.store.cache_limits import Bounds
from fxpool.codecache.store.store import FRESH, LocalStore
from fxpool.errors import FxpoolError, StoreError
from fxpool.lowering.core import pool_environment, switched_off

if TYPE_CHECKING:
    from fxpool.pool import PoolClient

__all__ = ["Part", "Runtime", "runtime"]

log = notices.logger(__name__)

# A process asks again for its first graphs: when one starts without facts of the host, and when one had no header.
_ASKS_TO_PREPARE = 4
_PRELOAD = ("fxpool.lowering.worker.jobs:import_compiler",)
_EVICT_JOB = "fxpool.lowering.worker.jobs:evict_job"
# Tasks of an idle zygote, the most useful first.
_IDLE = ",".join(
    f"fxpool.lowering.worker.warmup:{name}"
    # Compiles import more of torch and register patterns, so what they added is examined at the end.
    for name in ("warm", "examine_torch", "warm_up_devices", "warm_up", "warm_up_training", "examine_torch")
)


class Part:
    """The per-process state of one module. Created without arguments on first use."""

    def after_fork_in_child(self) -> None:
        """Drop the parent's threads and jobs; by default the child has its parent's state."""

    def reset(self) -> None:
        """Forget everything, as in a new process."""
        self.__init__()  # type: ignore[misc]  # parts take no arguments


P = TypeVar("P", bound=Part)


class Runtime:
    """The state of this process. Thread-safe; the only instance is `runtime`."""

    def __init__(self) -> None:
        self._lock = forks.rlock(self, "_lock")
        self._pool: PoolClient | None = None
        self._pool_settings: tuple[Any, ...] = ()
        self._stores: dict[str, LocalStore | None] = {}
        self._bases: dict[str, LocalStore | None] = {}
        self._prepared: collections.Counter[str] = collections.Counter()
        self._base_left = False  # the program has cleared its caches
        self._parts: dict[type, Any] = {}
        self._ahead = False  # the pool was started ahead and has not been used
        self._asked_ahead = False  # `start_ahead` was called: each thread that looks the backend up calls it

    # ------------------------------------------------------------ the pool

    def pool(self) -> PoolClient:
        """Return the pool of this process under the current settings (a change of settings makes a new pool)."""
        self._ahead = False  # it is used
        settings = config.current()
        wanted = (
            os.getpid(),
            settings.pool,
            settings.workers,
            settings.runtime_dir,
            settings.idle_timeout,
            settings.memory_high_watermark,
        )
        with self._lock:
            if self._pool is None or self._pool_settings != wanted:
                if self._pool is not None and self._pool_settings[0] == os.getpid():
                    self._pool.close()
                self._pool = self._new_pool(settings)
                self._pool_settings = wanted
            return self._pool

    def _new_pool(self, settings: config.Settings) -> PoolClient:
        # A background thread may be the first to get here, and the program may fork at the same time.
        with forks.held_off():
            # Only a miss needs a pool: a hit saves 0.05 s.
            from fxpool.pool import PoolClient, PoolConfig
            from fxpool.pool.client import identity

        shared = settings.pool == "host"
        environment = pool_environment.zygote_environment()
        known = probe_cache.FactCache(self.toolchain_directory(self._stores.get(str(settings.cache_dir))))
        return PoolClient(
            PoolConfig(
                workers=settings.workers,
                preload=_PRELOAD,
                idle=_IDLE,
                environment=environment,
                # A program's modules must not shadow those of another program.
                sys_path=() if shared else tuple(path for path in sys.path if path),
                host=identity.digest(environment, _PRELOAD, cache=known) if shared else "",
                idle_timeout=settings.idle_timeout,
                farm=settings.farm or "",
                # Each job brings its own limits; the process that starts the host's server sets none for the others.
                job_timeout=PoolConfig().job_timeout if shared else settings.job_timeout,
                job_memory=None if shared else settings.job_memory,
                memory_high_watermark=settings.memory_high_watermark,
                runtime_dir=str(settings.runtime_dir) if settings.runtime_dir is not None else None,
            )
        )

    def limits(self, settings: config.Settings) -> dict[str, float]:
        """Return the limits of a job that no other process waits for: ``timeout`` in seconds, ``memory`` in bytes."""
        from fxpool.pool.host import memory  # 0.02 s with psutil, and a hit needs no limits

        bytes_of_memory = settings.job_memory or memory.default_limit(memory.Host.look())[0]
        return {"timeout": settings.job_timeout, "memory": float(bytes_of_memory)}

    def start_ahead(self, prepare: Callable[[str | None], None]) -> None:
        """Start the pool before the first graph, if the first graph can only be a miss.

        Called when the backend is looked up by name: importing Dynamo and tracing a model take as long as a zygote
        needs to get ready. Reports no errors; the first graph does. If the program does not wait for workers
        (``async+``) and no core is free, they are started after the first call instead. Before that it calls
        `prepare` with the toolchain directory. Only the first call in a process has an effect.
        """
        with self._lock:
            if self._asked_ahead:
                return
            self._asked_ahead = True
        try:
            settings = config.current()
            if settings.pool == "off" or not settings.mode.endswith("subprocess"):
                return
            if "async+" in settings.mode and len(os.sched_getaffinity(0)) <= 2:
                return
            if all(store.is_empty() for store in self.stores(settings)):
                prepare(self.toolchain_directory(self.store(settings), settings))
                with self._lock:
                    first = self._pool is None  # another thread's pool may be in use already
                    started = self.pool()
                    self._ahead = first
                started.start()
        except FxpoolError as error:
            log.debug("could not start the pool ahead of the first graph: %s", error)

    def end_start_ahead(self) -> None:
        """End a pool that was started ahead and not used since, because graphs are not compiled by workers."""
        with self._lock:
            if self._ahead:
                self._ahead = False
                self.close()

    def may_ask_to_prepare(self, toolchain_dir: str) -> bool:
        """Return whether to ask (again) that this host's tool chain be probed: True a few times per directory."""
        with self._lock:
            self._prepared[toolchain_dir] += 1
            return self._prepared[toolchain_dir] <= _ASKS_TO_PREPARE

    def _evict(self, store: LocalStore) -> None:
        """Have the pool evict from a store while it has little to do. Without a pool, do so in this thread.

        Each publication of any process asks again until it is done: that is how the pool learns that the job is worth
        a busy core.
        """
        with self._lock:
            pool = self._pool if self._pool is not None and self._pool_settings[0] == os.getpid() else None
        if pool is None:
            store.evict()
            return
        spec = msgspec.structs.replace(
            pool_environment.job_spec(f"evicting from {store.root}", {}),
            retries=0, dedup_key=f"evict {store.root}", best_effort=True,
        )  # fmt: skip
        try:
            pool.submit(_EVICT_JOB, msgspec.msgpack.encode((store.root, store.bounds)), spec)
        except FxpoolError as error:
            log.info("evicting in this process: %s", error)
            store.evict()

    def close(self) -> None:
        """End this process's pool now. The next miss starts a new pool."""
        with self._lock:
            if self._pool is not None and self._pool_settings[0] == os.getpid():
                self._pool.close()
            self._pool = None

    def let_go(self) -> list[str]:
        """Close the pool, and forget what the process knows about directories and its machine.

        The next graph looks at them again. Returns the cache directories that were in use.
        """
        with self._lock:
            self.close()
            used = [store.root for store in (*self._stores.values(), *self._bases.values()) if store is not None]
            self._prepared.clear()
            self.forget_stores()
        if (system_facts := sys.modules.get("fxpool.codecache.key.system_facts")) is not None:
            system_facts.forget_machine()
        return used

    # ------------------------------------------------------------ stores

    def store(self, settings: config.Settings | None = None) -> LocalStore | None:
        """Return the store in the cache directory, or None if it may not be used; by default, of current settings."""
        settings = settings or config.current()
        store = self._store_at(_fresh_directory() or str(settings.cache_dir))
        if store is not None:
            store.bounds = Bounds(settings.cache_max_bytes, settings.cache_max_files, settings.cache_min_seconds)
        return store

    def _store_at(self, root: str) -> LocalStore | None:
        with self._lock:
            if root not in self._stores:
                standard_streams.keep_standard()  # printed output must not end up in an entry
                try:
                    _check_name(root)
                    self._stores[root] = LocalStore(root, on_full=self._evict)
                except (StoreError, OSError) as error:
                    self._stores[root] = None
                    counters.count("bypasses", "cache_directory_refused")
                    why = self._why_temporary(root)
                    more = f"\n  It was to replace the cache in the home: {why}" if why else ""
                    said = f"running without a cache: {error}{more}"
                    notices.switched_off("cache_directory_refused", said, about=root)
                else:
                    if why := self._why_temporary(root):
                        switched_off.say_temporary(root, why)
            elif self._stores[root] is None:
                counters.count("bypasses", "cache_directory_refused")
            return self._stores[root]

    @staticmethod
    def _why_temporary(root: str) -> str:
        return config.why_temporary() if root == str(config.current().cache_dir) else ""

    def base(self, settings: config.Settings) -> LocalStore | None:
        """Return the prefilled store of the setting `cache_base`; None if it is unset or may not be used."""
        if settings.cache_base is None or self._base_left or _fresh_directory() is not None:
            return None
        root = str(settings.cache_base)
        with self._lock:
            if root not in self._bases:
                from fxpool.codecache.store.base_store import BaseStore  # most processes have no cache base

                try:
                    self._bases[root] = BaseStore(root)
                except (StoreError, OSError) as error:
                    self._bases[root] = None
                    notices.switched_off("cache_base_refused", f"running without the cache base: {error}", about=root)
            return self._bases[root]

    def leave_base(self) -> None:
        """Stop serving from the cache base in this process."""
        self._base_left = True

    def stores(self, settings: config.Settings | None = None) -> list[LocalStore]:
        """Return the stores to look into, in order: the cache base first, as it has what most processes need."""
        settings = settings or config.current()
        own, below = self.store(settings), self.base(settings)
        if own is not None and below is not None and own.root == below.root:
            below = None
        return [store for store in (below, own) if store is not None]

    def toolchain_directory(self, store: LocalStore | None, settings: config.Settings | None = None) -> str | None:
        """Return the directory for facts about this host's tool chain and for its precompiled header.

        They remain valid within torch's ``fresh_cache()``.
        """
        if store is not None and store.root == _fresh_directory():
            store = self._store_at(str((settings or config.current()).cache_dir)) or store
        return os.path.join(store.root, "toolchain") if store is not None else None

    def forget_stores(self) -> None:
        """Check cache directories again on the next use (their permissions may have been fixed)."""
        with self._lock:
            self._stores.clear()
            self._bases.clear()

    def freeze_objects(self) -> None:
        """Keep the program's objects out of full garbage collections during compiles, unless a setting says no."""
        from fxpool.torch_compat.dynamo import frozen_objects  # imports torch, which `fxpool` alone does not

        frozen_objects.freeze_while_compiling(_freezes_objects)

    # ------------------------------------------------------------ all parts

    def part(self, kind: type[P]) -> P:
        """Return the process's only instance of a class, created on first use."""
        instance = self._parts.get(kind)
        if instance is None:
            with self._lock:
                instance = self._parts.setdefault(kind, self._parts.get(kind) or kind())
        return instance

    def reset(self) -> None:
        """Forget everything but the pool: settings, counters, stores, and the state of parts. For tests."""
        config.reset()
        counters.reset()
        with self._lock:
            self._prepared.clear()
            self._base_left = self._asked_ahead = False
            self.forget_stores()
            for part in self._parts.values():
                part.reset()

    def after_fork_in_child(self) -> None:
        """Reset the parts in a forked child. It gets a new pool on first use; see `pool`."""
        for part in self._parts.values():
            part.after_fork_in_child()


def _freezes_objects() -> bool:
    with contextlib.suppress(FxpoolError):  # the graph reports it
        return config.current().freeze_objects
    return False


# The names that `tempfile.mkdtemp` gives to directories.
_TEMPORARY = re.compile(r"tmp[a-z0-9_]{8}")


def _fresh_directory() -> str | None:
    """Return the temporary cache directory within torch's ``fresh_cache()``, below torch's own; None outside.

    It is recognized by the two variables that ``fresh_cache()`` sets: a temporary directory for Inductor, and Triton's
    directly below it. The function is not patched, as a program may have imported it by name before.
    """
    directory = os.environ.get("TORCHINDUCTOR_CACHE_DIR", "")
    if not _TEMPORARY.fullmatch(os.path.basename(directory)):
        return None
    if os.environ.get("TRITON_CACHE_DIR") != os.path.join(directory, "triton"):
        return None
    return os.path.join(directory, FRESH)


def _check_name(root: str) -> None:
    """Check that a directory's name can be sent to a worker and written to a record. Raises StoreError."""
    if not pool_environment.is_text(root):
        raise StoreError(
            f"the name of the cache directory is not UTF-8: {os.fsencode(root)!r}",
            remedy="set FXPOOL_CACHE_DIR to a directory with a UTF-8 name",
        )


#: The state of this process.
runtime = Runtime()
os.register_at_fork(after_in_child=runtime.after_fork_in_child)
