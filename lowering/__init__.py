"""How a graph becomes something callable: capture, compile in a worker, link, load, modes.

    torch.compile(backend="fxpool") ──▶ entry_point      a pool is started where nothing is kept
    Dynamo ──▶ backend.fxpool_backend
                 │ options      what the caller asked for, the mode
                 │ capture      graph, inputs, sources, shapes, ambient state ──▶ CompileRequest + GraphKey
                 │ lookup       entries of that key whose guards hold for this call
                 │    hit ──────────────────────────────────────────────┐
                 │    miss ──▶ service: the pool ──▶ worker.compile_job │
                 │                                     compile   AOTAutograd + Inductor (torch's)
                 │                                     kernels   C++ in few units, sub-jobs; one library
                 │                                     wrapper   the generated module, as code that needs no compiler
                 │                                     artifact  published, or sent back as it is
                 ▼                                                      ▼
               ladder: graph as Dynamo made it ▷ after AOTAutograd ▷ in this process      load, effects
                                                                                             │
                                                                        callable ◀── overlap ┘

Before it forks workers the zygote has imported the compiler, and when nobody waits it rehearses
(`rehearsal`). What a host's tool chain can do (`host_facts`) and the header of all kernels
(`precompiled_header`) are found and compiled once, on cores that nobody else wants: the first graph
takes the CPU at its word and includes the header as text. What is loaded is a pickle of torch's
runtime records, the wrapper's code and one `library`; `unit_source` is that library's C++, and `executable` has it
loaded from where nothing may be executed.

A step down the ladder is counted under a named reason. `ambient` is the state of the process that
shapes code; it is captured once per request, is in the key, and is re-entered wherever a request
is compiled or an entry loaded. What a compile does to its surroundings besides returning code
(guards, restarts) is recorded and replayed by `effects`. A graph that killed its workers is not
compiled again (`quarantined`), and what failed at one level is not tried there again (`tried`).
In mode ``async+subprocess`` a miss returns at once with the graph as it is, and changes over to
what a worker made when that is there (`background`). After
``fxpool.install()`` stock Inductor sends what it compiles to the same pool (`borrowed`).
"""
