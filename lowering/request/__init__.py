"""Encodes Dynamo's graph and inputs as plain data that can be sent to a worker, with a key.

    capture            builds a request and its cache key from graph, inputs, sources and shapes
    captured           a request while its compile is tried, with the state that loading needs
    compile_request    the request: everything that a worker needs
    ambient            process state that affects code: captured, in the key, re-entered
    variables          environment variables that affect code
    needed             modules, libraries and definitions that another process needs for a graph
    placement          the graph's CUDA devices
    overlap            inputs that share memory

Imports no other part of `lowering`.
"""
