"""The catalogue of a cache directory: walks it and yields a record of each file.

Listing, disk usage, eviction, the index, statistics, the `cache` commands, bundles and the dashboard read the
catalogue. It is divided into parts (``entries/3f``, ``blobs/a0``, ``rest``) that are scanned separately.

Sizes are those of `du`: blocks, including those of directories; in `measure`, a file with several names counts once. A
directory or a file that disappears during the walk counts as empty or is left out, because another process may clear
the cache at any time. Nothing follows links.
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import msgspec

from fxpool.codecache.store import held_directories, layout
from fxpool.codecache.store.blobs import BlobRef, read_stored
from fxpool.codecache.store.cache_limits import Bounds
from fxpool.codecache.store.entry import Entry, decode_entry
from fxpool.errors import StoreError

__all__ = [
    "OTHERS", "Part", "Size", "State", "StoredEntry", "StoredFile", "blobs", "entries", "header_groups",
    "identify", "load", "measure", "part_names", "part_of", "read", "scan", "sum_of",
]  # fmt: skip

#: The name of the part with all files that are neither entries nor blobs.
OTHERS = "rest"
#: Prefix of the directory in which a precompiled header is built.
BUILDING = "building-"
_PREFIX = re.compile(r"[0-9a-f]{2}")

#: Identifies a file and its content: inode, size in bytes, and times of modification and change.
State = tuple[int, int, int, int]


class Size(msgspec.Struct, frozen=True, gc=False):
    """A number of `files`, and the `bytes` that they take on the disk with their directories."""

    files: int = 0
    bytes: int = 0

    def __add__(self, other: Size) -> Size:
        return Size(self.files + other.files, self.bytes + other.bytes)

    def __sub__(self, other: Size) -> Size:
        return Size(self.files - other.files, self.bytes - other.bytes)

    def over(self, bounds: Bounds) -> bool:
        """Return whether the size exceeds one of the limits."""
        return _exceeds(self.bytes, bounds.max_bytes) or _exceeds(self.files, bounds.max_files)


class StoredFile(msgspec.Struct, frozen=True, gc=False):
    """A blob, a record, or the files of a precompiled header or of a directory, which are removed together.

    `path` is below the root, `size` on the disk. `used` is the Unix time of its last use or, for a blob, publication.
    """

    path: str
    size: Size
    used: float
    state: State = (0, 0, 0, 0)

    @property
    def name(self) -> str:
        """The name of the file without suffix."""
        return os.path.basename(self.path).removesuffix(layout.ENTRY_SUFFIX)

    @property
    def bytes(self) -> int:
        """The length of the file."""
        return self.state[1]


class StoredEntry(StoredFile, frozen=True, gc=False):
    """The file of an entry. `size` includes the directory of its key, unless that has another entry.

    The content adds the `seconds` of its compile and the names of its `blobs`, None if it can't be read, and the
    `entry` itself, which only `read` returns.
    """

    seconds: float = 0.0
    blobs: tuple[str, ...] | None = None
    entry: Entry | None = None

    @property
    def key(self) -> str:
        return self.path.split("/")[2]

    @property
    def total_bytes(self) -> int:
        """The length of the file and of the entry's blobs, which other entries may share."""
        return self.bytes + (sum(ref.size for ref in self.entry.blobs.values()) if self.entry is not None else 0)


@dataclass(frozen=True)
class Part:
    """The result of scanning one part of a directory. `seen` is the Unix time at which the scan began.

    `size` is that of all its files. `entries` or `files` has those that may be evicted; the others stay.
    """

    name: str
    size: Size
    entries: list[StoredEntry] = field(default_factory=list)
    files: list[StoredFile] = field(default_factory=list)
    seen: float = field(default_factory=time.time)


def sum_of(sizes: Iterable[Size]) -> Size:
    """Return the sum of sizes."""
    files = in_bytes = 0
    for size in sizes:
        files += size.files
        in_bytes += size.bytes
    return Size(files, in_bytes)


# ---------------------------------------------------------------- entries and blobs


def entries(root: str) -> Iterator[StoredEntry]:
    """Yield every entry in arbitrary order, without its content."""
    for part in part_names(root):
        if part.startswith(layout.ENTRIES):
            yield from _entries(root, part)[0]


