"""Encodes Dynamo's graph and inputs as plain data that can be sent to a worker, with a key.

    capture                builds a request and its cache key from graph, inputs, sources and shapes
    captured_graph         a request while its compile is tried, with the state that loading needs
    compile_request        the request: everything that a worker needs
    ambient_state          process state that affects code: captured, in the key, re-entered
    environment_variables  environment variables that affect code
    worker_requirements    modules, libraries and definitions that another process needs for a graph
    device_placement       the graph's CUDA devices
    overlapping_inputs     inputs that share memory

Imports no other part of `lowering`.
"""
