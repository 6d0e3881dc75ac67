"""The remote level of the cache: looks up entries that the local store lacks, and accepts new entries for upload.

Each lookup runs in a separate thread, and its caller waits as long as the breaker allows: name resolution has no time
limit, and a client's time limits are for single requests. Late results are dropped. Each value is authenticated before
anything else is done with it, and a blob's digest is compared with its name.

No failure of the remote raises here. It is a miss, counted in ``fxpool.stats()["remote"]``.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TypeVar

from fxpool import counters, forks, interruptions, notices
from fxpool.codecache.bundle.authentication import Keyring
from fxpool.codecache.remote import remote_values
from fxpool.codecache.remote.access import RemoteAccess
from fxpool.codecache.remote.breaker import Breaker
from fxpool.codecache.remote.client import Client, Deadline, RemoteError
from fxpool.codecache.remote.leases import Leases
from fxpool.codecache.remote.uploads import Uploads
from fxpool.codecache.store.blobs import BlobRef
from fxpool.codecache.store.entry import Entry, OtherVersionError, decode_entry
from fxpool.codecache.store.layout import is_hex_digest
from fxpool.codecache.store.store import LocalStore
from fxpool.errors import CorruptEntryError, NotAuthenticError, StoreError

__all__ = ["MOST_ENTRIES", "RemoteHit", "RemoteLevel"]

log = notices.logger(__name__)

T = TypeVar("T")

#: Entries of one key that are looked at.
MOST_ENTRIES = 64


@dataclass(frozen=True)
class RemoteHit:
    """An entry of the remote, and the content of its blobs by role. All of it is authenticated."""

    entry: Entry
    blobs: dict[str, bytes]

    def written_to(self, store: LocalStore) -> Entry:
        """Write it into the local store; return the entry there. Raises StoreError."""
        return store.publish(self.entry, self.blobs)


class RemoteLevel:
    """One remote cache, as this process uses it. Thread-safe; a forked child makes its own.

    `connect` makes a client whose requests may take so many seconds; it is called here first, and what it raises is
    raised. `delay` is what the remote may cost, in seconds.
    """

    def __init__(
        self,
        connect: Callable[[float], Client],
        keyring: Keyring,
        *,
        delay: float,
        read_only: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._access, self._keyring = RemoteAccess(connect, delay, clock), keyring
        self._idle: list[Client] = [connect(delay)]  # imports it, for which no remote is to blame
        self._is_closed = False
        self._useless: set[str] = set()
        # Before the uploads, which are closed first when the process ends.
        self.leases = Leases(self._access, lambda keys: self.uploads.has_any_of(keys))
        self.uploads = Uploads(self._access, keyring, self._useless)
        self.read_only = read_only

    @property
    def state(self) -> str:
        """``closed`` while the remote is asked, else ``open`` or ``half_open``."""
        return self._access.breaker.state.value

    # ---------------------------------------------------------------- looking

    def find(
        self,
        keys: Sequence[str],
        fits: Callable[[Entry], bool],
        skipped: Collection[tuple[str, str]] = (),
        *,
        again: bool = False,
    ) -> RemoteHit | None:
        """Return the first entry under one of `keys` for which `fits` holds; None is a miss.

        `fits` is called in another thread. `skipped` are (key, name) of entries known not to fit. With `again`, the
        graph was looked up before: a miss, or a value that did not verify then, does not count twice.
        """
        allowance = self._access.allowance()
        if not allowance:
            counters.count("remote", "not_asked")
            self.uploads.wake()  # for a probe, if one is due
            return None
        look = _Look(self, keys, fits, skipped, allowance)
        start = self._access.clock()
        if not look.start():
            counters.count("remote", "not_asked")
            return None
        with interruptions.let_through():
            in_time = look.over.wait(allowance)
        look.given_up = True  # its thread ends by itself, as all that it waits for has the same deadline
        hit, error = (look.hit, look.error) if in_time else (None, RemoteError("timeout"))
        self._settle(hit, error, look, self._access.clock() - start, again)
        return hit

    def _settle(
        self, hit: RemoteHit | None, error: BaseException | None, look: _Look, seconds: float, again: bool
    ) -> None:
        bad: list[tuple[str, str]] = []

        def record(breaker: Breaker, now: float) -> None:
            bad.extend(pair for pair in look.bad if not again or pair[0] not in self._useless)
            for name, _ in bad:
                self._useless.add(name)
                breaker.bad_value(now)
            if error is not None:
                breaker.failed(now)
            elif hit is not None:
                breaker.hit()
            else:
                breaker.missed(now, seconds)

        reason = error.reason if isinstance(error, RemoteError) else type(error).__name__
        why = reason if error is not None else "its values fail verification" if look.bad else "it is slow"
        self._access.settle(seconds, record, error, why)
        for _, bad_reason in bad:
            counters.count("remote", f"error:{bad_reason}")
        if error is not None:
            counters.count("remote", f"error:{reason}")
        elif hit is not None or not again:
            counters.count("remote", "hits" if hit is not None else "misses")

    def client(self) -> Client:
        """Return a client for one thread; `give_back` keeps it for the next."""
        with self._access.lock:
            if self._idle:
                return self._idle.pop()
        return self._access.connect(self._access.delay)

    def give_back(self, client: Client) -> None:
        """Keep a client whose calls all came to an end."""
        with self._access.lock:
            if not self._is_closed:
                self._idle.append(client)
                return
        client.close()

    def read(self, client: Client, name: str, most: int, deadline: Deadline) -> bytes | None:
        """Return the authenticated content of a value, None if it does not exist. Raises as `remote_values.unpack`."""
        sealed = client.get(name, remote_values.sealed_bytes(most), deadline)
        return None if sealed is None else remote_values.unpack(self._keyring, name, sealed, most)

    # ---------------------------------------------------------------- ending

    def close(self) -> int:
        """Drop the connections. Uploads that are under way end; those that are left are marked for the next process.

        Return how many are left.
        """
        left = self.uploads.close()
        self.leases.close()
        with self._access.lock:
            idle, self._idle = self._idle, []
            self._is_closed = True
        for client in idle:
            client.close()
        return left


class _Look:
    """One look, in its thread: what it found, and what was wrong with what it met."""

    def __init__(
        self,
        level: RemoteLevel,
        keys: Sequence[str],
        fits: Callable[[Entry], bool],
        skipped: Collection[tuple[str, str]],
        seconds: float,
    ) -> None:
        self._level, self._keys, self._fits, self._skipped = level, keys, fits, skipped
        self._deadline = Deadline(seconds)
        self.over = forks.event()
        self.hit: RemoteHit | None = None
        self.error: BaseException | None = None
        self.bad: list[tuple[str, str]] = []  # names of values, and reasons
        self.given_up = False

    def start(self) -> bool:
        """Start the thread; return whether that succeeded (it fails while the interpreter shuts down)."""
        try:
            threading.Thread(target=self._run, name="fxpool-remote", daemon=True).start()
        except RuntimeError:
            return False
        return True

    def _run(self) -> None:
        client: Client | None = None
        try:
            client = self._level.client()
            self.hit = self._look(client)
            self._level.give_back(client)
        except BaseException as error:  # a panic inside a client must not reach the program
            self.error = error
            if not isinstance(error, RemoteError):
                log.debug("the remote cache could not be queried", exc_info=True)
            if client is not None:
                client.close()
        finally:
            self.over.set()

    def _look(self, client: Client) -> RemoteHit | None:
        for key in self._keys:
            for name in client.names(remote_values.entry_index(key), MOST_ENTRIES, self._deadline):
                if self.given_up:
                    return None
                if not is_hex_digest(name) or (key, name) in self._skipped:
                    continue
                entry = self._entry(client, key, name)
                if entry is None or not self._fits(entry):
                    continue
                blobs = self._blobs(client, entry)
                if blobs is not None:
                    return RemoteHit(entry, blobs)
        return None

    def _entry(self, client: Client, key: str, name: str) -> Entry | None:
        full = remote_values.entry_name(key, name)

        def decoded(content: bytes) -> Entry:
            entry = decode_entry(content)
            if (entry.key, entry.name) != (key, name):
                raise CorruptEntryError(f"{full} holds a different entry")
            return entry

        return self._checked(client, full, remote_values.MOST_ENTRY_BYTES, decoded)

    def _blobs(self, client: Client, entry: Entry) -> dict[str, bytes] | None:
        """Return all blobs of an entry; None if the server has removed one, or if one does not match its name."""
        contents = {}
        for role, ref in entry.blobs.items():
            if ref.size > remote_values.MOST_BLOB_BYTES:
                return None
            content = self._checked(client, remote_values.blob_name(ref), ref.size, _blob_of(ref))
            if content is None:
                return None
            contents[role] = content
        return contents

    def _checked(self, client: Client, name: str, most: int, decode: Callable[[bytes], T]) -> T | None:
        """Return the result of `decode` for a value; None if it is missing or, which is counted, does not verify."""
        try:
            content = self._level.read(client, name, most, self._deadline)
            return None if content is None else decode(content)
        except NotAuthenticError as error:
            self._is_bad(name, "not_authentic", error)
        except OtherVersionError as error:
            log.debug("%s: %s", name, error)
        except CorruptEntryError as error:
            self._is_bad(name, "damaged", error)
        except RemoteError as error:
            if error.reason != "too_large":
                raise
            self._is_bad(name, error.reason, error)
        return None

    def _is_bad(self, name: str, reason: str, error: StoreError) -> None:
        self.bad.append((name, reason))
        log.info("ignoring a value of the remote cache: %s", error.message)


def _blob_of(ref: BlobRef) -> Callable[[bytes], bytes]:
    def checked(content: bytes) -> bytes:
        if BlobRef.of(content) != ref:
            raise CorruptEntryError(f"blob {ref.name} of the remote cache has different content")
        return content

    return checked
