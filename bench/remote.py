"""What a look into a remote cache costs, beside writing what it found into the cache directory.

    python bench/remote.py redis://127.0.0.1:6379/0        an address, as in FXPOOL_REMOTE_CACHE

Entries of two blobs of random bytes, 100 KB together, one after the other. Medians, in milliseconds.
"""

from __future__ import annotations

import functools
import hashlib
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

from fxpool.codecache import remote
from fxpool.codecache.bundle.authentication import KEY_BYTES, Keyring
from fxpool.codecache.remote.remote_level import RemoteLevel
from fxpool.codecache.store.entry import Entry
from fxpool.codecache.store.store import LocalStore

ENTRIES = 50
BLOBS = {"result": 40_000, "kernels": 60_000}


def _fits(entry: Entry) -> bool:
    return True


def main(address: str) -> None:
    times: dict[str, list[float]] = {}

    def timed(what: str, function: Callable[[], Any]) -> Any:
        begun = time.perf_counter()
        result = function()
        times.setdefault(what, []).append(1000 * (time.perf_counter() - begun))
        return result

    ring = Keyring([os.urandom(KEY_BYTES)])
    level = RemoteLevel(lambda seconds: remote.connect(address, seconds), ring, delay=10.0)
    with tempfile.TemporaryDirectory() as directory:
        one, two = (LocalStore(os.path.join(directory, name)) for name in ("one", "two"))
        for _ in range(ENTRIES):
            key = hashlib.sha256(os.urandom(32)).hexdigest()
            look = functools.partial(level.find, [key], _fits)
            blobs = {role: os.urandom(size) for role, size in BLOBS.items()}
            entry = timed("write locally", functools.partial(one.publish, Entry(key=key), blobs))
            assert timed("miss", look) is None, "is the remote asked at all?"
            level.uploads.offer(one.root, entry.key, entry.name)
            timed("upload, in the background", lambda: level.uploads.flush(60))
            found = timed("hit", look)
            timed("write back", functools.partial(found.written_to, two))
        level.close()
    for what, values in times.items():
        print(f"{what:<28}{statistics.median(values):8.1f} ms")


if __name__ == "__main__":
    main(sys.argv[1])
