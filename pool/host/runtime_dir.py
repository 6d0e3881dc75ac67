"""Private directories for a server's socket and logs, under a root that no other user can write to.

A process that can replace the socket can run code in a client, which unpickles results. So ownership and mode are
checked before a directory is used, and links are refused. Its parents are checked like those of the cache directory.

A socket's path has at most 107 bytes and is sent to other processes as text. If the root's path is too long or not
UTF-8, a directory with a short name replaces it (`_SHORT`), the same one for all of a user's processes.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import stat
import tempfile
import time
from pathlib import Path

import msgspec

from fxpool import config, directories
from fxpool.errors import PoolUnavailableError, UnsafeRuntimeDirectoryError
from fxpool.pool.host import measurement_lock
from fxpool.pool.wire.config import CONFIG

__all__ = [
    "HOST_LOCK",
    "LEAVING",
    "LOCK",
    "LOG",
    "READY",
    "SOCKET",
    "hold",
    "holder",
    "is_server_of",
    "link_of",
    "make_private",
    "read_config",
    "remove",
    "remove_root",
    "rotate_log",
    "runtime_root",
    "sweep",
    "write_config",
]

SOCKET = "socket"
LOCK = "lock"
LOG = "server.log"
#: A file in the runtime directory, locked by the process that starts the host's server.
HOST_LOCK = "host.lock"
#: A file in a server's private directory: the server has been ready at least once.
READY = "ready"
#: A file in a server's private directory: the server accepts no new clients.
LEAVING = "leaving"
PREFIX = "pool-"

# sockaddr_un.sun_path holds 108 bytes with the terminating zero; mkdtemp adds 8 characters to the prefix.
_SOCKET_PATH_MAX = 107
_ROOT_MAX = _SOCKET_PATH_MAX - len(f"/{PREFIX}12345678/{SOCKET}")
# Parents of the directory that replaces an unsuitable root, in order of preference.
_SHORT = ("/tmp", "/var/tmp", "/dev/shm")


def runtime_root(configured: str | Path | None = None) -> Path:
    """Return the parent of all private directories, created if missing. Raises PoolUnavailableError if it is unsafe."""
    if configured is not None:
        root = Path(os.path.abspath(configured))
        return _secure(root, private=False) if _allows_sockets(root) else _stand_in(root)
    base = os.environ.get("XDG_RUNTIME_DIR")
    if base and os.path.isabs(base) and _is_ours(base):
        root = Path(base) / "fxpool"
    else:
        root = Path(tempfile.gettempdir()).absolute() / f"fxpool-{os.getuid()}"
    return _secure(root, private=True) if _allows_sockets(root) else _stand_in(root)


def link_of(root: Path, host: str) -> Path:
    """Return the link to the socket of an environment's server; `host` is the environment's digest."""
    return root / f"host-{host}.socket"


def _allows_sockets(root: Path) -> bool:
    try:
        return len(str(root).encode()) <= _ROOT_MAX
    except UnicodeEncodeError:
        return False


def _stand_in(root: Path) -> Path:
    """Return a private directory with a short name that replaces a root whose path is unsuitable for sockets."""
    # The name depends only on root and user, so that every process finds the same directory.
    name = f"fxpool-{os.getuid()}-{hashlib.sha256(os.fsencode(root)).hexdigest()[:16]}"
    refused: list[PoolUnavailableError] = []
    for place in _SHORT:
        if os.path.isdir(place):
            try:
                return _secure(Path(place, name), private=True)
            except PoolUnavailableError as error:  # another user has taken the name, or `place` is not writable
                refused.append(error)
    raise PoolUnavailableError(
        f"cannot place a socket under {os.fsencode(root)!r}: the name exceeds {_ROOT_MAX} bytes or is not UTF-8, and "
        f"none of {', '.join(_SHORT)} can be used instead" + (f" ({refused[0].message})" if refused else ""),
        remedy="set FXPOOL_RUNTIME_DIR to a directory with a short name",
    )


def make_private(root: Path) -> Path:
    """Create a directory of mode 0700 under `root`. Raises PoolUnavailableError, also if its path is too long."""
    length = len(os.fsencode(root))
    if length > _ROOT_MAX:
        raise PoolUnavailableError(
            f"a socket under {root} would have a path of {length - _ROOT_MAX + _SOCKET_PATH_MAX} bytes; the limit "
            f"is {_SOCKET_PATH_MAX}",
            remedy="set FXPOOL_RUNTIME_DIR to a shorter path",
        )
    try:
        return Path(tempfile.mkdtemp(prefix=PREFIX, dir=root))
    except OSError as error:
        raise PoolUnavailableError(f"cannot create a directory in {root}: {error}") from error


def hold(directory: Path) -> int:
    """Lock a private directory for as long as this process lives; return the descriptor that holds the lock.

    Raises OSError; BlockingIOError if another process holds it.
    """
    lock = os.open(directory / LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(lock, 0)
        os.write(lock, str(os.getpid()).encode())
    except OSError:
        os.close(lock)
        raise
    return lock


def holder(directory: Path) -> int | None:
    """Return the pid of the process that holds a private directory; None if it is free or its pid is not written."""
    try:
        lock = os.open(directory / LOCK, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        # A shared lock, so that two processes that look at once do not mistake each other for the holder.
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return None
    except BlockingIOError:
        text = os.read(lock, 20)
        return int(text) if text.isdigit() else None
    except OSError:
        return None
    finally:
        os.close(lock)


def is_server_of(pid: int, directory: Path) -> bool:
    """Return whether a process was started as the server of a private directory."""
    try:
        return os.fsencode(directory) in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False


def rotate_log(directory: Path, most: int = 4 << 20) -> None:
    """Move the content of a server's log that has more than `most` bytes to a second file. Raises OSError."""
    log = directory / LOG
    if log.stat().st_size > most:
        shutil.copyfile(log, log.with_suffix(".log.1"))
        os.truncate(log, 0)


