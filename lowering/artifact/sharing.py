"""The remote cache as this process uses it: its address, downloads on a local miss, uploads of published entries.

The address is the setting `remote_cache`. If that is unset and the program has enabled Inductor's remote cache, the
address comes from Inductor's variables for Redis. `core.shared_remote` has the process's connection to it.

    local miss ──▶ `fetch` ──▶ level of the remote ──▶ written into the local store, and served from there
    publishing ──▶ `offer` ──▶ uploads in the background
    compiling  ──▶ `leases` ─▶ one machine compiles a graph, the others wait for it
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from fxpool import config, counters
from fxpool.codecache.store.store import LocalStore
from fxpool.errors import StoreError
from fxpool.lowering.artifact import side_effects
from fxpool.lowering.core import shared_remote, switched_off
from fxpool.torch_compat.state import configs

if TYPE_CHECKING:
    from fxpool.codecache.remote.leases import Leases
    from fxpool.codecache.remote.remote_level import RemoteLevel
    from fxpool.codecache.store.entry import Entry
    from fxpool.lowering.request.captured_graph import Captured

__all__ = ["address", "fetch", "fetch_fitting", "inductor_address", "leases", "offer"]


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
    """Return the level behind a store, if there is one."""
    return shared_remote.level_at(address(settings, say=False), store, settings)