def blobs(root: str) -> Iterator[StoredFile]:
    """Yield every blob in arbitrary order, not verified."""
    for part in part_names(root):
        if part.startswith(layout.BLOBS):
            yield from _blobs(root, part)[0]


def read(root: str, stored: StoredEntry) -> StoredEntry | None:
    """Return the record with the content of the file; `entry` is None if that can't be used. None if the file is gone.

    A damaged file stays where it is.
    """
    try:
        entry = decode_entry(read_stored(os.path.join(root, stored.path))[0])
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, StoreError):  # damaged, of another version, or writable by others
        return stored
    if (entry.key, entry.name) != (stored.key, stored.name):
        return stored
    needed = tuple(sorted({ref.name for ref in entry.blobs.values()}))
    return StoredEntry(
        stored.path, stored.size, stored.used, stored.state, entry.metadata.compile_seconds, needed, entry
    )


def load(root: str, key: str, name: str) -> Entry | None:
    """Return an entry, None if it is missing or can't be read. Raises ValueError for invalid names."""
    if not layout.is_hex_digest(key) or not layout.is_hex_digest(name):
        raise ValueError("keys and names of entries must be lower-case sha256")
    path = os.path.relpath(layout.entry_path(root, key, name), root)
    stored = read(root, StoredEntry(path, Size(), 0.0))
    return stored.entry if stored is not None else None


def _entries(root: str, part: str) -> tuple[list[StoredEntry], Size]:
    """Return the entries of a part, and the size of everything else in it."""
    files: list[StoredEntry] = []
    others = Size(0, _blocks_of(os.path.join(root, part)))
    for key in layout.names(os.path.join(root, part)):
        directory = os.path.join(root, part, key)
        # A key's directory is removed with its last entry, and most keys have one entry, so its size counts there.
        own = Size(0, _blocks_of(directory))
        for name in sorted(layout.names(directory)):
            status = _status(os.path.join(directory, name))
            if status is None:
                continue
            size, stem = _size(status), name.removesuffix(layout.ENTRY_SUFFIX)
            if stem == name or stat.S_ISDIR(status.st_mode) or not all(map(layout.is_hex_digest, (key, stem))):
                others += size
                continue
            files.append(StoredEntry(f"{part}/{key}/{name}", size + own, status.st_mtime, identify(status)))
            own = Size()
        others += own
    return files, others


def _blobs(root: str, part: str) -> tuple[list[StoredFile], Size]:
    """Return the blobs of a part, and the size of everything else in it."""
    files: list[StoredFile] = []
    others = Size(0, _blocks_of(os.path.join(root, part)))
    for name in layout.names(os.path.join(root, part)):
        status = _status(os.path.join(root, part, name))
        if status is None:
            continue
        if BlobRef.from_name(name) is None or stat.S_ISDIR(status.st_mode):
            others += _size(status)
        else:
            files.append(StoredFile(f"{part}/{name}", _size(status), status.st_mtime, identify(status)))
    return files, others


# ---------------------------------------------------------------- parts


def part_names(root: str) -> list[str]:
    """Return the names of the parts that exist in a directory."""
    parts = [OTHERS]
    for kind in (layout.ENTRIES, layout.BLOBS):
        parts += [f"{kind}/{name}" for name in layout.names(os.path.join(root, kind)) if _PREFIX.fullmatch(name)]
    return parts


def part_of(path: str) -> str:
    """Return the name of the part that contains a path, which is relative to the root."""
    kind, _, below = path.partition("/")
    return f"{kind}/{below[:2]}" if kind in (layout.ENTRIES, layout.BLOBS) else OTHERS


def scan(root: str, part: str, *, contents: bool = False) -> Part:
    """Scan one part of a directory. Reads the entries, without returning them whole, if `contents` is true."""
    seen = time.time()
    if part == OTHERS:
        others, size = _others(root)
        return Part(part, size, files=others, seen=seen)
    if part.startswith(layout.BLOBS):
        files, rest = _blobs(root, part)
        return Part(part, sum_of(one.size for one in files) + rest, files=files, seen=seen)
    stored, rest = _entries(root, part)
    size = sum_of(one.size for one in stored) + rest
    if contents:
        stored = [msgspec.structs.replace(read(root, one) or one, entry=None) for one in stored]
    return Part(part, size, stored, seen=seen)