def remove(directory: Path) -> None:
    """Remove a private directory, even if dying processes still write to it."""
    for _ in range(5):
        shutil.rmtree(directory, ignore_errors=True)
        if not directory.exists():
            return
        time.sleep(0.01)


def sweep(root: Path, *, older_than: float = 60.0) -> list[Path]:
    """Remove the private directories of servers that were killed along with their clients, and return their paths.

    A directory that its server has not locked yet is left alone while it is younger than `older_than` (seconds) or
    than the client's `start_timeout`.
    """
    removed = []
    for directory in root.glob(f"{PREFIX}*"):
        try:
            facts = directory.lstat()
            if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.getuid():
                continue
            age = time.time() - facts.st_mtime
            if not _has_lock(directory) and age < max(older_than, _start_allowed(directory)):
                continue
            lock = hold(directory)
        except OSError:
            continue  # held, or gone already
        try:
            remove(directory)
            removed.append(directory)
        finally:
            os.close(lock)
    return removed


def remove_root(root: Path) -> list[str]:
    """Remove the runtime directory with the files of ended processes; return the names of files in use, which stay."""
    sweep(root, older_than=0.0)
    measurement_lock.sweep(root)
    with contextlib.suppress(OSError):
        for link in root.glob("*host-*.socket*"):
            if not link.exists():
                link.unlink()
        with open(root / HOST_LOCK) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails while a process starts a server
            if not any(root.glob(f"{PREFIX}*")):
                os.unlink(lock.name)
    with contextlib.suppress(OSError):
        root.rmdir()
    return sorted(os.listdir(root)) if root.exists() else []


def write_config(directory: Path, data: bytes) -> None:
    """Write a server's configuration into its private directory. Raises OSError."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    with os.fdopen(os.open(directory / CONFIG, flags, 0o600), "wb") as file:
        file.write(data)


def read_config(directory: Path) -> bytes:
    """Read a server's configuration. Raises OSError, UnsafeRuntimeDirectoryError if others could have written it."""
    above = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        config = os.open(CONFIG, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=above)
        with os.fdopen(config, "rb") as file:
            for opened in (above, config):
                status = os.fstat(opened)
                if status.st_uid != os.geteuid() or status.st_mode & 0o022:
                    raise UnsafeRuntimeDirectoryError(
                        f"other users could have written {directory / CONFIG} (owner {status.st_uid}, mode "
                        f"{stat.S_IMODE(status.st_mode):o})",
                        remedy=f"remove {directory}",
                    )
            return file.read()
    finally:
        os.close(above)


def _start_allowed(directory: Path) -> float:
    """Return the seconds that a directory's server may take to start; 0.0 if its configuration can't be read."""
    try:
        return msgspec.json.decode(read_config(directory), type=_Start).start_timeout
    except (OSError, msgspec.MsgspecError, UnsafeRuntimeDirectoryError):
        return 0.0


class _Start(msgspec.Struct):
    """The field of a ServerConfig that `sweep` needs. Another version may have written the file."""

    start_timeout: float = 0.0


def _has_lock(directory: Path) -> bool:
    """Return whether a server has ever locked the directory. A lock file younger than 1 s may not be locked yet."""
    try:
        return time.time() - (directory / LOCK).lstat().st_mtime > 1.0
    except OSError:
        return False


def _is_ours(path: str) -> bool:
    try:
        facts = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISDIR(facts.st_mode) and facts.st_uid == os.getuid() and not facts.st_mode & 0o022


def _secure(root: Path, *, private: bool) -> Path:
    try:
        if not os.path.lexists(root):
            directories.make_private(str(root))
        facts = os.lstat(root)
    except OSError as error:
        raise PoolUnavailableError(f"cannot create the runtime directory {root}: {error}") from error
    remedy = "remove it, or set FXPOOL_RUNTIME_DIR to a directory that you own"
    if not stat.S_ISDIR(facts.st_mode):
        raise UnsafeRuntimeDirectoryError(
            f"the runtime directory {root} is not a directory (links are refused)", remedy=remedy
        )
    if facts.st_uid != os.getuid():
        owner, user = directories.user_name(facts.st_uid), directories.user_name(os.getuid())
        raise UnsafeRuntimeDirectoryError(
            f"the runtime directory {root} belongs to {owner}, not to {user}", remedy=remedy
        )
    refused = 0o077 if private else 0o022
    if facts.st_mode & refused:
        raise UnsafeRuntimeDirectoryError(
            f"the runtime directory {root} is open to {directories.opened_to(facts.st_mode, refused)}", remedy=remedy
        )
    # A user who can replace the directory can put another server's socket there.
    danger = directories.danger_above(str(root), config.trusted_owners())
    if danger is not None:
        raise UnsafeRuntimeDirectoryError(
            f"{danger.path}, in the path of the runtime directory {root}, {danger.fault}: other users could replace "
            "the runtime directory",
            remedy=f"{danger.mend}, or set FXPOOL_RUNTIME_DIR to another directory",
        )
    return root
