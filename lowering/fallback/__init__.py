"""The fallback chain: at which level a graph is compiled, and the next step after a failure.

    chain            the levels in order: the Dynamo graph, the graphs after AOTAutograd, in this process
    remote           the compile of one captured graph in a worker, with the worker's queries
    farm             the jobs that a farm may run, and their results
    recording        records graphs for another machine instead of compiling them
    turns            waits while another machine compiles the graph
    aot_graphs       the second level: a worker compiles each graph that AOTAutograd makes
    eager            runs a graph eagerly after it killed its workers
    unimportable     records modules that workers cannot import
    failed_levels    records levels that failed, so that no process tries them again

Imports all other parts of `lowering`.
"""