def _others(root: str) -> tuple[list[StoredFile], Size]:
    """Return the files of `OTHERS` that may be evicted, and the size of all of them.

    Headers that are being built are not listed. Files that are not fxpool's don't count.
    """
    files: list[StoredFile] = []
    size = Size(0, _blocks_of(root))
    for name in layout.names(root):
        kind = layout.kind_of(name)
        if kind == layout.FOREIGN or name == layout.CLAIM:  # the claim exists only during an eviction
            continue
        if kind in (layout.ENTRIES, layout.BLOBS):
            size += Size(0, _blocks_of(os.path.join(root, name)))
            continue
        part = layout.PARTS.get(name)
        for path, status in _walk(os.path.join(root, name)):
            size += _size(status)
            if part is not None and part.evicted and not stat.S_ISDIR(status.st_mode):
                used = 0.0 if part.never_served else status.st_mtime
                files.append(StoredFile(os.path.relpath(path, root), _size(status), used, identify(status)))
    return [*files, *_headers(root), *_built(root)], size


def _headers(root: str) -> Iterator[StoredFile]:
    """Yield precompiled headers; the lock files stay, and so do the text files that include recently used headers."""
    directory = os.path.join(root, layout.HEADERS_DIRECTORY)
    if any(map(os.path.islink, (directory, os.path.dirname(directory)))):  # a link's target is not in `root`
        return
    for stem, group in header_groups(layout.names(directory)).items():
        statuses = {name: _status(os.path.join(directory, name)) for name in group if name.endswith((".gch", ".json"))}
        present = {name: status for name, status in statuses.items() if status is not None}
        if present and not stem.startswith(BUILDING):
            used = max((status.st_mtime for name, status in present.items() if name.endswith(".json")), default=0.0)
            size = sum_of(map(_size, present.values()))
            yield StoredFile(os.path.join(layout.HEADERS_DIRECTORY, stem), size, used)


def _built(root: str) -> Iterator[StoredFile]:
    """Yield the directories of `held_directories`, each as one file. Their times are those of their last use."""
    for name in held_directories.names(root):
        path = os.path.join(layout.BUILT_DIRECTORY, name)
        if (status := _status(os.path.join(root, path))) is not None and stat.S_ISDIR(status.st_mode):
            size = sum_of(_size(one) for _, one in _walk(os.path.join(root, path)))
            yield StoredFile(path, size, status.st_mtime)


def header_groups(names: Iterable[str]) -> dict[str, list[str]]:
    """Group the names of files by the stem of their precompiled header."""
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(name if name.startswith(BUILDING) else name.split(".")[0], []).append(name)
    return groups


# ---------------------------------------------------------------- all files


def measure(root: str) -> dict[str, Size]:
    """Return the size of every kind of file. The root directory counts as host facts. Raises OSError."""
    sizes = dict.fromkeys(layout.KINDS, Size())
    try:
        sizes[layout.FACTS] += Size(0, _blocks(os.lstat(root)))
        names = os.listdir(root)
    except (FileNotFoundError, NotADirectoryError):
        return sizes
    seen: set[tuple[int, int]] = set()
    for name in names:
        for path, status in _walk(os.path.join(root, name)):
            if (status.st_dev, status.st_ino) not in seen:
                seen.add((status.st_dev, status.st_ino))
                sizes[layout.kind_of(os.path.relpath(path, root))] += _size(status)
    return sizes


def _walk(path: str) -> Iterator[tuple[str, os.stat_result]]:
    """Yield `path` and all paths below it with their status."""
    try:
        status = os.lstat(path)
        names = os.listdir(path) if stat.S_ISDIR(status.st_mode) else []
    except FileNotFoundError:
        return
    yield path, status
    for name in names:
        yield from _walk(os.path.join(path, name))


def _status(path: str) -> os.stat_result | None:
    try:
        return os.lstat(path)
    except OSError:
        return None


def identify(status: os.stat_result) -> State:
    """Return the state of a file."""
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _size(status: os.stat_result) -> Size:
    return Size(int(not stat.S_ISDIR(status.st_mode)), _blocks(status))


def _blocks(status: os.stat_result) -> int:
    return status.st_blocks * 512


def _blocks_of(directory: str) -> int:
    status = _status(directory)
    return _blocks(status) if status is not None else 0


def _exceeds(value: int, limit: int | None) -> bool:
    return limit is not None and value > limit
