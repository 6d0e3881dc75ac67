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

    client    the caller's process: submits jobs, and starts or finds a server
    server    clients, queue, slots, limits; decisions apart from I/O
    worker    the zygote, and the workers that it forks
    wire      messages, frames, and what they carry
    host      limits, memory, processes, the runtime directory
"""

from __future__ import annotations

from fxpool.pool.client.client import PoolClient
from fxpool.pool.client.job import Job
from fxpool.pool.client.job_spec import JobSpec
from fxpool.pool.host.limits import default_workers
from fxpool.pool.wire.config import PoolConfig
from fxpool.pool.wire.exceptions import RemoteError
from fxpool.pool.worker.worker import JobContext, current_job

__all__ = ["Job", "JobContext", "JobSpec", "PoolClient", "PoolConfig", "RemoteError", "current_job", "default_workers"]
