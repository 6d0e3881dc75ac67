"""Sends new entries to the remote cache from a background thread, so that no compile waits for uploads.

    offer ──▶ queue of names ──▶ thread: read from the local store, seal, put ──▶ remote
                                   │ remote is down: wait, probe, continue
    process ends ──▶ at most `AT_EXIT` seconds, then a mark for the next process (`pending_uploads`)

The queue holds names only, so a long queue takes little memory. Blobs are uploaded before their entry, and the entry
before its name in the index, so that readers see no entry without its blobs, unless the server has removed them. An
existing value stays (write-once), except for a value that did not verify when this process read it.

The thread also probes the remote while the breaker is open, so that no compile waits for a probe.
"""

from __future__ import annotations

import atexit
import os
import time
from collections import Counter, deque
from collections.abc import Collection, Sequence

from fxpool import counters, forks, notices
from fxpool.codecache.bundle.authentication import Keyring
from fxpool.codecache.remote import pending_uploads, remote_values
from fxpool.codecache.remote.access import LINGER, BackgroundThread, RemoteAccess
from fxpool.codecache.remote.breaker import State
from fxpool.codecache.remote.client import Client, Deadline, RemoteError
from fxpool.codecache.store.entry import encode_entry
from fxpool.codecache.store.store import LocalStore
from fxpool.errors import StoreError

__all__ = ["AT_EXIT", "MOST_WAITING", "Uploads"]

log = notices.logger(__name__)

#: Seconds that the end of a process may take longer for uploads that are under way.
AT_EXIT = 0.1
#: Entries that wait; more are marked for later.
MOST_WAITING = 256
# Seconds that the upload of one entry may take; no caller waits for it.
_PER_ENTRY = 60.0
_TRIES = 3

Item = tuple[str, str, str]  # root of the store, key, name


