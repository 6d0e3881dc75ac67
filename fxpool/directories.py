"""Checks whether other users could write to a directory or replace it, and chooses the default cache directory.

For directories whose content is run or unpickled: the cache, and the directory of a server's socket. The rule is that
of sshd for its key files, with one exception: every directory on the way belongs to root, to this user or to a trusted
owner, and no other user may write to it. A sticky directory such as /tmp may be written to by all, because there only
its owner and the owner of a file can rename the file. Cheap to import.

The cache is in the home by default. If it cannot be there, `default_cache` names a directory of this user's in the
temporary directory, as Inductor does for its own caches. It is checked like any other: the name may be taken.
"""

from __future__ import annotations

import errno
import functools
import grp
import os
import pwd
import stat
from collections.abc import Collection, Iterator
from dataclasses import dataclass

__all__ = ["Danger", "DefaultCache", "ancestors", "danger_above", "danger_of", "default_cache", "home",
           "make_private", "opened_to", "others_can_write", "user_name"]  # fmt: skip

_MAX_LINKS = 40  # as the kernel has it
_ACL = "system.posix_acl_access"


@dataclass(frozen=True)
class Danger:
    """A directory or link under other users' control: `path`, its `fault`, and how to `mend` it."""

    path: str
    fault: str
    mend: str


def danger_above(path: str, trusted: Collection[int]) -> Danger | None:
    """Return a part of the path that lets other users replace what `path` leads to, or None.

    Looks at every directory and symbolic link that the kernel goes through, except at the directory or file at the end.
    Missing parts are safe: only users who may write to an existing directory can create them. `trusted` are the uids
    that may own a part (`config.trusted_owners`).
    """
    steps = list(_steps(path))
    end = len(steps) - os.path.exists(path)  # a part that is missing would be created in the last directory
    for index, (step, status) in enumerate(steps):
        if stat.S_ISLNK(status.st_mode):
            if status.st_uid not in trusted and not _is_outside(status.st_uid):
                return Danger(step, f"is a symbolic link owned by {user_name(status.st_uid)}", "remove the link")
        elif index < end and (danger := danger_of(step, status, trusted)) is not None:
            return danger
    return None


def danger_of(path: str, status: os.stat_result, trusted: Collection[int]) -> Danger | None:
    """Return the reason if others than `trusted` own a path or may write to it, apart from sticky directories."""
    whose = f"belongs to {user_name(status.st_uid)}"
    if status.st_uid not in trusted and not _is_outside(status.st_uid):
        return Danger(path, whose, f"set FXPOOL_TRUSTED_OWNERS={_plain_name(status.st_uid)} if you trust this user")
    if not status.st_mode & stat.S_ISVTX and others_can_write(path, status):
        what = f"{whose} and is writable by {opened_to(status.st_mode)}"
        return Danger(path, what, f"chmod go-w {path} (or chmod +t)")
    return None


def others_can_write(path: str, status: os.stat_result) -> bool:
    """Return whether users besides the owner may write to a directory with this status.

    With an access control list, the group's bits are the list's mask: users named in the list may be able to write.
    """
    if status.st_mode & stat.S_IWOTH:
        return True
    return bool(status.st_mode & stat.S_IWGRP) and not (_is_private_group(status.st_gid) and not _has_acl(path))


def opened_to(mode: int, bits: int = 0o022) -> str:
    """Return the users besides the owner that a mode admits by any of `bits`, and the mode, for messages."""
    return f"{'all users' if mode & bits & 0o007 else 'its group'} (mode {stat.S_IMODE(mode):04o})"


def make_private(path: str) -> None:
    """Create `path` and missing parents, mode 0700 each whatever the umask. Raises OSError."""
    if os.path.isdir(path):
        return
    parent = os.path.dirname(path)
    if parent != path:
        make_private(parent)
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        if not os.path.isdir(path):
            raise


@dataclass(frozen=True)
class DefaultCache:
    """The cache directory that holds without a setting: its `path`, and `why` it is not in the home, or "".

    `base` is the directory in the home if it is this user's and can only be read, as on a read-only disk.
    """

    path: str
    why: str = ""
    base: str | None = None


def home() -> str | None:
    """Return the home directory; None if neither HOME nor the passwd entry of this user names an absolute path."""
    named = os.environ.get("HOME", "")
    if not named:
        try:
            named = pwd.getpwuid(os.getuid()).pw_dir
        except KeyError:
            return None
    return named if os.path.isabs(named) else None


