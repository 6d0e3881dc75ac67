"""The layout of a cache directory: the one table of its names, paths of entries and blobs, removal of files.

    entries, blobs                           see `store.py`
    kernels                                  compiled kernels, see `kernel_files.py`
    directories                              directories made of entries, see `held_directories.py`
    building                                 locks of builders, see `fxpool.jits.turns`
    toolchain/headers                        precompiled headers, 150 MB each
    toolchain/..., slower, failed, lowered   facts about compilers, CPUs and GPUs of hosts; about stages, levels, graphs
    stats                                    counts of the host's processes, by day
    quarantine                               graphs that killed workers, with the end of their workers' output
    aside                                    files that failed verification
    index                                    the sizes of all this, see `index.py`
    pending                                  names of entries to upload, see `remote/pending.py`

Files of other names may be the user's; they are counted, and never removed. A directory that is missing, or disappears
while it is listed, counts as empty: another process may clear the cache at any time.
"""

from __future__ import annotations

import os
import re
import stat
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from fxpool.codecache.store.blobs import BlobRef

__all__ = [
    "ASIDE", "BLOBS", "BUILDING_DIRECTORY", "BUILT", "BUILT_DIRECTORY", "CLAIM", "CLEARED", "DIRECTORIES", "ENTRIES",
    "ENTRY_SUFFIX", "FACTS", "FOREIGN", "HEADERS", "HEADERS_DIRECTORY", "INDEX", "KERNELS", "KINDS", "PARTS",
    "QUARANTINE", "TEMPORARY_PREFIX", "blob_path", "entry_path", "is_hex_digest", "key_directory", "kind_of", "names",
    "remove_empty", "remove_tree",
]  # fmt: skip

ENTRIES, BLOBS, KERNELS, HEADERS = "entries", "blobs", "kernels", "precompiled headers"
BUILT = "directories"
FACTS, QUARANTINE, ASIDE, INDEX, FOREIGN = "host facts", "quarantine", "set aside", "index", "not fxpool's"
#: The kinds of files by which sizes are shown, in the order of display.
KINDS = (ENTRIES, BLOBS, KERNELS, HEADERS, BUILT, FACTS, QUARANTINE, ASIDE, INDEX, FOREIGN)

#: The file by which a process claims eviction.
CLAIM = ".evicting"
ENTRY_SUFFIX = ".entry"
TEMPORARY_PREFIX = ".tmp-"
HEADERS_DIRECTORY = os.path.join("toolchain", "headers")
BUILT_DIRECTORY = "directories"
BUILDING_DIRECTORY = "building"
_HEX64 = re.compile(r"[0-9a-f]{64}\Z")


class _Part(NamedTuple):
    """A directory with all its files, or one file; `toolchain` also has those of `HEADERS`.

    `of_graphs`: it goes when the graphs are cleared, as it says nothing about the host. `evicted`: over the limits, its
    files are evicted one by one: first those that are `never_served`, the others by the time of their last use.
    """

    kind: str
    of_graphs: bool = False
    evicted: bool = False
    never_served: bool = False


#: By name. Entries first, so that readers meet as few entries without blobs as possible while a cache is cleared.
PARTS = {
    "entries": _Part(ENTRIES, of_graphs=True),
    "blobs": _Part(BLOBS, of_graphs=True),
    "aside": _Part(ASIDE, of_graphs=True, evicted=True, never_served=True),
    "quarantine": _Part(QUARANTINE, of_graphs=True),
    "slower": _Part(FACTS, of_graphs=True, evicted=True),
    "failed": _Part(FACTS, of_graphs=True, evicted=True),
    "lowered": _Part(FACTS, of_graphs=True, evicted=True),
    "kernels": _Part(KERNELS, of_graphs=True, evicted=True),
    "directories": _Part(BUILT),
    "building": _Part(FACTS),
    "pending": _Part(FACTS, of_graphs=True),
    "index": _Part(INDEX, of_graphs=True),
    "stats": _Part(FACTS),
    "toolchain": _Part(FACTS),
    ".swept": _Part(FACTS),
    CLAIM: _Part(FACTS),
}
DIRECTORIES = tuple(name for name in PARTS if not name.startswith("."))
CLEARED = tuple(name for name, part in PARTS.items() if part.of_graphs)


def kind_of(relative: str) -> str:
    """Return the kind of a path below the root."""
    top = relative.split(os.sep, 1)[0]
    if relative == HEADERS_DIRECTORY or relative.startswith(HEADERS_DIRECTORY + os.sep):
        return HEADERS
    if top in PARTS:
        return PARTS[top].kind
    return FACTS if top.startswith(TEMPORARY_PREFIX) else FOREIGN


def is_hex_digest(text: str) -> bool:
    """Return whether `text` is a lower-case sha256."""
    return _HEX64.match(text) is not None


def key_directory(root: str, key: str) -> str:
    return os.path.join(root, ENTRIES, key[:2], key)


def entry_path(root: str, key: str, name: str) -> str:
    return os.path.join(key_directory(root, key), name + ENTRY_SUFFIX)


def blob_path(root: str, ref: BlobRef) -> str:
    """Return the path of a blob. Raises CorruptEntryError if the reference is not a digest and a size."""
    return os.path.join(root, ref.relative_path())


def names(directory: str) -> list[str]:
    """Return the names in a directory; an empty list if it can't be listed."""
    try:
        return os.listdir(directory)
    except OSError:
        return []


def remove_empty(directory: str) -> bool:
    """Remove a directory if it is empty; return whether it was removed."""
    try:
        os.rmdir(directory)
    except OSError:
        return False
    return True


def remove_tree(path: str, spared: str = "") -> None:
    """Remove a file or a tree, except for `spared`; does not follow links. Raises OSError.

    Skips parts that are gone, and leaves directories into which another process has published.
    """
    if path == spared and os.path.isdir(path):
        remove_empty(path)
        return
    try:
        if not stat.S_ISDIR(os.lstat(path).st_mode):
            os.unlink(path)
            return
        for name in os.listdir(path):
            remove_tree(os.path.join(path, name), spared)
    except (FileNotFoundError, NotADirectoryError):
        return
    remove_empty(path)
