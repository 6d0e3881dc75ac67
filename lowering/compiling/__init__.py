"""The compile of one captured graph, which all modes and levels of the fallback chain share.

    graph_compile    looks a graph up, or has it compiled, and loads the result
    remote           the compile in a worker, with the worker's queries
    farm             the jobs that a farm may run, and their results
    graph_leases     waits while another machine compiles the graph
    graph_recording  records graphs for another machine instead of compiling them
    eager            runs a graph eagerly after it killed its workers
    refusals         code that workers cannot have and levels that failed, so that no process tries them again

Imports `artifact`, `request`, `cpp`, `cuda`, `core`, and `worker` for compiles in this process.
"""
