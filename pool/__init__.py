"""Runs opaque jobs in forked workers, enforces their limits and retries jobs whose worker died. Never imports torch.

    the user's process                 server (asyncio)                 zygote (one thread, preloaded)
    ┌────────────────┐  Submit        ┌──────────────────┐  Fork+fd    ┌──────────────────┐
    │ PoolClient     │ ─────────────> │ scheduler        │ ──────────> │ fork, reap, kill │
    │   Job.result() │ <───────────── │  queue, slots,   │ <────────── │                  │
    │ replays logs,  │  Done, Failed, │  retries         │  Forked,    └──────────────────┘
    │ warnings,      │  LogRecord,    │ (forwards the    │  Exited          │ fork, one per job
    │ exceptions     │  WarningRecord │  payload as is)  │                  v
    └────────────────┘                └──────────────────┘  Run+input  ┌──────────────────┐
            Unix socket in a private        │      ^  └──────────────> │ worker           │─┐
            directory, peer's uid checked   │      └────────────────── │ runs one job     │ │ g++, ...: its
                                            │   Returned, LogRecord    └──────────────────┘ │ process group
                                            │   Submit (a sub-job), Ask, Waiting, Resume    │
                                            └──> sub-jobs run in workers like any other <───┘

Every arrow is a socket. When a socket closes, its peer is taken to be dead, so no process may hold a copy of another
process's socket.

    client    in the caller's process: finds or starts a server, submits jobs
    server    serves clients, schedules jobs, enforces limits; its decisions are separate from I/O
    worker    the zygote, and the workers that it forks
    wire      messages, frames and their contents: configuration, exceptions, logs
    host      limits, memory and processes of this machine, and the runtime directory
"""

from __future__ import annotations

from fxpool.pool.client.client import PoolClient
from fxpool.pool.client.job import Job
from fxpool.pool.host.limits import default_workers
from fxpool.pool.wire.config import PoolConfig
from fxpool.pool.wire.exceptions import RemoteError
from fxpool.pool.wire.job_spec import JobSpec, Preparation
from fxpool.pool.worker.worker import JobContext, current_job

__all__ = [
    "Job", "JobContext", "JobSpec", "PoolClient", "PoolConfig", "Preparation", "RemoteError", "current_job",
    "default_workers",
]  # fmt: skip