def default_cache(wanted: str | None, trusted: Collection[int]) -> DefaultCache:
    """Return `wanted`, or a private directory under the temporary directory if `wanted` cannot be used or is None."""
    if wanted is None:
        named = os.environ.get("HOME", "")
        without = f"HOME is not set and {user_name(os.getuid())} has no home directory"
        return DefaultCache(_temporary_cache(), f"HOME is {named!r}, which is no absolute path" if named else without)
    danger = danger_above(wanted, trusted)
    if danger is not None:
        why = f"{danger.path} {danger.fault}, so other users could replace {wanted}"
        return DefaultCache(_temporary_cache(), why)
    why = _unusable(wanted)
    if not why:
        return DefaultCache(wanted)
    return DefaultCache(_temporary_cache(), why, wanted if _is_own(wanted) and os.access(wanted, os.R_OK) else None)


def _temporary_cache() -> str:
    import tempfile  # 5 ms with its own imports, and most users have a home

    try:
        above = tempfile.gettempdir()
    except FileNotFoundError:
        above = "/tmp"  # cannot be written to; the first entry reports it
    return os.path.join(os.path.abspath(above), f"fxpool-cache-{os.geteuid()}")


def _unusable(path: str) -> str:
    """Return why this user cannot write to a directory or create it, or ""."""
    there = next(above for above in ancestors(path) if os.path.lexists(above))
    try:
        status = os.stat(there)
    except OSError as error:
        return f"{there}: {os.strerror(error.errno or 0)}"
    if not stat.S_ISDIR(status.st_mode):
        return f"{there} is not a directory"
    if there == path and not _is_own(path):
        return f"{path} belongs to {user_name(status.st_uid)} and has mode {stat.S_IMODE(status.st_mode):04o}"
    if os.access(there, os.W_OK | os.X_OK, effective_ids=True):
        return ""
    if os.statvfs(there).f_flag & os.ST_RDONLY:
        return f"{there} is on a read-only disk"
    mode = f"{stat.S_IMODE(status.st_mode):04o}"
    return f"{user_name(os.geteuid())} may not write to {there} (owner {user_name(status.st_uid)}, mode {mode})"


def _is_own(path: str) -> bool:
    """Return whether a directory is this user's and no other user may write to it."""
    try:
        status = os.stat(path)
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o022


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
    name = _plain_name(uid)
    return f"uid {uid}" if name == str(uid) else f"{name} (uid {uid})"


def _plain_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _steps(path: str) -> Iterator[tuple[str, os.stat_result]]:
    """Yield each directory and link that the kernel goes through on the way to `path`, with its own status."""
    here, links = "/", 0
    waiting = os.path.abspath(path).split("/")[::-1]
    yield here, os.lstat(here)
    while waiting:
        name = waiting.pop()
        if name in ("", "."):
            continue
        if name == "..":  # of a link's target
            here = os.path.dirname(here)
            continue
        step = os.path.join(here, name)
        try:
            status = os.lstat(step)
            target = os.readlink(step) if stat.S_ISLNK(status.st_mode) else None
        except OSError:
            return
        yield step, status
        if target is None:
            here = step
            continue
        links += 1
        if links > _MAX_LINKS:
            return
        waiting += target.split("/")[::-1]
        if target.startswith("/"):
            here = "/"


@functools.cache  # all users are listed for it, which may ask a directory service
def _is_private_group(gid: int) -> bool:
    """Return whether this user is a group's one member, as with umask 002 and one group per user."""
    try:
        own = pwd.getpwuid(os.geteuid())
        group = grp.getgrgid(gid)
    except KeyError:
        return False
    if gid != own.pw_gid or group.gr_name != own.pw_name or not set(group.gr_mem) <= {own.pw_name}:
        return False
    return all(user.pw_uid == own.pw_uid for user in pwd.getpwall() if user.pw_gid == gid)


def _has_acl(path: str) -> bool:
    try:
        return bool(os.getxattr(path, _ACL, follow_symlinks=False))
    except OSError as error:
        return error.errno not in (errno.ENODATA, errno.ENOTSUP)


@functools.cache
def _outside() -> int | None:
    """Return the uid that stands for all users outside this process's user namespace, or None.

    In a container without root, directories of the host's root belong to this uid. No process in the namespace has it.
    """
    try:
        with open("/proc/self/uid_map") as file:
            ranges = [(int(first), int(count)) for first, _, count in map(str.split, file)]
        with open("/proc/sys/kernel/overflowuid") as file:
            overflow = int(file.read())
    except (OSError, ValueError):
        return None
    return None if any(first <= overflow < first + count for first, count in ranges) else overflow


def _is_outside(uid: int) -> bool:
    return uid == _outside()
