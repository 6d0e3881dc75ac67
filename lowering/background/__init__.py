"""Modes in which the program does not wait: ``async+`` and ``progressive+``.

    stages      which stages a call has, and which are known not to pay here
    compiles    compiles the next stage while the graph runs as it is, or as an earlier one
    swap        what Dynamo calls: changes over to better code between two calls

Imports `request`, `artifact` and `core`.
"""
