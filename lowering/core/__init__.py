"""The base of all other parts of `lowering`: options, attempts, the process's runtime.

    options              options and mode of a call of ``torch.compile``, checked and parsed
    attempt              the state of one graph's compile: settings, key, outcome, reasons
    runtime              the state of the process: pool, stores, and per-process parts of other modules
    pool_environment     the environment variables, import path and limits of the pool's processes and jobs
    quiescence           ends threads and closes connections before a checkpoint of the process
    cache_alarm          says at exit that a process's graphs were compiled without any use of the cache
    host_report          adds the process's counters to the host's statistics
    farm_orders          the input of a job that a farm's machine runs for another host
    shared_remote        the level of the remote cache that the whole process uses
    table_origins        asks a worker which entries of Inductor's tables are torch's own
    switched_off         one-time warnings that a part of fxpool is disabled
    scratch_directories  temporary directories for Inductor and Triton

Imports no other part of `lowering`.
"""
