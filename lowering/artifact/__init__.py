"""A compiled graph as bytes, and back into something callable.

    entry_parts    what a compile gives: published as an entry of a store, or carried inline
    effects        what a compile does besides returning code (guards, restarts): recorded there, replayed here
    lookup         the entry of the stores that may be served to this call
    load           the callable, under the state and for the inputs of this call

Imports `request`, `cpp`, `cuda` and `core`.
"""