class Uploads(BackgroundThread):
    """The uploads of one remote level. The names of `useless` values are the level's."""

    def __init__(self, access: RemoteAccess, keyring: Keyring, useless: set[str]) -> None:
        super().__init__("fxpool-uploads", access, _PER_ENTRY)
        self._keyring, self._useless = keyring, useless
        self._waiting: deque[Item] = deque()
        self._tries: Counter[Item] = Counter()
        self._idle = forks.event()  # set while nothing waits
        self._idle.set()
        self._seen_roots: set[str] = set()
        atexit.register(self.close)

    def offer(self, root: str, key: str, name: str) -> None:
        """Have an entry of the store at `root` uploaded, with all that was left there by earlier processes."""
        with self._lock:
            first = root not in self._seen_roots
            self._seen_roots.add(root)
        left = [(root, *pair) for pair in pending_uploads.listed(root)] if first else []
        for item in [(root, key, name), *left]:
            self._add(item)
        self.wake()

    def _add(self, item: Item) -> None:
        with self._lock:
            if item in self._waiting:
                return
            if len(self._waiting) < MOST_WAITING:
                self._waiting.append(item)
                self._idle.clear()
                return
        self._postpone([item])

    def has_any_of(self, keys: Collection[str]) -> bool:
        """Return whether an entry under one of `keys` waits."""
        with self._lock:
            return any(key in keys for _, key, _ in self._waiting)

    def wake(self) -> None:
        """See to the thread: there is something to upload, or a probe may be due."""
        if self._waiting or self._is_probe_due():
            self._wake()

    def _is_probe_due(self) -> bool:
        breaker = self._access.breaker
        return breaker.state is State.OPEN and not breaker.seconds_to_probe(self._access.clock())

    def flush(self, timeout: float | None) -> bool:
        """Wait until nothing is left to upload, at most `timeout` seconds; return whether that is so.

        While the remote is away nothing is waited for.
        """
        end = None if timeout is None else time.monotonic() + timeout
        while not self._idle.is_set() and self._access.breaker.state is State.CLOSED:
            left = 0.05 if end is None else min(0.05, end - time.monotonic())
            if left <= 0 or self._thread is None or not self._thread.is_alive():
                break
            self._idle.wait(left)
        return self._idle.is_set()

    def close(self) -> int:
        """Finish what can be in a moment, and mark the rest for the next process; return how many that are."""
        atexit.unregister(self.close)
        if self._is_closed or self._pid != os.getpid():
            return 0
        self.flush(AT_EXIT)
        self._is_closed = True
        self._more.set()
        with self._lock:
            left, client = list(self._waiting), self._client
            self._waiting.clear()
        self._postpone(left)
        if client is not None:
            client.close()
        return len(left)

    # ---------------------------------------------------------------- the thread

    def _has_work(self) -> bool:
        return bool(self._waiting)

    def _step(self) -> bool:
        if self._is_closed:
            return False
        breaker, now = self._access.breaker, self._access.clock()
        with self._access.lock:
            state = breaker.state
            probe = breaker.probe_due(now)
            pause = breaker.seconds_to_probe(now)
        if probe:
            self._probe()
            return True
        with self._lock:
            item = self._waiting[0] if self._waiting else None
            self._more.clear()
        if item is None:
            return self._more.wait(LINGER)
        if state is not State.CLOSED:
            self._more.wait(min(pause, 1.0) if pause else 0.05)
            return True
        self._send(item)
        return True

    def _probe(self) -> None:
        """Ask for something small, in the time of an ordinary look."""
        answered = False
        try:
            client = self._connected()
            client.get(f"{remote_values.NAMESPACE}/probe", remote_values.sealed_bytes(0), Deadline(self._access.delay))
            answered = True
        except BaseException as error:  # as in `_send`
            log.debug("the remote cache is still unavailable: %s", error)
            self._drop_client()
        finally:
            with self._access.lock:
                self._access.breaker.probed(self._access.clock(), answered)

    def _send(self, item: Item) -> None:
        root, key, name = item
        try:
            written = self._upload(LocalStore(root), key, name)
        except (StoreError, OSError) as error:
            if isinstance(error, RemoteError):
                self._failed(item, error)
                return
            log.debug("not uploading %s: %s", key[:12], error)
            written = 0
        except BaseException as error:  # an answer may make a client raise anything, panics included
            log.debug("the upload of %s failed", key[:12], exc_info=True)
            self._failed(item, RemoteError("client", type(error).__name__))
            return
        if written:
            counters.count("remote", "writes")
        pending_uploads.remove(root, key, name)
        self._done(item)

    def _failed(self, item: Item, error: RemoteError) -> None:
        counters.count("remote", f"error:upload_{error.reason}")
        self._drop_client()
        refused = error.reason == "answer"
        self._tries[item] += 1
        if refused or self._tries[item] >= _TRIES:
            notices.once(
                f"remote-write:{error}",
                f"an entry was not uploaded: {error.message}\n  on machines that may not write, set "
                "FXPOOL_REMOTE_USE=read-only",
            )
            if refused:
                counters.count("remote", "not_uploaded")
            else:
                self._postpone([item])
            self._done(item)
        if not refused:
            self._access.failed()

    def _done(self, item: Item) -> None:
        with self._lock:
            if item in self._waiting:
                self._waiting.remove(item)
            self._tries.pop(item, None)
            if not self._waiting:
                self._idle.set()

    def _postpone(self, items: Sequence[Item]) -> None:
        for root in {item[0] for item in items}:
            pairs = [(key, name) for of_root, key, name in items if of_root == root]
            marked = pending_uploads.leave(root, pairs)
            if marked:
                counters.count("remote", "postponed", marked)
            if marked < len(pairs):
                counters.count("remote", "not_uploaded", len(pairs) - marked)

    def _upload(self, store: LocalStore, key: str, name: str) -> int:
        """Upload one entry; return the number of values that were not there. Raises RemoteError, StoreError."""
        entry = next((one for one in store.entries(key) if one.name == name), None)
        if entry is None:
            return 0  # another process cleared the store
        client, deadline = self._connected(), Deadline(_PER_ENTRY)
        written = 0
        for ref in entry.blobs.values():
            content = store.read_blob(ref)
            if content is None or len(content) > remote_values.MOST_BLOB_BYTES:
                counters.count("remote", "not_uploaded")
                return 0
            written += self._put(client, remote_values.blob_name(ref), content, deadline)
        written += self._put(client, remote_values.entry_name(key, name), encode_entry(entry), deadline)
        client.add(remote_values.entry_index(key), name, deadline)
        return written

    def _put(self, client: Client, name: str, content: bytes, deadline: Deadline) -> bool:
        replace = name in self._useless
        stored = client.put(name, remote_values.pack(self._keyring, name, content), deadline, replace=replace)
        if replace:
            self._useless.discard(name)
        return stored
