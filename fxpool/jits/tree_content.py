"""A directory as a list of its files and as blobs, and back.

    directory ──▶ files in order of their paths, one after another ──▶ pieces of at most `PIECE` bytes
              ──▶ `Tree`: path, mode, time and size of each file; directories; links that stay inside

The pieces depend on the files' contents and paths alone, so equal directories share blobs. Times are restored, because
build tools (ninja, make) compare them. Owner and group are those of the process that fills a directory; set-user bits
and write permission for others are dropped. Devices, sockets, pipes and links that lead outside are refused, in both
directions.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec

from fxpool.errors import CorruptEntryError, StoreError

__all__ = ["PIECE", "STAMP", "Tree", "fill", "look", "matches", "pieces", "settle", "tree_of"]

#: Most bytes of a piece: it is in memory once, and a value of a remote cache.
PIECE = 64 << 20
#: A file of fxpool's at the top of a directory, which is not stored with the others.
STAMP = ".fxpool-once"
# As much as an entry holds.
_MOST_FILES = 100_000


class File(msgspec.Struct, frozen=True, array_like=True):
    """A regular file. `modified` is its time in nanoseconds."""

    path: str
    mode: int
    modified: int
    size: int


class Directory(msgspec.Struct, frozen=True, array_like=True):
    path: str
    mode: int


class Link(msgspec.Struct, frozen=True, array_like=True):
    path: str
    target: str


class Tree(msgspec.Struct, frozen=True):
    """The contents of a directory but for the bytes of its files. Paths are relative, with ``/``, sorted."""

    files: list[File] = []
    directories: list[Directory] = []
    links: list[Link] = []

    @property
    def size(self) -> int:
        """The sum of the files' sizes."""
        return sum(one.size for one in self.files)

    def digest(self, pieces: Iterable[str]) -> str:
        """Return a digest of the tree and of its content, the names of its pieces."""
        return hashlib.sha256(msgspec.msgpack.encode((self, list(pieces)))).hexdigest()


def tree_of(plain: Any) -> Tree:
    """Return the tree that plain data describes. Raises CorruptEntryError if a path or link would lead outside."""
    try:
        tree = msgspec.convert(plain, Tree)
    except msgspec.ValidationError as error:
        raise CorruptEntryError(f"the list of a directory's files is invalid: {error}") from error
    directories = {one.path for one in tree.directories}
    names = [*(one.path for one in tree.files), *directories, *(one.path for one in tree.links)]
    for path in names:
        _check_path(path)
        above = os.path.dirname(path)
        if above and above not in directories:
            raise CorruptEntryError(f"{path!r} is in no directory of the list")
    if len(set(names)) < len(tree.files) + len(tree.directories) + len(tree.links):
        raise CorruptEntryError("two files of a directory have the same name")
    for link in tree.links:
        if not _stays_inside(link.path, link.target):
            raise CorruptEntryError(f"the link {link.path!r} leads to {link.target!r}, outside of its directory")
    if any(one.size < 0 for one in tree.files):
        raise CorruptEntryError("a file has a negative size")
    return tree


def _check_path(path: str) -> None:
    parts = path.split("/")
    if path == STAMP or "\0" in path or any(part in ("", ".", "..") for part in parts):
        raise CorruptEntryError(f"{path!r} is not the path of a file in a directory")


def _stays_inside(path: str, target: str) -> bool:
    """Return whether a link leads to a path in the tree.

    A ``..`` may only come first, where it goes up from a directory: behind the name of another link, it would go up
    from that link's target.
    """
    parts = target.split("/")
    up = next((number for number, part in enumerate(parts) if part != ".."), len(parts))
    return bool(target) and parts[0] != "" and "\0" not in target and ".." not in parts[up:] and up <= path.count("/")


# ---------------------------------------------------------------- reading


def look(root: str) -> Tree:
    """Return the tree of a directory.

    Raises StoreError: it has something that cannot be stored, or it changes at the same time; OSError.
    """
    files: list[File] = []
    directories: list[Directory] = []
    links: list[Link] = []
    for path, status in _walk(root, ""):
        full = os.path.join(root, path)
        try:
            path.encode()
        except UnicodeEncodeError:
            raise StoreError(f"the name of {full!r} is not UTF-8") from None
        mode = _safe_mode(status.st_mode)
        if stat.S_ISREG(status.st_mode):
            files.append(File(path, mode, status.st_mtime_ns, status.st_size))
        elif stat.S_ISDIR(status.st_mode):
            directories.append(Directory(path, mode))
        elif stat.S_ISLNK(status.st_mode):
            target = os.readlink(full)
            if not _stays_inside(path, target):
                raise StoreError(f"the link {full} leads to {target}, outside of its directory")
            links.append(Link(path, target))
        else:
            raise StoreError(f"{full} is not a file, a directory or a link")
    if len(files) + len(directories) + len(links) > _MOST_FILES:
        raise StoreError(f"{root} has more than {_MOST_FILES} files")
    return Tree(files, directories, links)


