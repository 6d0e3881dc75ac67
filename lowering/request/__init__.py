"""From what Dynamo hands over to plain data that can travel, and its key.

    capture            graph, inputs, sources and shapes as a request, and the key of the cache
    compile_request    the request: all that a worker needs
    ambient            the state of the process that shapes code: captured, in the key, re-entered
    variables          environment variables that shape code
    needed             modules, libraries and definitions that a graph needs elsewhere
    placement          the graph's CUDA devices
    overlap            which inputs share memory

Imports no other part of `lowering`.
"""
