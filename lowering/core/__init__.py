"""The base of all other parts of `lowering`: options, attempts, the process's runtime.

    options             what the caller of ``torch.compile`` asked for, and the mode
    attempt             one graph on its way, and what has happened to it so far
    runtime             the state of the process: pool, stores, and what other parts keep
    pool_environment    what the pool's processes are told of this one's environment
    host_report         adds the process's counters to the host's statistics
    job_place           the jobs of this process: where they run, and what they may take
    job_progress        a job of the pool as those see it who watch
    switched_off        what is said once when a part of fxpool is off
    scratch             directories for what Inductor and Triton write

Imports no other part of `lowering`.
"""
