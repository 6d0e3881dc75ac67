"""The level of the remote cache that all of this process uses, under the settings in force. Does not import torch.

Without a key file nothing is downloaded or uploaded, because entries that come over a network are code. A wrong setting
is warned of once, and the program continues without the remote. The remote's client is imported on the first use.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from fxpool import config, forks, notices, remedies
from fxpool.codecache.store.store import FRESH, LocalStore
from fxpool.errors import ConfigurationError
from fxpool.lowering.core.runtime import Part, runtime

if TYPE_CHECKING:
    from fxpool.codecache.remote.remote_level import RemoteLevel

__all__ = ["SharedLevel", "disconnect", "flush", "level_at"]


class SharedLevel(Part):
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
            remedy=remedies.CREATE_KEY,
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


def level_at(address: str | None, store: LocalStore | None, settings: config.Settings) -> RemoteLevel | None:
    """Return the level behind a store, None without an address.

    A store in torch's ``fresh_cache()`` has no remote: it starts empty and leaves nothing.
    """
    if address is None or (store is not None and os.path.basename(store.root) == FRESH):
        return None
    return runtime.part(SharedLevel).level(address, settings)


def flush(timeout: float | None) -> None:
    """Wait at most `timeout` seconds until all uploads are done; does not wait while the remote is unreachable."""
    level = runtime.part(SharedLevel).present()
    if level is not None:
        level.uploads.flush(timeout)


def disconnect() -> int:
    """Close all connections; the next local miss makes new ones.

    Uploads that are left are marked for the next process, or for this one's next upload; return how many.
    """
    return runtime.part(SharedLevel).disconnect()
