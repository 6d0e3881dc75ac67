"""A compiled graph as bytes, and back into something callable.

    content        what an entry holds besides blobs and guards: effects of the compile, decisions, choices
    entry_parts    what a compile gives: published as an entry of a store, or carried inline
    publishing     into a store, and what is said of results that are not kept
    effects        what a compile does besides returning code (guards, restarts): recorded there, replayed here
    lookup         the entry of the stores that may be served to this call
    clearing       what a program that clears torch's caches clears of them
    load           the callable, under the state and for the inputs of this call

Imports `request`, `cpp`, `cuda` and `core`.
"""
