"""Rows about homes: none, one that cannot hold the cache, and the users that containers have."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

from .directories import reachable_for_others, toolchain_in
from .environment import Site
from .needs import NOBODY, command, mounts, two_users
from .row import Row
from .verdict import Expected, Run

__all__ = ["ROWS"]

_UID = 54321  # without a passwd entry
_NEEDS = (two_users, mounts, command("setpriv"))
# The cache serves, from the temporary directory, and that is said.
_STAND_IN = "{tmp}/fxpool-cache-" + str(_UID)


def _as(uid: int, group: int | None = None) -> str:
    """A shell in which another user runs the command, in a private name space in which he reaches the interpreter."""
    user = f"setpriv --reuid {uid} --regid {uid if group is None else group} --clear-groups"
    return reachable_for_others(f'exec {user} "$@"')


def _given(uid: int, *more: Callable[[Site], object]) -> Callable[[Site], None]:
    """The row's directories belong to a user, the home included; then `more`."""

    def prepare(site: Site) -> None:
        _known_to(uid, site)
        for path in (site.home, site.tmp, site.work):
            for entry in [path, *path.rglob("*")]:
                os.chown(entry, uid, uid, follow_symlinks=False)
        for step in more:
            step(site)

    return prepare


def _known_to(uid: int, site: Site) -> None:
    """Copy the facts about the tool chain, which are root's; the record of the header names root's files as well."""
    if site.toolchain is None:
        return
    shutil.copytree(site.toolchain, site.tmp / f"fxpool-cache-{uid}" / "toolchain")
    (site.tmp / f"fxpool-cache-{uid}").chmod(0o700)
    for directory in (site.toolchain / "headers", site.toolchain, *site.toolchain.parents[:2]):
        directory.chmod(0o711)


def _home(mode: int, owner: int, group: int) -> Callable[[Site], None]:
    def prepare(site: Site) -> None:
        os.chown(site.home, owner, group)
        site.home.chmod(mode)

    return prepare


def _without_cache(site: Site) -> None:
    """Nothing is in the home; the facts about the tool chain are in the temporary directory."""
    shutil.rmtree(site.home / ".cache", ignore_errors=True)
    toolchain_in(f"{{tmp}}/fxpool-cache-{os.getuid()}")(site)


def _taken(site: Site) -> None:
    path = Path(site.text(_STAND_IN))
    os.chown(path, NOBODY, NOBODY)


def _stands_in(uid: int = _UID) -> Callable[[Site, Run], str]:
    """The cache is in the temporary directory, closed to others, and nothing is called ``~``."""

    def check(site: Site, run: Run) -> str:
        path = site.tmp / f"fxpool-cache-{uid}"
        if not (path / "entries").is_dir():
            return f"no cache in {path}"
        status = path.stat()
        if (status.st_uid, stat.S_IMODE(status.st_mode)) != (uid, 0o700):
            return f"{path} has owner {status.st_uid} and mode {status.st_mode:o}"
        if str(path) not in run.errors:
            return f"the warning does not name {path}"
        return f"made {site.work}/~" if (site.work / "~").exists() else ""

    return check


def _other(name: str, environment: dict[str, str | None], *more: Callable[[Site], object], uid: int = _UID,
           group: int | None = None) -> Row:  # fmt: skip
    return Row(
        name=name,
        shell=_as(uid, group),
        environment=environment,
        prepare=_given(uid, *more),
        needs=_NEEDS,
        also=_stands_in(uid),
    )


_READ_ONLY = (
    'exec unshare -m bash -c \'mount --bind {home} {home} && mount -o remount,bind,ro {home} && exec "$@"\' bash "$@"'
)

ROWS = [
    _other("no HOME, no passwd entry", {"HOME": None}),
    _other("HOME a tilde, no passwd entry", {"HOME": "~"}),
    _other("no HOME, the passwd entry's is missing", {"HOME": None}, uid=NOBODY),
    _other("HOME=/, not root", {"HOME": "/"}),
    _other("HOME another user's, group 0", {}, _home(0o775, NOBODY, 0), group=0),
    _other("HOME another user's, closed", {}, _home(0o700, NOBODY, NOBODY)),
    Row(
        name="no usable HOME, and another user has the name of its replacement",
        shell=_as(_UID),
        environment={"HOME": "/"},
        prepare=_given(_UID, _taken),
        needs=_NEEDS,
        expected=Expected(pool=True, cache=None),
    ),
    Row(
        name="HOME on a read-only disk",
        shell=_READ_ONLY,
        prepare=_without_cache,
        needs=(mounts,),
        also=_stands_in(os.getuid()),
    ),
    Row(
        name="HOME on a read-only disk in the second run",
        shell='[ -z "$CLOSED" ] && exec "$@"; ' + _READ_ONLY,
        environment={"CLOSED": None},
        again_environment={"CLOSED": "1"},
        needs=(mounts,),
    ),
]
