"""Publishes compiled graphs in a store, and reports those that cannot be cached."""

from __future__ import annotations

import dataclasses
import time

import torch

from fxpool import counters, notices
from fxpool.codecache.key.key import GraphKey
from fxpool.codecache.store.entry import Entry, Metadata
from fxpool.codecache.store.store import LocalStore
from fxpool.errors import StoreError
from fxpool.lowering.artifact import eager_graph, sharing, torch_artifacts
from fxpool.lowering.artifact.entry_content import Content
from fxpool.lowering.artifact.entry_parts import (
    BUILT,
    COMPILER_CHANGED,
    GRAPH,
    HEADERS_UNLISTED,
    LIBRARY,
    REQUEST,
    RESULT,
    TRITON,
    Artifact,
)
from fxpool.lowering.core import switched_off
from fxpool.lowering.core.attempt import Attempt
from fxpool.lowering.request.compile_request import AOT, PACKAGE, CompileRequest
from fxpool.torch_compat.dynamo import torch_counters

__all__ = ["is_admitted", "publish", "publish_if_kept"]

log = notices.logger(__name__)


def publish(artifact: Artifact, key: GraphKey, store: LocalStore, request: CompileRequest) -> Entry:
    """Write an artifact into a store, under `key`; `request` describes it for people. Raises StoreError."""
    blobs = {RESULT: artifact.result}
    if artifact.library is not None:
        blobs[LIBRARY] = artifact.library
    if artifact.triton is not None:
        blobs[TRITON] = artifact.triton
    blobs |= {f"{BUILT}{number}": library for number, library in enumerate(artifact.built)}
    if request.level == AOT and artifact.effects.mutated_inputs and (graph := eager_graph.packed(request)):
        blobs[GRAPH] = graph
    if request.keep_request and request.level != PACKAGE and (dumped := _dumped(request)):
        blobs[REQUEST] = dumped
    entry = Entry(
        key=key.digest,
        components=list(key.components),
        detail=key.detail,
        guards=artifact.guards,
        content=Content(
            level=artifact.level, effects=artifact.effects, decisions=artifact.decisions, graphs=artifact.graphs
        ),
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


def _dumped(request: CompileRequest) -> bytes:
    """Return the request as bytes, without paths of this host; empty if it does not pickle, as in its own process."""
    try:
        return dataclasses.replace(request, store=None, toolchain_dir=None, rejected_entries=(), logs=None).dump()
    except Exception as error:  # pickling a program's objects may raise anything
        log.info("%s is stored without its request: %s", request.label, error)
        return b""


def is_admitted(artifact: Artifact, request: CompileRequest) -> bool:
    """Return whether an artifact took long enough to compile to be cached (`cache_min_seconds`)."""
    return request.bounds is None or artifact.seconds >= request.bounds.min_seconds


def publish_if_kept(artifact: Artifact, request: CompileRequest, store: LocalStore | None, attempt: Attempt) -> None:
    """Publish an artifact that has a key; an artifact that cannot be cached is a bypass, not an error.

    The compile itself may have found a reason not to cache it (`Artifact.unkept`).
    """
    key = request.key_of(artifact.has_cpp())
    if key is None or store is None:
        return
    if artifact.unkept == COMPILER_CHANGED:
        attempt.bypass("compiler_changed")
        switched_off.say_compiler_changed()
        return
    if artifact.unkept == HEADERS_UNLISTED:
        attempt.bypass("headers_unlisted")
        return
    if not is_admitted(artifact, request):
        attempt.bypass("compiled_fast")
        return
    if store.is_over():
        attempt.bypass("fresh_cache_over")
        return
    why: object = artifact.unkept
    if not why:
        try:
            entry = publish(artifact, key, store, request)
        except StoreError as error:
            artifact.unkept, why = str(error), error
        else:
            counters.count("entries_written")
            if request.level != PACKAGE:  # torch has no cache of packages
                torch_artifacts.record(entry, store)
                torch_counters.saved(before_autograd=request.level == AOT)
            sharing.offer(entry, store, attempt.settings)
            return
    attempt.bypass("store_write_failed")
    switched_off.say_not_kept(why)
