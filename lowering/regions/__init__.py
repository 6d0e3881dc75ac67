"""Compiles a graph in pieces: equal blocks of a model once, and the pieces side by side.

    cut_points      a Dynamo graph, and the places where it may be cut
    symbols         matches symbols of two pieces that differ in name only
    pieces          makes an interval of a graph a separate graph, and compares two of them
    plan            the tree of module calls that a graph was traced from, and the cuts that are worth making
    cut             chooses the cuts of a graph
    compose         composes the pieces' callables into one line of generated code
    recipes         composes the callable of a graph again without the graph
    compile_pieces  compiles a graph to the composed callable, or gives the reason why it stays whole

Imports `request`, `artifact`, `fallback` and `core`. A piece is a graph like any other: it has its own key, entry and
fallback chain.
"""
