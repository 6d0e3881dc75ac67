"""Compiles cached graphs again in the pool, and compares the results: ``fxpool cache verify --recompute``.

An entry can be compiled again if its request was stored with it (the setting `keep_requests`). This finds errors that
digests cannot detect: code that was published under the wrong key, a compiler whose output changes from run to run, or
an influence on the code that is missing from the key.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from fxpool.codecache.store.entry import Entry
from fxpool.codecache.store.store import LocalStore
from fxpool.lowering.artifact.entry_parts import REQUEST, parts_of_entry
from fxpool.lowering.artifact.recompute_outcome import Recomputed, RecomputeQuestion
from fxpool.lowering.compiling import remote
from fxpool.lowering.core.runtime import runtime
from fxpool.lowering.request.compile_request import RECOMPUTE_JOB, CompileRequest

__all__ = ["recomputed", "sample"]


def sample(entries: Sequence[Entry], count: int, seed: int) -> list[Entry]:
    """Choose `count` of the entries that can be compiled again; the choice is determined by `entries` and `seed`."""
    able = sorted((entry for entry in entries if REQUEST in entry.blobs), key=lambda entry: (entry.key, entry.name))
    return random.Random(seed).sample(able, min(count, len(able)))


def recomputed(entries: Sequence[Entry], store: LocalStore, seed: int) -> Iterator[tuple[Entry, Recomputed | str]]:
    """Yield each entry with the outcome of compiling it again, or a text that says why that failed.

    All are submitted to the pool at once. Raises PoolError if there is no pool.
    """
    submitted = [(entry, _submitted(entry, store, seed)) for entry in entries]
    for entry, job in submitted:
        if isinstance(job, str):
            yield entry, job
            continue
        try:
            yield entry, msgspec.msgpack.decode(job.result(), type=Recomputed)
        except Exception as error:  # compiling the graph may raise anything, or end the worker
            yield entry, _words(error)


def _submitted(entry: Entry, store: LocalStore, seed: int) -> Any:
    """Return the job, or the reason why it cannot be submitted."""
    data = store.read_blob(entry.blobs[REQUEST])
    if data is None:
        return "its request is missing or damaged"
    try:
        request = CompileRequest.load(data)
        stored = parts_of_entry(entry, store).inline()
    except Exception as error:  # unpickling fails: missing code, another release of torch
        return _words(error)
    question = RecomputeQuestion(
        request=data, stored=stored, toolchain_dir=os.path.join(store.root, "toolchain"), seed=seed
    )
    return runtime.pool().submit(RECOMPUTE_JOB, msgspec.msgpack.encode(question), remote.spec_of(request))


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
