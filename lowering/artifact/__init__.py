"""A compiled graph as bytes, and back into something callable.

    content        what an entry holds besides blobs and guards: effects of the compile, decisions, choices
    entry_parts    what a compile gives: published as an entry of a store, or carried inline
    publishing     into a store, and what is said of results that are not kept
    effects        what a compile does besides returning code (guards, restarts): recorded there, replayed here
    saved          entries that torch.compiler.save_cache_artifacts() takes along, and what loading does
    lookup         the entry of the stores that may be served to this call
    sharing        the remote cache behind the local one: which there is, what is looked for there and sent
    miss_records   the last misses of the process, for those who ask why
    clearing       what a program that clears torch's caches clears of them
    load           the callable, under the state and for the inputs of this call
    recomputed     how a second compile of a kept graph differs from the first
    portable       a graph that carries its own parts, for files of Dynamo's

Imports `request`, `cpp`, `cuda` and `core`.
"""
