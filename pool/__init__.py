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
                                            │   Answer, LogRecord, ... └──────────────────┘ │ process group
                                            │   Submit (a sub-job), Waiting, Resume         │
                                            └──> sub-jobs run in workers like any other <───┘

Every arrow is a socket whose end means the death of who was behind it, so nobody keeps a copy of another's end.

    client       PoolClient: submit, status, close          messages     what is said
    job          Job: result, cancel, callbacks             protocol     frames, and who the peer is
    session      a connection to a server                   connection   frames in asyncio
    launch       starts a server, or finds the host's       exceptions   an exception and its frames, across
    identity     whose server is whose                      logs         records and warnings, across
    config       PoolConfig                                 limits       how many workers: affinity, CPU quota
    server       clients, the zygote, the server's end      runtime_dir  where sockets and logs lie
    dispatcher   jobs and workers: does what is decided     outcomes     what an asker is told of a job's end
    scheduler    decisions: a state machine, no I/O         hosts        a look at this host's servers
    bounds       what a job may take, while it runs         records      logs on their way, to who reads them
    zygote       the process that forks                     processes    death signals, orphans, groups
    causes       why a worker ended, in a sentence
    zygote_link  the server's end of it                     worker       runs a job; current_job()
    predecessor  the end of one that hung                   ending       the end of any, for `fxpool stop`
"""

from __future__ import annotations

from fxpool.pool.client import PoolClient
from fxpool.pool.config import PoolConfig
from fxpool.pool.exceptions import RemoteError
from fxpool.pool.job import Job
from fxpool.pool.limits import default_workers
from fxpool.pool.worker import JobContext, current_job

__all__ = ["Job", "JobContext", "PoolClient", "PoolConfig", "RemoteError", "current_job", "default_workers"]
