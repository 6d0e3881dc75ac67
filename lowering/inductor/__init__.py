"""Stock Inductor on the host's pool, between ``fxpool.install()`` and ``fxpool.uninstall()``.

    torch.compile(backend="inductor")
      ├─ kernels   AsyncCompile          ──▶ `KernelPool`  ──▶ the pool ──▶ worker: `run_kernel`
      ├─ graphs    FX_COMPILE_MODE=      ──▶ `GraphPool`   ──▶ the pool ──▶ worker: `run_graph`
      │            subprocess                                   its C++ in threads, its Triton in sub-jobs
      └─ graphs    async+, progressive+  ──▶ the backend "fxpool" in that mode
    standalone_compile, compile_fx(..., inner_compile=...)
      └─ graphs    after AOTAutograd     ──▶ `direct_calls`  ──▶ fxpool's cache ──▶ the pool

``async+`` and ``progressive+`` behave as with ``backend="fxpool"``, with its guarded cache. Direct calls use it, too,
behind torch's own caches. The other two paths do not: Inductor caches in the program's directories, which workers read
and write as the program does. A job is a pickle; it runs with the program's environment, configuration and switches. A
job that the pool cannot run is done in the program's process as without fxpool, and counted. A job that killed its
workers twice is an error, as Inductor has no eager form of a graph to fall back to.

    installation    install and uninstall
    pools           `KernelPool` and `GraphPool`, which replace Inductor's pools; input and result of a job
    jobs            the worker's side: compiles a kernel or a graph
    direct_calls    graphs of programs that call ``standalone_compile`` or ``compile_fx`` themselves
    engine_plugin   installs in the processes of vLLM and SGLang
    program_run     installs in a program of ``fxpool run``, and reports its counters
"""
