"""Shows this host's servers and their jobs. It connects as a visitor, which neither starts a server nor keeps it alive.

When a server is replaced, its jobs stay listed beside those of the new server; its unfinished jobs count as ended with
it. Servers report times as `time.monotonic()`, which are converted to Unix time here.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from fxpool.errors import ProtocolError
from fxpool.pool.client import hosts
from fxpool.pool.host import measurement_lock
from fxpool.pool.wire import messages as m

__all__ = ["Jobs", "Look", "PoolView", "wait_reason"]

_KEPT = 2000
_NAMED = 3  # running jobs that a reason names
_ENDED_WITH_SERVER = "the server ended"


class Jobs:
    """Jobs of all servers as plain data, each change numbered. Bounded: of those that ended the oldest go first."""

    def __init__(self, most: int = _KEPT) -> None:
        self.latest = 0
        self._most = most
        self._jobs: dict[tuple[str, int], dict[str, Any]] = {}

    def put(self, server: str, record: m.JobRecord, offset: float) -> None:
        """Take over a server's record; `offset` makes its times Unix times."""

        def at(moment: float | None) -> float | None:
            return round(moment + offset, 3) if moment is not None else None

        times = {name: at(getattr(record, name)) for name in ("queued", "begun", "ended")}
        phases = [[name, at(since)] for name, since in record.phases]
        row = msgspec.structs.asdict(record)
        row["how"] = row.pop("result")
        self._put({**row, "server": server, "phases": phases, **times})

    def server_ended(self, server: str, at: float) -> None:
        """End the jobs that a server had not finished."""
        for job in [one for one in self._jobs.values() if one["server"] == server and one["ended"] is None]:
            self._put({**job, "ended": round(at, 3), "how": "lost", "reason": _ENDED_WITH_SERVER})

    def since(self, change: int) -> list[dict[str, Any]]:
        """Return the jobs that changed after `change`."""
        return [job for job in self._jobs.values() if job["change"] > change]

    def all(self) -> list[dict[str, Any]]:
        return list(self._jobs.values())

    def _put(self, job: dict[str, Any]) -> None:
        self.latest += 1
        job["change"] = self.latest
        which = (job["server"], job["job"])
        self._jobs.pop(which, None)  # the latest change last
        self._jobs[which] = job
        if len(self._jobs) > self._most:
            over = next((key for key, one in self._jobs.items() if one["ended"] is not None), None)
            if over is not None:
                del self._jobs[over]


@dataclass
class _Known:
    """A server that is visited."""

    visit: hosts.Visit
    shown: str
    name: str = ""  # tells it from one that replaces it
    seen: int = 0  # the latest change of its jobs


@dataclass(frozen=True)
class Look:
    """A server's reply (`facts`, `history`), or why it did not reply. `linked`: other processes can find it, too."""

    shown: str
    name: str
    linked: bool
    state: str = "running"
    reason: str = ""
    facts: dict[str, Any] | None = None
    history: m.History | None = None


class PoolView:
    """The facts from all servers. Not thread-safe, but `ask` may run beside methods that change nothing.

    `ask` blocks, for up to two seconds where a server is silent.
    """

    def __init__(self, root: Path, clock: Callable[[], float] = time.time) -> None:
        self.root = root
        self.jobs = Jobs()
        self.servers: list[dict[str, Any]] = []
        self.measuring: list[dict[str, Any]] = []
        self._clock = clock
        self._known: dict[str, _Known] = {}  # by the path of its socket

    def look(self) -> None:
        """Bring everything up to date."""
        self.take(self.ask())

    def ask(self) -> list[Look]:
        """Ask every server for its status and for what changed about its jobs; changes nothing that is shown.

        A server that new clients cannot find, because it is ending or was replaced, is asked as long as it answers.
        """
        linked = {_socket_of(link): link for link in hosts.links(self.root)}
        sockets = [*linked, *(path for path in self._known if path not in linked)]
        return [self._look_at(path, linked.get(path)) for path in sockets]

    def take(self, looks: list[Look]) -> None:
        """Take over what the latest `ask` heard."""
        servers = []
        for look in looks:
            if look.history is not None and look.facts is not None:
                offset = self._clock() - look.history.now
                for record in look.history.jobs:
                    self.jobs.put(look.name, record, offset)
                for row in look.facts["waiting"]:
                    row["for"] = wait_reason(look.facts, row)
                servers.append({"id": look.name, "name": look.shown, **look.facts})
                continue
            if look.name:
                self.jobs.server_ended(look.name, self._clock())
            if look.linked:
                servers.append({"id": look.shown, "name": look.shown, "state": look.state, "reason": look.reason})
        self.servers = servers
        self.measuring = [{"device": device, "pid": pid} for device, pid in measurement_lock.listed(self.root)]

    def close(self) -> None:
        """Leave all servers."""
        for path in list(self._known):
            self._known.pop(path).visit.close()

    def _look_at(self, path: str, link: Path | None) -> Look:
        known = self._known.get(path)
        shown = known.shown if known is not None else hosts.shown(link) if link is not None else ""
        try:
            if known is None:
                assert link is not None
                known = self._known[path] = _Known(hosts.Visit(link), shown)
            facts = known.visit.status()
            known.name = known.name or f"{shown}-{facts['server_pid']}"
            history = known.visit.history(known.seen)
            known.seen = history.latest
            return Look(shown, known.name, link is not None, facts=facts, history=history)
        except TimeoutError:
            state, reason = "silent", "does not answer"
        except ProtocolError as error:
            state, reason = "refused", str(error)
        except OSError:
            state, reason = "gone", "ended"
        known = self._known.pop(path, None)
        if known is not None:
            known.visit.close()
        return Look(shown, known.name if known is not None else "", link is not None, state, reason)


def _socket_of(link: Path) -> str:
    try:
        return os.path.join(link.parent, os.readlink(link))
    except OSError:
        return str(link)


def wait_reason(facts: Mapping[str, Any], row: Mapping[str, Any]) -> str:
    """Explain in a phrase what a row of `facts["waiting"]` waits for.

    `facts` are a server's (`fxpool status --json`). As in the server, causes that block all jobs come first.
    """
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