def settle(root: str, tree: Tree) -> None:
    """Give the files of a built directory the modes that they will have elsewhere. Raises OSError."""
    modes = {one.path: one.mode for one in tree.files} | {one.path: one.mode for one in tree.directories}
    for name, mode in modes.items():
        path = os.path.join(root, name)
        if stat.S_IMODE(os.lstat(path).st_mode) != mode:
            os.chmod(path, mode)


def _walk(root: str, below: str) -> Iterator[tuple[str, os.stat_result]]:
    with os.scandir(os.path.join(root, below)) as entries:
        found = sorted(entries, key=lambda entry: entry.name)
    for entry in found:
        path = f"{below}/{entry.name}" if below else entry.name
        if path == STAMP:
            continue
        status = entry.stat(follow_symlinks=False)
        yield path, status
        if stat.S_ISDIR(status.st_mode):
            yield from _walk(root, path)


def _safe_mode(mode: int) -> int:
    """Return the permissions to restore: ours in any case, others' only to read and execute."""
    return (stat.S_IMODE(mode) & 0o755) | (0o700 if stat.S_ISDIR(mode) else 0o600)


def pieces(root: str, tree: Tree) -> Iterator[bytes]:
    """Yield the content of the files of a tree in pieces. Raises StoreError if a file has changed; OSError."""
    piece = bytearray()
    for file in tree.files:
        left = file.size
        with open(os.path.join(root, file.path), "rb", opener=_no_link) as opened:
            while data := opened.read(min(left, PIECE - len(piece))):
                left -= len(data)
                piece += data
                if len(piece) == PIECE:
                    yield bytes(piece)
                    piece.clear()
            if left or opened.read(1):
                raise StoreError(f"{opened.name} changed while it was stored")
    if piece:
        yield bytes(piece)


def _no_link(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC)


# ---------------------------------------------------------------- writing


def fill(root: str, tree: Tree, read: Callable[[], Iterator[bytes]]) -> None:
    """Write a tree into an empty directory of ours; `read` yields its pieces.

    Raises CorruptEntryError if the pieces have another size than the files; OSError.
    """
    for directory in tree.directories:
        os.mkdir(os.path.join(root, directory.path), 0o700)
    source = _Source(read())
    for file in tree.files:
        path = os.path.join(root, file.path)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(path, flags, 0o600), "wb") as opened:
            for data in source.take(file.size):
                opened.write(data)
            os.fchmod(opened.fileno(), _safe_mode(stat.S_IFREG | file.mode))
        os.utime(path, ns=(file.modified, file.modified))
    if not source.is_empty():
        raise CorruptEntryError("the files of a directory have more bytes than its list says")
    for link in tree.links:
        os.symlink(link.target, os.path.join(root, link.path))
    for directory in reversed(tree.directories):
        os.chmod(os.path.join(root, directory.path), _safe_mode(stat.S_IFDIR | directory.mode))


class _Source:
    """The bytes of pieces, one after another."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces, self._piece = pieces, memoryview(b"")

    def take(self, size: int) -> Iterator[memoryview]:
        """Yield the next `size` bytes. Raises CorruptEntryError if there are fewer."""
        while size:
            if not self._piece:
                piece = next(self._pieces, None)
                if piece is None:
                    raise CorruptEntryError("the files of a directory have fewer bytes than its list says")
                self._piece = memoryview(piece)
            part, self._piece = self._piece[:size], self._piece[size:]
            size -= len(part)
            yield part

    def is_empty(self) -> bool:
        return not self._piece and next(self._pieces, None) is None


def matches(root: str, tree: Tree) -> bool:
    """Return whether the files of a directory are those of a tree, by kind, owner, size and time. Reads no content.

    Other files in it do not count.
    """
    with contextlib.suppress(OSError):
        for file in tree.files:
            status = os.lstat(os.path.join(root, file.path))
            if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
                return False
            if (status.st_size, status.st_mtime_ns) != (file.size, file.modified):
                return False
        for link in tree.links:
            if os.readlink(os.path.join(root, link.path)) != link.target:
                return False
        return all(stat.S_ISDIR(os.lstat(os.path.join(root, one.path)).st_mode) for one in tree.directories)
    return False
