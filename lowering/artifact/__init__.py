"""Stores a compiled graph as bytes, looks it up again, and loads it as a callable.

    entry_content         contents of an entry besides blobs and guards: effects, decisions, choices
    entry_parts           the parts of a compiled graph, published as an entry or carried inline
    publishing            publishes results, and reports those that are not cached
    side_effects          side effects of a compile (guards, restarts): recorded in the worker, replayed on load
    torch_artifacts       entries in the files of torch.compiler.save_cache_artifacts()
    lookup                finds the entry that may serve a call
    sharing               the remote cache behind the local store: downloads and uploads
    miss_records          the last misses of the process, for ``fxpool.explain``
    torch_cache_clearing  removes entries when a program clears torch's caches
    load                  builds the callable, under the state and for the inputs of this call
    eager_graph           an entry's graph, run uncompiled where Dynamo makes none
    recompute_outcome     compares a cached graph with its second compile
    portable_graph        graphs that carry their own parts, for Dynamo's files

Imports `request`, `cpp`, `cuda` and `core`.
"""
