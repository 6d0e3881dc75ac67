"""A graph in pieces: blocks of a model that are equal are compiled once, and pieces are compiled side by side.

    calls            the tree of module calls that a graph was traced from
    traced           a graph as Dynamo made it, and where it may be cut
    symbols          symbols of two pieces that mean the same under different names
    pieces           an interval of it as a graph of its own, and what tells two of them apart
    plan             which cuts are worth making: decisions on numbers only
    cut              where a graph is cut
    compose          the pieces' callables in one line of generated code
    compile_pieces   from a graph to the composed callable, or the reason why it stays whole

Imports `request`, `artifact`, `fallback` and `core`. A piece is a graph like any other: it has its own key, entry and
fallback chain.
"""
