"""The fallback chain: at which level a graph is compiled, and the next step after a failure.

    chain           the levels in order: the Dynamo graph, the graphs after AOTAutograd, in this process
    dynamo_graph    the first level: the graph as Dynamo made it, whole, in pieces or in stages
    aot_graphs      the second level: each graph that AOTAutograd makes

Imports all other parts of `lowering` but `regions`.
"""
