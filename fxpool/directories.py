"""Checks whether other users could write to a directory or replace it.

For directories whose content is run or unpickled: the cache, and the directory of a server's socket. Cheap to import.
"""

from __future__ import annotations

import grp
import os
import pwd
import stat
from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["Danger", "ancestors", "danger_above", "foreign_link", "replaceable_parent", "user_name"]


@dataclass(frozen=True)
class Danger:
    """A directory or link under other users' control: `path`, `what` is wrong, and how to `mend` it."""

    path: str
    what: str
    mend: str


def danger_above(path: str) -> Danger | None:
    """Return a part of the path that lets other users replace `path`, or None. Missing parts are safe."""
    return foreign_link(path) or replaceable_parent(path)


def foreign_link(path: str) -> Danger | None:
    """Return a symbolic link in `path`, including `path` itself, owned by neither this user nor root; or None."""
    for link in ancestors(os.path.abspath(path)):
        try:
            status = os.lstat(link)
        except OSError:
            continue
        if stat.S_ISLNK(status.st_mode) and status.st_uid not in (os.geteuid(), 0):
            return Danger(link, f"is a symbolic link owned by {user_name(status.st_uid)}", "remove the link")
    return None


def replaceable_parent(path: str) -> Danger | None:
    """Return a parent of the real `path` in which others may rename: writable for them, not sticky; or None."""
    for parent in ancestors(os.path.dirname(os.path.realpath(path))):
        try:
            status = os.stat(parent)
        except OSError:
            continue
        if not status.st_mode & stat.S_ISVTX and _others_can_write(status):
            mode = f"{stat.S_IMODE(status.st_mode):04o}"
            what = f"belongs to {user_name(status.st_uid)} and has mode {mode}"
            return Danger(parent, what, f"chmod go-w {parent} (or chmod +t)")
    return None


def ancestors(path: str) -> Iterator[str]:
    """Yield `path` and all directories above it."""
    while True:
        yield path
        parent = os.path.dirname(path)
        if parent == path:
            return
        path = parent


def user_name(uid: int) -> str:
    """Return a user's name and uid, for messages."""
    try:
        return f"{pwd.getpwuid(uid).pw_name} (uid {uid})"
    except KeyError:
        return f"uid {uid}"


def _others_can_write(status: os.stat_result) -> bool:
    if status.st_mode & stat.S_IWOTH:
        return True
    return bool(status.st_mode & stat.S_IWGRP) and not _is_private_group(status.st_gid)


def _is_private_group(gid: int) -> bool:
    """Return whether a group has no members but this user and root, as with umask 002 and one group per user."""
    if gid == 0:
        return True
    try:
        group, name = grp.getgrgid(gid), pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return False
    return gid == os.getegid() and group.gr_name == name and set(group.gr_mem) <= {name}
