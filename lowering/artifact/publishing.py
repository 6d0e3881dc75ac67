"""Compiled graphs on their way into a store, and what is said of those that do not get there."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from fxpool import counters
from fxpool.codecache.entry import Entry, Metadata
from fxpool.codecache.key import GraphKey
from fxpool.codecache.store import LocalStore
from fxpool.errors import StoreError
from fxpool.lowering.artifact.content import Content
from fxpool.lowering.artifact.entry_parts import COMPILER_CHANGED, LIBRARY, RESULT, TRITON, Artifact
from fxpool.lowering.core import switched_off
from fxpool.lowering.request.compile_request import AOT, CompileRequest
from fxpool.torch_compat.dynamo import torch_counters

__all__ = ["publish", "publish_if_kept"]


def publish(artifact: Artifact, key: GraphKey, store: LocalStore, request: CompileRequest) -> Entry:
    """Write an artifact into a store, under `key`; `request` says for people what it is of. Raises StoreError."""
    blobs = {RESULT: artifact.result}
    if artifact.library is not None:
        blobs[LIBRARY] = artifact.library
    if artifact.triton is not None:
        blobs[TRITON] = artifact.triton
    entry = Entry(
        key=key.digest,
        components=list(key.components),
        guards=artifact.guards,
        content=Content(level=artifact.level, effects=artifact.effects, decisions=artifact.decisions),
        metadata=Metadata(
            label=request.label,
            created=time.time(),
            compile_seconds=artifact.seconds,
            torch_version=str(torch.__version__),
            extra=artifact.decisions.described(),
            origin=request.origin,
        ),
    )
    return store.publish(entry, blobs)


def publish_if_kept(
    artifact: Artifact, request: CompileRequest, store: LocalStore | None, bypass: Callable[[str], None]
) -> None:
    """Publish an artifact that has a key; one that can't be kept is a bypass, and no error.

    Where it was compiled, that may have been found out already (`Artifact.unkept`).
    """
    key = request.key_of(artifact.library is not None)
    if key is None or store is None:
        return
    if artifact.unkept == COMPILER_CHANGED:
        bypass("compiler_changed")
        switched_off.say_compiler_changed()
        return
    if store.is_over():
        bypass("fresh_cache_over")
        return
    why: object = artifact.unkept
    if not why:
        try:
            publish(artifact, key, store, request)
        except StoreError as error:
            artifact.unkept, why = str(error), error
        else:
            counters.count("entries_written")
            torch_counters.saved(before_autograd=request.level == AOT)
            return
    bypass("store_write_failed")
    switched_off.say_not_kept(why)
