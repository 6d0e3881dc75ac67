"""Who runs a job, where, and what if it dies? Opaque jobs in forked workers; no torch in here.

    the user's process                 server (asyncio)                 zygote (one thread, preloaded)
    ┌────────────────┐  Submit        ┌──────────────────┐  Fork+fd    ┌──────────────────┐
    │ PoolClient     │ ─────────────> │ scheduler        │ ──────────> │ fork, reap, kill │
    │   Job.result() │ <───────────── │  queue, slots,   │ <────────── │                  │
    │ replays logs,  │  Done, Failed, │  retries         │  Forked,    └──────────────────┘
    │ warnings,      │  LogRecord,    │ (carries payload │  Exited          │ fork, one per job
    │ exceptions     │  WarningRecord │  as it came)     │                  v
    └────────────────┘                └──────────────────┘  Run+input  ┌──────────────────┐
            Unix socket in a private        │      ^  └──────────────> │ worker           │─┐
            directory, peer's uid checked   │      └────────────────── │ runs one job     │ │ g++, ...: its
                                            │   Returned, LogRecord    └──────────────────┘ │ process group
                                            │   Submit (a sub-job), Waiting, Resume         │
                                            └──> sub-jobs run in workers like any other <───┘

Every arrow is a socket whose end means the death of who was behind it, so nobody keeps a copy of another's end.

The caller's process:

    client             PoolClient: submit, status, close
    job_spec           JobSpec: where a job runs, under which limits, before which others
    job                Job: result, cancel, callbacks
    session            a connection to a server, from finding or starting that to the end of either
    launch             starts a server of the caller's own, or finds or starts the host's
    identity           which environment a host's server belongs to
    config             PoolConfig: what a pool is started with
    hosts              a look at this host's servers from outside
    ending             ends one of them, whether it answers or not

The server:

    server             clients, the zygote, the server's end
    dispatcher         jobs and workers: does what is decided
    scheduler          decisions: a state machine, no I/O
    scheduler_state    what it knows of jobs and workers
    decisions          actions for the server to carry out, outcomes for callers
    outcomes           records of jobs and workers, and what a caller is told of a job's end
    bounds             what a job may take while it runs
    watch              compares that with what it takes
    limits             how many workers: affinity, CPU quota, memory
    memory             what jobs take and the host has
    causes             why a worker ended, in a sentence
    records            logs on their way to the clients that read them
    job_events         what becomes of jobs, for clients that watch them
    report             what `fxpool status` tells of jobs
    predecessor        the end of a server that hung
    zygote_link        the server's end of the zygote

Zygote and workers:

    zygote             the process that forks
    worker             runs a job; current_job()

What both ends of a socket use:

    messages           what is said: one Struct per message, one union per direction
    protocol           frames, and who the peer is
    connection         frames in asyncio
    exceptions         an exception and its frames, from a worker to its caller
    logs               records and warnings, likewise
    runtime_dir        where sockets and logs lie
    processes          death signals, adoption of orphans, killing groups
"""

from __future__ import annotations

from fxpool.pool.client import PoolClient
from fxpool.pool.config import PoolConfig
from fxpool.pool.exceptions import RemoteError
from fxpool.pool.job import Job
from fxpool.pool.job_spec import JobSpec
from fxpool.pool.limits import default_workers
from fxpool.pool.worker import JobContext, current_job

__all__ = ["Job", "JobContext", "JobSpec", "PoolClient", "PoolConfig", "RemoteError", "current_job", "default_workers"]
