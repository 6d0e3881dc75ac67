"""A kernel or a helper file of Triton's as an entry of fxpool's store, and the turn to compile it."""

from __future__ import annotations

import contextlib
import os
import platform
import sys
import time
from typing import Any

from fxpool import counters, notices
from fxpool.codecache.remote.leases import Lease
from fxpool.codecache.store import layout
from fxpool.codecache.store.entry import Entry
from fxpool.errors import CorruptEntryError, RecursiveBuildError
from fxpool.jits import product_keys, products, turns
from fxpool.jits.products import Read, Shelf
from fxpool.jits.tree_content import File, Tree
from fxpool.jits.turns import Turn
from fxpool.lowering.core import host_report

__all__ = ["Compile"]

log = notices.logger(__name__)

# Seconds to wait for another compile of the same kernel. Most take a second or two; a program that keeps the exception
# of a failed one also keeps its turn.
_PATIENCE = 60.0
# The role of the blob with a kernel's files.
_FILES = "files"


class Compile:
    """A kernel or a file of Triton's as a product in fxpool's store, and the turn to compile it."""

    def __init__(self, key: str, filename: str, files: Any, *, is_group: bool) -> None:
        # A helper is loaded into this interpreter; Triton's key names neither that nor the C library.
        host = (sys.implementation.cache_tag, *platform.libc_ver()) if filename.endswith(".so") else ()
        digest = product_keys.digest((key, filename, is_group), host, product_keys.TRITON)
        self._shelf = Shelf(digest, f"triton {filename.removesuffix('.json')}", product_keys.TRITON)
        self._filename, self._files, self._is_group = filename, files, is_group
        self._turn: Turn | None = None
        self._lease: Lease | None = None
        self._start = time.monotonic()

    def find(self) -> dict[str, str] | None:
        """Return the paths of the files, once they are in Triton's directory; None is a miss, or damaged."""
        group = self._shelf.find(self._use) or self._shelf.fetch(self._use)
        self._count(group)
        return group

    def wait(self) -> dict[str, str] | None:
        """Like `find`, but wait while others compile the same kernel. After a miss, call `end`."""
        if (group := self._shelf.find(self._use)) is None:
            deadline = self._start + _PATIENCE
            with contextlib.suppress(RecursiveBuildError):  # an earlier try here failed, and its error is kept
                self._turn = turns.take(self._shelf.key, self._shelf.label, deadline)
                if self._shelf.store is not None:
                    name = os.path.join(self._shelf.store.root, layout.BUILDING_DIRECTORY, f"{self._shelf.key}.lock")
                    self._turn.lock(name, deadline)
                if self._turn.waited:
                    counters.count("once", "waits")
            group = self._shelf.find(self._use) or self._shelf.fetch(self._use)
            if group is None:
                left = max(0.0, deadline - time.monotonic())
                group, self._lease = self._shelf.take_lease(lambda: self._shelf.fetch(self._use, again=True), left)
        self._count(group)
        if group is not None:
            self.end()
        self._start = time.monotonic()
        return group

    def _count(self, group: dict[str, str] | None) -> None:
        counters.count("once", "misses" if group is None else "hits")
        if group is not None:
            counters.add_seconds("seconds_saved", self._shelf.seconds - (time.monotonic() - self._start))
        host_report.graph_done()

    def _use(self, entry: Entry, read: Read) -> dict[str, str] | None:
        """Write the files of an entry where Triton looks for them; return their paths. Raises CorruptEntryError."""
        tree = products.tree_in(entry)
        content = b"" if _FILES not in entry.blobs else read(entry.blobs[_FILES])
        if content is None or len(content) != tree.size or tree.links or any("/" in one.path for one in tree.files):
            raise CorruptEntryError(f"the files of {self._shelf.label} are missing or damaged")
        group, start = {}, 0
        for file in tree.files:
            group[file.path] = self._files.put(content[start : start + file.size], file.path, binary=True)
            start += file.size
        if self._is_group:
            self._files.put_group(self._filename, group)  # last: the kernel is complete or absent
        return group

    def publish(self, group: dict[str, str]) -> None:
        """Store files, by name, that Triton has written."""
        contents = {}
        for name, path in sorted(group.items()):
            if os.path.basename(path) != name:
                log.info("not storing %s: its file %s is at %s", self._shelf.label, name, path)
                return
            with open(path, "rb") as file:
                contents[name] = file.read()
        tree = Tree([File(name, 0o644, 0, len(content)) for name, content in contents.items()])
        seconds = time.monotonic() - self._start
        self._shelf.publish([(_FILES, b"".join(contents.values()))], seconds, files=tree)
        counters.count("once", "builds")

    def end(self) -> None:
        """End the turn; others look again. Idempotent."""
        turn, self._turn = self._turn, None
        lease, self._lease = self._lease, None
        if turn is not None:
            turn.release()
        if lease is not None:
            self._shelf.end(lease)

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # a compile failed, and the interpreter may be ending
            self.end()
