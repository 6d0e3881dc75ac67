"""Runs opaque jobs in forked workers: where, under which limits, and what happens if one dies. No torch in here.

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
                                            │   Submit (a sub-job), Ask, Waiting, Resume    │
                                            └──> sub-jobs run in workers like any other <───┘

Every arrow is a socket whose end means the death of its peer, so no process keeps a copy of another's end.

The caller's process:

    client             PoolClient: submit, status, close
    job_spec           JobSpec: where a job runs, its limits, its priority
    job                Job: result, cancel, callbacks
    session            a connection to a server, from finding or starting it to the end of either
    launch             starts a server of the caller's own, or finds or starts the host's
    inherited          sockets, children and locks that a forked child must not keep
    identity           names the environment a host's server belongs to
    config             PoolConfig: the settings a pool is started with
    turns              turns to measure on this host, over all processes
    bystanders         processes that are no workers, and stand still like them
    marks              marks on processes, and on all that they start
    guard              ends what a process that was killed has left
    pausing            has servers stand still while this process measures
    hosts              lists, queries and stops this host's servers from outside
    ending             ends one of them, even one that does not answer

The server:

    server             clients, the zygote, the server's end
    dispatcher         jobs and workers: carries out the scheduler's decisions
    scheduler          decisions: a state machine, no I/O
    scheduler_state    the scheduler's records of jobs and workers
    decisions          actions for the server to carry out, outcomes for callers
    outcomes           records of jobs and workers, and the message that reports a job's end
    bounds             the limits of running jobs
    pauses             clients that measure, and what stands still for them
    watch              compares those with what jobs take
    limits             how many workers: affinity, CPU quota, memory
    memory             memory used by jobs and left on the host
    causes             why a worker ended, in a sentence
    records            logs on their way to the clients that read them
    job_events         progress of jobs, for clients that watch them
    questions          what workers ask the callers of their jobs
    report             job records for `fxpool status`
    history            remembers jobs for who looks on
    predecessor        ends a server that hung
    zygote_link        the server's end of the zygote

Zygote and workers:

    zygote             the process that forks
    worker             runs a job; current_job()

Used at both ends of a socket:

    messages           one Struct per message, one union per direction
    protocol           frames, and who the peer is
    connection         frames in asyncio
    exceptions         an exception and its frames, from a worker to its caller
    logs               records and warnings, likewise
    runtime_dir        the directories of sockets and logs
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
