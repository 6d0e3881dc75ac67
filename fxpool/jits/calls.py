"""`fxpool.once`: returns the product of a key, which is built at most once per host, and per fleet with a remote.

A call goes through `products.Shelf` and `turns` in the same way whether its product is bytes (`_Bytes`) or a directory
(`_Directory`); these two know how to take a product from an entry, to build it and to store it.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import shutil
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from fxpool import counters, interruptions, notices, temporary
from fxpool.codecache.store import held_directories, layout
from fxpool.codecache.store.entry import Entry
from fxpool.errors import StoreError
from fxpool.jits import product_keys, products, target_directories, tree_content, turns
from fxpool.jits.products import Read, Shelf
from fxpool.jits.target_directories import Stamp
from fxpool.jits.tree_content import Tree
from fxpool.lowering.core import host_report

__all__ = ["once"]

log = notices.logger(__name__)


class _Form(Protocol):
    """A product as the caller wants it. Threads with the same `target` share one result."""

    @property
    def target(self) -> str | None: ...

    def present(self) -> Any | None:
        """Return the product if it is where the caller wants it already."""

    def use(self, entry: Entry, read: Read) -> Any | None:
        """Return the product of an entry; None if it is damaged. Raises StoreError for a damaged entry, too."""

    def build(self) -> Any:
        """Build, store and return the product."""


def once(
    key: Any,
    build: Callable[..., Any],
    *,
    directory: str | os.PathLike[str] | None,
    version: Any,
    timeout: float | None,
    in_place: bool,
) -> Any:
    """See `fxpool.once`."""
    if in_place and directory is None:
        raise TypeError("fxpool.once: in_place=True needs the directory to build in")
    is_tree = directory is not None or _wants_directory(build)
    form = product_keys.DIRECTORY if is_tree else product_keys.BYTES
    digest = product_keys.digest(key, version, form)
    shelf = Shelf(digest, product_keys.described(key), form)
    target = None if directory is None else os.path.realpath(os.fspath(directory))
    product: _Form = _Directory(shelf, build, target, in_place) if is_tree else _Bytes(shelf, build)
    try:
        return _product(shelf, product, timeout)
    finally:
        host_report.graph_done()


def _wants_directory(build: Callable[..., Any]) -> bool:
    """Return whether `build` takes a directory. Raises TypeError."""
    try:
        parameters = inspect.signature(build).parameters.values()
    except (TypeError, ValueError):
        raise TypeError(f"fxpool.once cannot tell the parameters of {build!r}: pass a function or a lambda") from None
    needed = [one for one in parameters if one.default is one.empty]
    needed = [one for one in needed if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)]
    if any(one.kind is one.KEYWORD_ONLY for one in needed) or len(needed) > 1:
        raise TypeError(f"fxpool.once calls {build!r} with a directory or without arguments, and it needs others")
    return bool(needed)


def _product(shelf: Shelf, product: _Form, timeout: float | None) -> Any:
    start = time.monotonic()

    def served(result: Any) -> Any:
        counters.count("once", "hits")
        counters.add_seconds("seconds_saved", shelf.seconds - (time.monotonic() - start))
        return result

    if (result := product.present()) is not None or (result := shelf.find(product.use)) is not None:
        return served(result)
    counters.count("once", "misses")
    deadline = None if timeout is None else start + timeout
    while True:
        turn = turns.take(shelf.key, shelf.label, deadline)
        if turn.result is not None:
            counters.count("once", "waits")
            target, result = turn.result
            if target == product.target or (result := shelf.find(product.use)) is not None:
                return served(result)
            continue
        shared = None
        try:
            result, is_built = _in_turn(shelf, product, turn, deadline)
            shared = product.target, result
        finally:
            if turn.waited:
                counters.count("once", "waits")
            turn.release(shared)
        return result if is_built else served(result)


def _in_turn(shelf: Shelf, product: _Form, turn: turns.Turn, deadline: float | None) -> tuple[Any, bool]:
    """Return the product, and whether it was built here."""
    if shelf.store is not None:
        turn.lock(os.path.join(shelf.store.root, layout.BUILDING_DIRECTORY, f"{shelf.key}.lock"), deadline)
    # Another process may have built it since the last look.
    if (result := product.present()) is not None or (result := shelf.find(product.use)) is not None:
        return result, False
    if (result := shelf.fetch(product.use)) is not None:
        return result, False
    left = None if deadline is None else max(0.0, deadline - time.monotonic())
    result, lease = shelf.take_lease(lambda: shelf.fetch(product.use, again=True), left)
    if result is not None:
        return result, False
    try:
        built = product.build()
    except BaseException:
        counters.count("once", "failed")
        raise
    finally:
        if lease is not None:
            shelf.end(lease)
    counters.count("once", "builds")
    return built, True


class _Bytes:
    """A product that is bytes."""

    target = None

    def __init__(self, shelf: Shelf, build: Callable[[], bytes]) -> None:
        self._shelf, self._build = shelf, build

    def present(self) -> None:
        return None

    def use(self, entry: Entry, read: Read) -> bytes | None:
        ref = entry.blobs.get(products.CONTENT)
        return None if ref is None else read(ref)

    def build(self) -> bytes:
        start = time.monotonic()
        content = self._build()
        if not isinstance(content, (bytes, bytearray, memoryview)):
            raise TypeError(
                f"the build of {self._shelf.label} returned {type(content).__name__} instead of bytes; to build files, "
                "let it take a directory"
            )
        content = bytes(content)
        self._shelf.publish([(products.CONTENT, content)], time.monotonic() - start)
        return content


class _Directory:
    """A product that is a directory, at `target`, or where fxpool chooses: below the cache if that can be written."""

    def __init__(self, shelf: Shelf, build: Callable[[str], object], target: str | None, in_place: bool) -> None:
        self._shelf, self._build, self.target, self._in_place = shelf, build, target, in_place

    def present(self) -> str | None:
        if self.target is None:
            return None
        target_directories.check(self.target)
        stamp = target_directories.read(self.target)
        if stamp is None or stamp.key != self._shelf.key or not stamp.content:
            return None
        self._shelf.mark_used()
        self._shelf.seconds = stamp.seconds
        return self.target

    # ---------------------------------------------------------------- from an entry

    def use(self, entry: Entry, read: Read) -> str | None:
        tree = products.tree_in(entry)
        pieces = products.piece_names(entry)
        digest = tree.digest(ref.name for ref in pieces)

        def content() -> Iterator[bytes]:
            for ref in pieces:
                if (piece := read(ref)) is None:
                    raise StoreError(f"a blob of {self._shelf.label} is missing or damaged")
                yield piece

        if self.target is not None:
            with target_directories.beside(self.target) as scratch:
                tree_content.fill(scratch, tree, content)
                target_directories.put(
                    scratch, self.target, Stamp(self._shelf.key, digest, entry.metadata.compile_seconds)
                )
            return self.target
        return self._managed(tree, digest, lambda path: tree_content.fill(path, tree, content))

    def _managed(self, tree: Tree, digest: str, fill: Callable[[str], object]) -> str:
        """Return the directory below the cache, or a temporary directory where it cannot be."""
        if self._shelf.store is not None:
            try:
                root = self._shelf.store.root
                return held_directories.held(root, digest, lambda path: tree_content.matches(path, tree), fill)
            except OSError as error:
                interruptions.pass_on(error)
                log.info("using a temporary directory for %s: %s", self._shelf.label, error)
        path = _until_exit()
        fill(path)
        return path

    # ---------------------------------------------------------------- building

    def build(self) -> str:
        if self.target is None:
            return self._build_below_the_cache()
        if self._in_place:
            start = time.monotonic()
            target_directories.building_in(self.target, self._shelf.key, self._build)
            stamp, _ = self._publish(self.target, time.monotonic() - start)
            target_directories.write_stamp(self.target, stamp)
            return self.target
        with target_directories.beside(self.target) as scratch:
            start = time.monotonic()
            self._build(scratch)
            stamp, _ = self._publish(scratch, time.monotonic() - start)
            target_directories.put(scratch, self.target, stamp)
        return self.target

    def _build_below_the_cache(self) -> str:
        with contextlib.ExitStack() as stack:
            try:
                root = self._shelf.store.root if self._shelf.store is not None else None
                scratch = stack.enter_context(held_directories.building(root)) if root is not None else _until_exit()
            except OSError as error:
                interruptions.pass_on(error)
                root, scratch = None, _until_exit()
            start = time.monotonic()
            self._build(scratch)
            stamp, tree = self._publish(scratch, time.monotonic() - start)
            if root is None:
                return scratch
            if tree is None:
                return _moved(scratch)
            try:
                return held_directories.held(
                    root,
                    stamp.content,
                    lambda path: tree_content.matches(path, tree),
                    lambda path: os.rename(scratch, path),
                )
            except OSError as error:
                interruptions.pass_on(error)
                if not os.path.isdir(scratch):
                    raise
                return _moved(scratch)

    def _publish(self, path: str, seconds: float) -> tuple[Stamp, Tree | None]:
        """Store the content of a built directory; return its stamp, and its tree if it could be stored."""
        try:
            tree = tree_content.look(path)
            tree_content.settle(path, tree)
            pieces = enumerate(tree_content.pieces(path, tree))
            entry = self._shelf.publish(((f"files-{n:05}", piece) for n, piece in pieces), seconds, files=tree)
        except (StoreError, OSError) as error:
            interruptions.pass_on(error)
            self._shelf.not_stored(error)
            entry = None
        if entry is None:
            return Stamp(self._shelf.key, "not stored", seconds), None
        digest = tree.digest(ref.name for ref in products.piece_names(entry))
        return Stamp(self._shelf.key, digest, seconds), tree


def _until_exit(parent: str | None = None) -> str:
    """Return an empty directory that is removed when this process ends. Raises OSError."""
    path = os.path.join(temporary.until_exit("built", parent), "content")
    os.mkdir(path, 0o700)
    return path


def _moved(scratch: str) -> str:
    """Move a built directory that cannot stay below the cache; return its path until this process ends."""
    try:
        path = _until_exit(os.path.dirname(os.path.dirname(scratch)))
        os.rename(scratch, path)
    except OSError as error:
        interruptions.pass_on(error)
        path = _until_exit()
        shutil.copytree(scratch, path, symlinks=True, dirs_exist_ok=True)
    return path
