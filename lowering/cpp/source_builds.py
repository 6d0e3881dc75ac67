"""Stores libraries of CUDA and ROCm sources, each under its own key.

A graph's entry has the library of each template that it uses. Candidates that lost, and equal templates of other
graphs, are in no entry, although nvcc takes half a minute for each. So each library is stored as a separate entry, too;
its blob and a graph's blob of equal bytes are the same file.

    source, command without paths, compiler, headers ──▶ key ──▶ found, or built and published
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Sequence

import torch

from fxpool import notices
from fxpool.codecache.key import source_toolchain
from fxpool.codecache.key.key import canonical
from fxpool.codecache.store.entry import Component, Entry, Metadata
from fxpool.codecache.store.store import LocalStore
from fxpool.errors import StoreError
from fxpool.lowering.cpp.built_libraries import placeless
from fxpool.torch_compat.cpp import source_compilers

__all__ = ["ROLE", "SOURCE", "StoredBuilds", "kept_in", "key_of"]

log = notices.logger(__name__)

#: The level of these entries, beside those of graphs.
SOURCE = "source"
#: The role of the library among the entry's blobs: the same as a graph's result.
ROLE = "result"


def key_of(kind: str, source: str, words: Sequence[str], facts: dict[str, str]) -> tuple[str, list[Component]]:
    """Return the key of a library and its components; `words` are its command, `facts` its compiler's."""
    parts = {"source": source, "command": source_compilers.without_places(words), "compiler": facts, "kind": kind}
    components = [
        Component(name, hashlib.sha256(canonical(part)).hexdigest(), "" if name == "source" else repr(part))
        for name, part in parts.items()
    ]
    whole = "\n".join(f"{one.name} {one.digest}" for one in components)
    return hashlib.sha256(f"fxpool source\n{whole}".encode()).hexdigest(), components


class StoredBuilds:
    """The libraries of a store; `toolchain_dir` is the directory of facts about compilers."""

    def __init__(self, store: LocalStore, toolchain_dir: str | None) -> None:
        self._store, self._tools = store, toolchain_dir

    def _key(self, kind: str, source: str, words: Sequence[str]) -> tuple[str, list[Component]]:
        return key_of(kind, source, words, source_toolchain.compiler_facts(kind, self._tools))

    def find(self, kind: str, source: str, words: Sequence[str]) -> bytes | None:
        """See `source_compilers.Builds`."""
        key, _ = self._key(kind, source, words)
        for entry in self._store.entries(key):
            library = self._store.read_blob(entry.blobs[ROLE]) if ROLE in entry.blobs else None
            if library is not None:
                self._store.mark_used(entry)
                return library
        return None

    def keep(self, kind: str, source: str, words: Sequence[str], library: bytes, seconds: float) -> None:
        """See `source_compilers.Builds`. Never raises: after a failure, the library is built again."""
        key, components = self._key(kind, source, words)
        library = placeless(library, (os.environ.get("TORCHINDUCTOR_CACHE_DIR"), self._tools))
        told = Metadata(
            label=f"{kind} source", created=time.time(), compile_seconds=seconds, torch_version=str(torch.__version__)
        )
        entry = Entry(key=key, components=components, content={"level": SOURCE}, metadata=told)
        try:
            self._store.publish(entry, {ROLE: library})
        except StoreError as error:
            log.warning("could not store a built %s source, the next graph will build it again: %s", kind, error)


def kept_in(store: str | None, toolchain_dir: str | None) -> contextlib.AbstractContextManager[None]:
    """Look up libraries of sources in a store inside the ``with`` block, and publish new ones; None: no store."""
    if store is None:
        return contextlib.nullcontext()
    try:
        builds = StoredBuilds(LocalStore(store), toolchain_dir)
    except StoreError as error:
        log.warning("building sources without a store: %s", error)
        return contextlib.nullcontext()
    return source_compilers.reusing_builds(builds, time.perf_counter)
