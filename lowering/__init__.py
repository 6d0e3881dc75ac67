"""Turns a graph into a callable: capture, compile in a worker, link, load; and the modes of compiling.

    torch.compile(backend="fxpool") ──▶ entry_point      starts the pool early if the cache is empty
    Dynamo ──▶ backend
                 │ core        options and mode of the call; the process's pool and stores
                 │ request     graph, inputs, sources, shapes, ambient state ──▶ plain data and a key
                 │ artifact    entries under that key whose guards hold for this call
                 │    hit ──────────────────────────────────────────────┐
                 │    miss ──▶ the pool ──▶ worker                      │
                 │                             AOTAutograd and Inductor (torch's)
                 │                             cpp, cuda: kernels, as sub-jobs
                 │                             publish the result, or return it inline
                 ▼                                                      ▼
               fallback, compiling                                   artifact ──▶ callable
               the Dynamo graph ▷ the graphs after AOTAutograd ▷ in this process

    entry_point      the object that torch looks up for the backend name "fxpool"
    autoload         registers fxpool's type of cache artifact when torch is imported
    backend          the function that Dynamo calls for each graph
    compile_graph    compiles one Dynamo graph with the options of its call
    standalone       graphs without Dynamo, for back ends that split graphs themselves
    packages         exported programs, compiled to AOTInductor packages
    verification     compiles cached graphs again and compares the results
    build_ahead      compiles graphs that another machine has recorded
    torch_release    decides whether torch is supported
    untested_torch   falls back to Inductor under a torch newer than the tested releases
    core             options, attempts, the process's pool and stores
    request          builds a request and a key from Dynamo's graph and inputs
    cpp              C++ kernels
    cuda             GPU kernels, compiled without a GPU
    artifact         compiled graphs as bytes: published, looked up, loaded
    worker           the code that runs in a worker
    background       the modes ``async+`` and ``progressive+``
    regions          compiles a graph in pieces: equal blocks once, pieces side by side
    compiling        the compile of one captured graph: look up, compile, load
    fallback         the fallback chain: at which level a graph is compiled
    inductor         stock Inductor on the same pool, after ``fxpool.install()``

Every fallback is counted under a named reason. Loading a compiled graph reads a pickle of torch's runtime records, the
wrapper's code and one library of kernels.
"""

import sys

if sys.platform != "linux":
    from fxpool import errors

    errors.require_linux()
