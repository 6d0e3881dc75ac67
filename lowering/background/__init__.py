"""Modes in which the program does not wait for its code: ``async+`` and ``progressive+``.

    stages      the stages of a call, without those measured as slower on this host
    compiles    compiles the next stage while the graph runs eagerly or in an earlier stage
    swap        the callable given to Dynamo: switches to better code between two calls

Imports `compiling`, `request`, `artifact` and `core`.
"""
