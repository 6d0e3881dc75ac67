"""Stock Inductor on the host's pool, between ``fxpool.install()`` and ``fxpool.uninstall()``.

    torch.compile(backend="inductor")
      ├─ kernels   AsyncCompile          ──▶ `KernelPool`  ──▶ the pool ──▶ worker: `run_kernel`
      ├─ graphs    FX_COMPILE_MODE=      ──▶ `GraphPool`   ──▶ the pool ──▶ worker: `run_graph`
      │            subprocess                                   its C++ in threads, its Triton in sub-jobs
      └─ graphs    async+, progressive+  ──▶ the backend "fxpool" in that mode

Under ``async+`` and ``progressive+`` everything is as with ``backend="fxpool"``, the guarded cache too. Otherwise that
cache is not used: what is kept is kept by Inductor, in the program's directories, where workers read and write as the
program does. A job is a pickle, in a process that has the program's environment, configuration and switches. What the
pool does not do is done in the program's process as without fxpool, and counted; what killed its workers twice is an
error, as Inductor has no eager form of a graph to give instead.

    installation    install and uninstall
    pools           in the process that compiles: `KernelPool` and `GraphPool`, in the place of Inductor's own
    jobs            in a worker: a kernel, or a graph
    records         a job's input and its result, as both ends know them
"""
