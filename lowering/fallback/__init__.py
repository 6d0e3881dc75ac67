"""The fallback chain: where a graph is compiled, and what happens when that does not work.

    chain            the graph as Dynamo made it, else after AOTAutograd, else in this process
    remote           a worker's compile of one captured graph, with all that the worker may ask
    aot_graphs       the second of these: each graph that AOTAutograd makes, by a worker
    eager            the end of the chain for a graph that killed its workers: it runs as it is
    failed_levels    what failed at a level before, in whichever process, is not tried there again

Imports all other parts of `lowering`.
"""
