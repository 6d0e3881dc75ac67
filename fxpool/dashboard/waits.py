"""Explains in a phrase why a job waits, from a server's status facts (`fxpool status --json`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["reason"]

_NAMED = 3


def reason(facts: Mapping[str, Any], row: Mapping[str, Any]) -> str:
    """Return what a row of `facts["waiting"]` waits for. As in the server, causes that block all jobs come first."""
    running = facts["running"]
    if row["running"]:
        worker = next((one for one in running if one["job"] == row["job"]), None)
        where = f"worker {worker['pid']}" if worker is not None and worker["pid"] else "a worker"
        shared = ", which compiles it for another process" if row["joined"] else ""
        return f"the result of {where}{shared}"
    if row["joined"] and not row["position"]:
        return "the job of another process"
    zygote = facts["zygote"]["state"]
    if zygote == "broken":
        return f"nothing: the pool cannot fork workers ({facts['zygote'].get('reason', 'see the log')})"
    if zygote == "starting":
        return "the pool to start: the zygote imports torch"
    if facts["paused"]:
        return "a measurement of another process"
    alone = [one for one in running if one["alone"]]
    if alone:
        return f"an exclusive job: {_names(alone)}"
    if facts["limits"]["pressed"]:
        return f"memory: more than {facts['limits']['host_mark']:.0%} is in use"
    if row["alone"] and running:
        return f"all running jobs, because it runs exclusively: {_names(running)}"
    ahead = row["position"] - 1
    if facts["slots_free"] <= 0:
        after = f", after {ahead} other{'s' if ahead != 1 else ''} in the queue" if ahead > 0 else ""
        return f"a free worker{after}: {_names(running)}"
    if row["spare"]:
        return "idle time: it runs when no other job runs or waits"
    return "the next free moment: it starts now"


def _names(rows: list[Mapping[str, Any]]) -> str:
    names = [one["label"] + (f" ({one['pid']})" if one["pid"] else "") for one in rows[:_NAMED]]
    more = len(rows) - _NAMED
    return ", ".join(names) + (f" and {more} more run" if more > 0 else " runs" if len(rows) == 1 else " run")
