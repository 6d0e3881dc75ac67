"""The directories and files in a cache directory that are fxpool's: one table of them.

    entries, blobs                           see `store.py`
    kernels                                  compiled kernels, see `kernel_files.py`
    toolchain/headers                        precompiled headers, 150 MB each
    toolchain/..., slower, failed, lowered   facts about compilers, CPUs and GPUs of hosts; about stages, levels, graphs
    stats                                    counts of the host's processes, by day
    quarantine                               graphs that killed workers, with the end of their workers' output
    aside                                    files that failed verification
    index                                    the sizes of all this, see `index.py`
    pending                                  names of entries to upload, see `remote/pending.py`

Files of other names may be the user's; they are counted, and never removed.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = [
    "ASIDE", "BLOBS", "CLAIM", "CLEARED", "DIRECTORIES", "ENTRIES", "FACTS", "FOREIGN", "HEADERS", "INDEX", "KERNELS",
    "KINDS", "PARTS", "QUARANTINE",
]  # fmt: skip

ENTRIES, BLOBS, KERNELS, HEADERS = "entries", "blobs", "kernels", "precompiled headers"
FACTS, QUARANTINE, ASIDE, INDEX, FOREIGN = "host facts", "quarantine", "set aside", "index", "not fxpool's"
#: The kinds of files by which sizes are shown, in the order of display.
KINDS = (ENTRIES, BLOBS, KERNELS, HEADERS, FACTS, QUARANTINE, ASIDE, INDEX, FOREIGN)

#: The file by which a process claims eviction.
CLAIM = ".evicting"


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
    "pending": _Part(FACTS, of_graphs=True),
    "index": _Part(INDEX, of_graphs=True),
    "stats": _Part(FACTS),
    "toolchain": _Part(FACTS),
    ".swept": _Part(FACTS),
    CLAIM: _Part(FACTS),
}
DIRECTORIES = tuple(name for name in PARTS if not name.startswith("."))
CLEARED = tuple(name for name, part in PARTS.items() if part.of_graphs)
