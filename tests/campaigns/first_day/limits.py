"""Rows about what a process may take: ulimits, processors, cgroups."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path

from .environment import Site
from .needs import Need, command, no_root, root
from .row import Row
from .verdict import Expected

__all__ = ["ROWS"]

_GROUPS = Path("/sys/fs/cgroup")
_SAID = Expected(pool=None, cache=None)


def _is_unified() -> bool:
    return (_GROUPS / "cgroup.controllers").exists()


def _group(controller: str, name: str) -> Path:
    return _GROUPS / ("" if _is_unified() else controller) / name


def _grouped(controller: str) -> Need:
    """A separate cgroup with that controller can be made."""

    def missing() -> str:
        if root():
            return root()
        if _is_unified():
            offered = (_GROUPS / "cgroup.subtree_control").read_text().split()
            if controller not in offered:
                return f"the root cgroup has no {controller} controller for others"
        elif not (_GROUPS / controller).is_dir():
            return f"no {controller} cgroups"
        tried = _group(controller, f"first-day-{os.getpid()}-try")
        try:
            tried.mkdir()
            tried.rmdir()
        except OSError as error:
            return f"no cgroup can be made: {error.strerror}"
        return ""

    return missing


def _limited(controller: str, limits: dict[str, str]) -> Callable[[Site], None]:
    """Make a cgroup and name it ``{group}``; `limits` by the name of their file, of either version of cgroups."""

    def prepare(site: Site) -> None:
        group = _group(controller, f"first-day-{os.getpid()}-{site.root.name}")
        group.mkdir()
        site.on_exit(lambda: _end(group))
        for name, value in limits.items():
            if (group / name).exists():
                (group / name).write_text(value)
        site.names["group"] = str(group)

    return prepare


def _end(group: Path) -> None:
    for _ in range(50):
        with contextlib.suppress(OSError):
            group.rmdir()
            return
        time.sleep(0.1)


_IN_GROUP = 'echo $$ > {group}/cgroup.procs && exec "$@"'
_MB = 1 << 20


def _memory(megabytes: int, expected: Expected, *, fresh: bool = False) -> Row:
    size = str(megabytes * _MB)
    return Row(
        name=f"cgroup with {megabytes} MB" + ", nothing known" * fresh,
        shell=_IN_GROUP,
        prepare=_limited("memory", {"memory.max": size, "memory.limit_in_bytes": size}),
        needs=(_grouped("memory"),),
        fresh=fresh,
        expected=expected,
    )


ROWS = [
    # The fewest that Dynamo and a compile in process do with; whether a server does is for it to say.
    Row(name="ulimit -n 64", shell='ulimit -n 64; exec "$@"', expected=_SAID),
    Row(name="ulimit -n 256", shell='ulimit -n 256; exec "$@"'),
    Row(name="ulimit -n 1000000", shell='ulimit -n 1000000 2>/dev/null; exec "$@"'),
    Row(name="ulimit -u 64", shell='ulimit -u 64; exec "$@"', needs=(no_root,), expected=_SAID),
    Row(name="ulimit -f 20 MB", shell='ulimit -f 20480; exec "$@"'),
    Row(name="ulimit -f 20 MB, nothing known", shell='ulimit -f 20480; exec "$@"', fresh=True),
    Row(name="ulimit -f 1 MB", shell='ulimit -f 1024; exec "$@"'),
    Row(name="ulimit -v 4 GB", shell='ulimit -v 4194304; exec "$@"', expected=_SAID),
    Row(name="ulimit -c unlimited", shell='ulimit -c unlimited 2>/dev/null; exec "$@"'),
    Row(name="ulimit -s 1 MB", shell='ulimit -s 1024; exec "$@"'),
    Row(name="ulimit -s unlimited", shell='ulimit -s unlimited; exec "$@"'),
    Row(name="ulimit -l 0", shell='ulimit -l 0; exec "$@"'),
    Row(
        name="taskset to one processor",
        shell='exec taskset -c $(taskset -cp $$ | grep -oE "[0-9]+$") "$@"',
        needs=(command("taskset"),),
    ),
    Row(name="nice 19", shell='exec nice -n 19 "$@"'),
    *(_memory(1200, _SAID, fresh=fresh) for fresh in (False, True)),
    _memory(700, _SAID),
    _memory(4096, Expected()),
    Row(
        name="cgroup with one processor",
        shell=_IN_GROUP,
        prepare=_limited("cpu", {"cpu.max": "100000 100000", "cpu.cfs_quota_us": "100000"}),
        needs=(_grouped("cpu"),),
    ),
    Row(
        name="cgroup with 20 processes",
        shell=_IN_GROUP,
        prepare=_limited("pids", {"pids.max": "20"}),
        needs=(_grouped("pids"),),
        expected=_SAID,
    ),
]
