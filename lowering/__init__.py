"""How a graph becomes something callable: capture, compile in a worker, link, load, modes.

    torch.compile(backend="fxpool") ──▶ entry_point      a pool is started where nothing is kept
    Dynamo ──▶ backend
                 │ core        what the caller asked for, the mode; the process's pool and stores
                 │ request     graph, inputs, sources, shapes, ambient state ──▶ plain data and a key
                 │ artifact    entries of that key whose guards hold for this call
                 │    hit ──────────────────────────────────────────────┐
                 │    miss ──▶ the pool ──▶ worker                      │
                 │                             AOTAutograd and Inductor (torch's)
                 │                             cpp, cuda: kernels, as sub-jobs
                 │                             published, or sent back as it is
                 ▼                                                      ▼
               fallback                                              artifact ──▶ callable
               the graph as Dynamo made it ▷ after AOTAutograd ▷ in this process

    entry_point      what torch finds under the name "fxpool" among its backends
    autoload         torch's cache artifacts may hold fxpool's entries, as soon as torch is imported
    backend          called by Dynamo for each graph
    compile_graph    the graph's way, with the call's options
    standalone       a graph without Dynamo behind it, for back ends that split graphs themselves
    packages         exported programs as packages of AOTInductor's
    verification     kept graphs compiled again and compared
    untested_torch   the same under a torch newer than any tested: what does not fit is Inductor's
    core             options, attempts, the process's pool and stores
    request          from what Dynamo hands over to a request and a key
    cpp              C++ kernels
    cuda             GPU kernels, compiled without a GPU
    artifact         a compiled graph as bytes, found again and loaded
    worker           what runs in a worker
    background       ``async+`` and ``progressive+``
    regions          a graph in pieces: equal blocks compiled once, pieces side by side
    fallback         where a graph is compiled, and what happens when that does not work
    inductor         stock Inductor on the same pool, after ``fxpool.install()``

Every step down is counted under a named reason. What is loaded is a pickle of torch's runtime records, the wrapper's
code and one library of kernels.
"""
