"""The remote cache as this process uses it: its address, downloads on a local miss, uploads of published entries.

The address is the setting `remote_cache`. If that is unset and the program has enabled Inductor's remote cache, the
address comes from Inductor's variables for Redis. Without a key file nothing is downloaded or uploaded, because entries
that come over a network are code. A wrong setting is warned of once, and the program continues without the remote.

    local miss ──▶ `fetch` ──▶ level of the remote ──▶ written into the local store, and served from there
    publishing ──▶ `offer` ──▶ uploads in the background
    compiling  ──▶ `leases` ─▶ one machine compiles a graph, the others wait for it

The remote's client is imported on the first local miss, if a remote is configured.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from fxpool import config, counters, forks, notices
from fxpool.codecache.store.store import FRESH, LocalStore
from fxpool.errors import CREATE_KEY, ConfigurationError, StoreError
from fxpool.lowering.artifact import side_effects
from fxpool.lowering.core import switched_off
from fxpool.lowering.core.runtime import Part, runtime
from fxpool.torch_compat.state import configs

if TYPE_CHECKING:
    from fxpool.codecache.remote.leases import Leases
    from fxpool.codecache.remote.remote_level import RemoteLevel
    from fxpool.codecache.store.entry import Entry
    from fxpool.lowering.request.captured_graph import Captured

__all__ = ["address", "disconnect", "fetch", "fetch_fitting", "flush", "inductor_address", "leases", "offer"]


class _Shared(Part):
    """The remote level under the settings in force."""

    def __init__(self) -> None:
        self._lock = forks.lock(self, "_lock")
        self._level: RemoteLevel | None = None
        self._settings: tuple[Any, ...] = ()
        self._refusal: ConfigurationError | None = None

    def level(self, address: str, settings: config.Settings) -> RemoteLevel | None:
        """Return the level for an address; None, with a warning, if the settings rule it out."""
        key_file = settings.remote_key_file
        wanted = (address, key_file, _version(key_file), settings.remote_use, settings.remote_timeout)
        with self._lock:
            if wanted != self._settings:
                before, self._level, self._refusal, self._settings = self._level, None, None, wanted
                if before is not None:
                    before.close()
                try:
                    self._level = _new_level(address, settings)
                except ConfigurationError as error:
                    self._refusal = error
        if self._refusal is not None:
            notices.switched_off("remote_refused", f"running without the remote cache: {self._refusal}", about=address)
        return self._level

    def present(self) -> RemoteLevel | None:
        return self._level

    def after_fork_in_child(self) -> None:
        self._level, self._settings = None, ()  # its connections and its thread are the parent's

    def disconnect(self) -> int:
        """Close the level, until the next use; return how many uploads are left."""
        with self._lock:
            level, self._level, self._settings = self._level, None, ()
        return level.close() if level is not None else 0

    def reset(self) -> None:
        self.disconnect()


def _new_level(address: str, settings: config.Settings) -> RemoteLevel:
    """Return a level for an address. Raises ConfigurationError: the settings rule it out."""
    # Only needed if there is a remote.
    from fxpool.codecache import remote
    from fxpool.codecache.bundle.authentication import Keyring
    from fxpool.codecache.remote.remote_level import RemoteLevel

    if settings.remote_key_file is None:
        raise ConfigurationError(
            f"the remote cache {remote.shown(address)} cannot be trusted without a key",
            remedy=CREATE_KEY,
        )
    return RemoteLevel(
        lambda seconds: remote.connect(address, seconds),
        Keyring.load(settings.remote_key_file),
        delay=settings.remote_timeout,
        read_only=settings.remote_use == "read-only",
    )


def _version(path: Any) -> tuple[int, ...]:
    """Return a value that changes when the file changes."""
    try:
        status = os.stat(path)
    except (OSError, TypeError):
        return ()
    return status.st_mtime_ns, status.st_size, status.st_mode, status.st_uid


def address(settings: config.Settings, *, say: bool = True) -> str | None:
    """Return the address of the remote cache, or None. Warns if the program wants a remote but gives no address."""
    switch = configs.remote_cache_wanted()
    if settings.remote_cache is not None or switch is None:
        return settings.remote_cache
    of_inductor = inductor_address()
    if of_inductor is None and say:
        switched_off.say_without_remote(switch)
    return of_inductor


def inductor_address() -> str | None:
    """Return the address in Inductor's variables for Redis; None if they are unset."""
    variables = os.environ
    if url := variables.get("TORCHINDUCTOR_REDIS_URL"):
        return url
    host, port = variables.get("TORCHINDUCTOR_REDIS_HOST"), variables.get("TORCHINDUCTOR_REDIS_PORT")
    if not host and not port:
        return None
    host = host or "localhost"
    return f"redis://{f'[{host}]' if ':' in host else host}:{port or 6379}"


def fetch(captured: Captured, store: LocalStore, settings: config.Settings, *, again: bool = False) -> Entry | None:
    """Return an entry for this call from the remote, written into `store`; None is a miss, or there is no remote.

    With `again`, the graph was looked up before, and its miss does not count twice.
    """
    values = captured.values()
    return fetch_fitting(
        [key.digest for key in captured.all_keys()],
        lambda entry: side_effects.guards_hold(entry.guards, values),
        store,
        settings,
        again=again,
    )


def fetch_fitting(
    keys: Sequence[str],
    fits: Callable[[Entry], bool],
    store: LocalStore,
    settings: config.Settings,
    *,
    again: bool = False,
) -> Entry | None:
    """Return the first entry under one of `keys` for which `fits` holds, as `fetch`.

    `fits` is called in another thread, too. Entries in `store` for which it does not hold are not asked for.
    """
    level = _level(store, settings)
    if level is None:
        return None
    no_fit = {(key, entry.name) for key in keys for entry in store.entries(key) if not fits(entry)}
    hit = level.find(keys, fits, no_fit, again=again)
    if hit is None:
        return None
    try:
        return hit.written_to(store)
    except StoreError as error:
        if not again:
            counters.count("remote", "error:not_written_back")
        switched_off.say_not_kept(error)
        return None


def offer(entry: Entry, store: LocalStore, settings: config.Settings) -> None:
    """Upload a new entry of `store` in the background."""
    level = _level(store, settings)
    if level is not None and not level.read_only:
        level.uploads.offer(store.root, entry.key, entry.name)


def leases(store: LocalStore, settings: config.Settings) -> Leases | None:
    """Return the leases of the remote cache; None without a remote, or if the settings switch them off."""
    level = _level(store, settings) if settings.remote_wait != 0 else None
    return level.leases if level is not None and not level.read_only else None


def _level(store: LocalStore, settings: config.Settings) -> RemoteLevel | None:
    """Return the level behind a store, if there is one: torch's ``fresh_cache()`` starts empty and leaves nothing."""
    if os.path.basename(store.root) == FRESH or (at := address(settings, say=False)) is None:
        return None
    return runtime.part(_Shared).level(at, settings)


def flush(timeout: float | None) -> None:
    """Wait at most `timeout` seconds until all uploads are done; does not wait while the remote is unreachable."""
    level = runtime.part(_Shared).present()
    if level is not None:
        level.uploads.flush(timeout)


def disconnect() -> int:
    """Close all connections; the next local miss makes new ones.

    Uploads that are left are marked for the next process, or for this one's next upload; return how many.
    """
    return runtime.part(_Shared).disconnect()
