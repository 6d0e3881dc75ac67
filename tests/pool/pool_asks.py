"""Asks a scheduler for jobs, with the options of `JobSpec`."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from fxpool.pool.server.decisions import Action
from fxpool.pool.server.scheduler import Scheduler
from fxpool.pool.wire.farm import Away
from fxpool.pool.wire.job_spec import JobSpec

AWAY = Away(farm="farm", key="k", function="f", seal=b"", environment={}, builds={}, wait=1.0)


def ask(
    scheduler: Scheduler,
    job: int,
    owner: Hashable = None,
    *,
    parent: int | None = None,
    kind: Hashable | None = None,
    away: bool = False,
    **options: Any,
) -> list[Action]:
    """Submit a job; with `away`, one that a farm may run."""
    spec = JobSpec(label=str(job), away=AWAY if away else None, **options)
    return scheduler.submit(job, spec, kind=kind, owner=owner, parent=parent)
