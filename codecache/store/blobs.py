"""Private files, which no other user could have written, and the immutable blobs stored in them.

The store writes with `write_private` (temporary name in the destination's directory, fsync, rename). It reads with
`read_stored`, which refuses a file that another user owns or can write to or exchange, because entries and blobs run as
code.

    write_private(path, data) ──▶ .tmp-<host>-<pid>-<random> ──fsync──rename──▶ path, fsync of the directory
    read_stored(path)         ◀── O_NOFOLLOW, regular file, our uid, no write bit for others; its directory alike
    open_blob_file(path)      ◀── likewise; the digest is verified through the descriptor that is loaded

This module imports neither torch nor any other slow package, because the command line reads the cache with it.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import secrets
import stat
import time
from collections.abc import Collection

import msgspec

from fxpool import config, directories, forks
from fxpool.codecache.store.layout import DIRECTORIES, TEMPORARY_PREFIX
from fxpool.errors import CorruptEntryError, StoreError, UnsafeDirectoryError

#: Seconds; a writer that has not renamed its file for this long is dead, or stuck in a way that a retry repairs.
TEMPORARY_MAX_AGE = 3600.0

_BLOB_NAME = re.compile(r"([0-9a-f]{64})-([0-9]{1,15})\Z")
# Errors of a directory that a concurrent clear has removed: worth another try.
_VANISHED = (errno.ENOENT, errno.ESTALE)
_ATTEMPTS = 20


class BlobRef(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The name of a blob: sha256 (lower-case hex) and size in bytes of its content."""

    digest: str
    size: int

    @property
    def name(self) -> str:
        """The file name, `<digest>-<size>`."""
        return f"{self.digest}-{self.size}"

    def relative_path(self) -> str:
        """Return the blob's path below the store's root.

        Raises CorruptEntryError if the reference is not a digest and a size, as its path could lie elsewhere.
        """
        if _BLOB_NAME.match(self.name) is None:
            raise CorruptEntryError(f"{self.name!r} is not the name of a blob")
        return os.path.join("blobs", self.digest[:2], self.name)

    @classmethod
    def of(cls, content: bytes) -> BlobRef:
        """Return the reference of `content`."""
        return cls(digest=hashlib.sha256(content).hexdigest(), size=len(content))

    @classmethod
    def from_name(cls, name: str) -> BlobRef | None:
        """Return the reference that a file name stands for; None for any other name."""
        match = _BLOB_NAME.match(name)
        return cls(digest=match[1], size=int(match[2])) if match else None


class UnsafeFileError(StoreError):
    """Another user owns a file in the store, or can write to it. Never leaves the store: it is a miss."""


class StoreWriteError(StoreError):
    """Writing to the store failed; `reason`, the errno's name (`ENOSPC`, `EROFS`, ...), is counted."""

    def __init__(self, message: str, reason: str, detail: str = "", *, remedy: str = "") -> None:
        self.reason = reason
        super().__init__(f"{message}: {reason}" + (f" ({detail})" if detail else ""), remedy=remedy)


_REMEDIES = {
    "ENOSPC": "free some space, or set FXPOOL_CACHE_DIR to a directory on another disk",
    "EDQUOT": "the quota is used up: free some space, or set FXPOOL_CACHE_DIR to a directory on another disk",
    "EROFS": "the disk is read-only: set FXPOOL_CACHE_DIR to a writable directory",
    "EACCES": "set FXPOOL_CACHE_DIR to a directory that you may write to",
    "EPERM": "set FXPOOL_CACHE_DIR to a directory that you may write to",
    "EMFILE": "raise the limit of open files (ulimit -n)",
    "ENFILE": "the host's table of open files is full: raise fs.file-max",
}
_REMEDY = "set FXPOOL_CACHE_DIR to a writable directory"


def write_error(message: str, error: OSError, remedy: str = "") -> StoreWriteError:
    """Return the StoreWriteError for an OSError, with the errno's name and a remedy (the cache directory's)."""
    reason = errno.errorcode.get(error.errno or 0, type(error).__name__)
    remedy = remedy or _REMEDIES.get(reason, _REMEDY)
    return StoreWriteError(message, reason, os.strerror(error.errno or 0), remedy=remedy)


def _host_tag() -> str:
    # Not cached, as a restored process may be on another host. A digest, since node names may hold characters that a
    # file name should not.
    return hashlib.sha256(os.uname().nodename.encode()).hexdigest()[:10]


def write_private(path: str, data: bytes, *, make_parents: bool = True, synced: bool = True) -> None:
    """Write `data` to `path` atomically, readable and writable by us alone.

    If another process removes the directory, it is created again, unless `make_parents` is False. Unless `synced`, the
    file may be empty after the host crashed. Raises StoreWriteError, and leaves no temporary file.
    """
    directory = os.path.dirname(path)
    for attempt in range(_ATTEMPTS):
        try:
            if make_parents:
                directories.make_private(directory)
            _write_once(directory, path, data, synced)
            return
        except OSError as error:
            if error.errno in _VANISHED and make_parents and attempt + 1 < _ATTEMPTS:
                time.sleep(0.0005 * attempt)
                continue
            raise write_error(f"cannot write {path}", error) from error


def _write_once(directory: str, path: str, data: bytes, synced: bool) -> None:
    temporary = os.path.join(directory, f"{TEMPORARY_PREFIX}{_host_tag()}-{os.getpid()}-{secrets.token_hex(8)}")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]
            if synced:
                os.fsync(fd)
        finally:
            os.close(fd)
        os.rename(temporary, path)
    except BaseException:
        try:
            os.unlink(temporary)
        except OSError:
            pass
        raise
    if synced:
        _sync_directory(directory)


def _sync_directory(directory: str) -> None:
    try:
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return  # another process removed it
    try:
        os.fsync(fd)
    except OSError:
        pass  # some network file systems refuse; the rename is done
    finally:
        os.close(fd)


def is_private(status: os.stat_result, owners: Collection[int] = ()) -> bool:
    """Return whether a file belongs to us (or to one of `owners`), and no other user can write to it."""
    return status.st_uid in (owners or (os.geteuid(),)) and not status.st_mode & 0o022


def open_private(
    path: str, owners: Collection[int] = (), *, directory: int | None = None
) -> tuple[int, os.stat_result]:
    """Open a private regular file of ours (or of one of `owners`); return its read-only descriptor and status.

    `directory`: the descriptor of the file's directory, in which its name is looked up. Raises UnsafeFileError if it is
    a link, not a regular file, or others could have written to it; OSError.
    """
    name = path if directory is None else os.path.basename(path)
    try:
        # O_NONBLOCK: opening a FIFO that another user created must not hang.
        fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=directory)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise UnsafeFileError(f"{path} is a symbolic link") from error
        raise
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise UnsafeFileError(f"{path} is not a regular file")
        _require_private(path, status, owners)
    except BaseException:
        os.close(fd)
        raise
    return fd, status


def open_stored(path: str, owners: Collection[int] = ()) -> tuple[int, os.stat_result]:
    """Like `open_private`, for an entry or a blob, whose directory has to be private as well."""
    above = os.path.dirname(path)
    directory = os.open(above, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        _require_private(above, os.fstat(directory), owners)
        return open_private(path, owners, directory=directory)
    finally:
        os.close(directory)


def _require_private(path: str, status: os.stat_result, owners: Collection[int]) -> None:
    if not is_private(status, owners):
        raise UnsafeFileError(f"{path} has owner {status.st_uid} and mode {stat.S_IMODE(status.st_mode):04o}")


def read_private(path: str) -> tuple[bytes, os.stat_result]:
    """Return content and status of a private file of ours. Raises UnsafeFileError, OSError."""
    return _read_and_close(*open_private(path))


def read_stored(path: str, owners: Collection[int] = ()) -> tuple[bytes, os.stat_result]:
    """Like `read_private`, for an entry of ours or of one of `owners`, in a private directory."""
    return _read_and_close(*open_stored(path, owners))


def _read_and_close(fd: int, status: os.stat_result) -> tuple[bytes, os.stat_result]:
    try:
        return _content(fd), status
    finally:
        os.close(fd)


def _content(fd: int) -> bytes:
    chunks = []
    while chunk := os.read(fd, 1 << 24):
        chunks.append(chunk)
    return b"".join(chunks)


def check_directory(
    path: str, owners: Collection[int] = (), role: str = "cache directory", setting: str = "FXPOOL_CACHE_DIR"
) -> None:
    """Refuse a cache directory that other users could have written to, because its contents run as code.

    It and fxpool's directories in it must belong to us (or to one of `owners`) and not be writable by group or others.
    No other user may be able to replace it: see `directories.danger_above`. A missing directory passes if the existing
    directories above it do. The message uses `role` and `setting`. Raises UnsafeDirectoryError.
    """
    path = os.path.abspath(path)
    trusted = config.trusted_owners()
    danger = directories.danger_above(path, trusted)
    if danger is not None:
        raise UnsafeDirectoryError(
            f"{danger.path}, in the path of the {role} {path}, {danger.fault}: other users could replace the directory",
            remedy=f"{danger.mend}, or set {setting} to another directory",
        )
    real = os.path.realpath(path)
    try:
        status = os.stat(real)
    except OSError:
        return  # the first publication creates it
    if not stat.S_ISDIR(status.st_mode):
        raise UnsafeDirectoryError(f"the {role} {path} is not a directory", remedy=f"set {setting} to a directory")
    _check_owner(real, status, owners, f"the {role} {path}", setting)
    for name in DIRECTORIES:
        part = os.path.join(real, name)
        try:
            status = os.stat(part)
        except OSError:
            continue
        _check_owner(part, status, owners, f"{part}, in the {role},", setting)
        if os.path.islink(part) and (danger := directories.danger_above(part, trusted)) is not None:
            raise UnsafeDirectoryError(
                f"{danger.path}, in the path of {part}, {danger.fault}: other users could replace the directory",
                remedy=f"{danger.mend}, or set {setting} to another directory",
            )


def _check_owner(path: str, status: os.stat_result, owners: Collection[int], shown: str, setting: str) -> None:
    if is_private(status, owners):
        return
    users = owners or (os.geteuid(),)
    owner = directories.user_name(status.st_uid)
    if status.st_uid in users:
        wrong = f"belongs to {owner} and is writable by {directories.opened_to(status.st_mode)}"
        remedy = f"chmod go-w {path}"
    else:
        allowed = " or ".join(directories.user_name(user) for user in users)
        wrong = f"belongs to {owner} (mode {stat.S_IMODE(status.st_mode):04o}), not to {allowed}"
        remedy = f"set {setting} to a directory that {'you own' if len(users) == 1 else 'you or root own'}"
    raise UnsafeDirectoryError(f"{shown} {wrong}: its entries would run as code", remedy=remedy)


# (device, inode, size, mtime, ctime) of blobs whose digest this process has verified. ctime is included because the
# owner of a file can set back its mtime, but not its ctime.
_verified: dict[tuple[int, int, int, int, int], str] = {}
_verified_lock = forks.lock(__name__, "_verified_lock")


def _identity(status: os.stat_result) -> tuple[int, int, int, int, int]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def read_blob_file(path: str, ref: BlobRef, owners: Collection[int] = ()) -> bytes:
    """Return a blob's content. Raises CorruptEntryError if size or digest is wrong, UnsafeFileError, OSError."""
    fd, status = open_stored(path, owners)
    try:
        return _verified_content(fd, status, path, ref)
    finally:
        os.close(fd)


def open_blob_file(path: str, ref: BlobRef, owners: Collection[int] = ()) -> int:
    """Open and verify a blob, and return its descriptor. A file is read once per process unless it has changed.

    Errors as `read_blob_file`.
    """
    fd, status = open_stored(path, owners)
    try:
        with _verified_lock:
            known = _verified.get(_identity(status)) == ref.digest and status.st_size == ref.size
        if not known:
            _verified_content(fd, status, path, ref)
            os.lseek(fd, 0, os.SEEK_SET)
    except BaseException:
        os.close(fd)
        raise
    return fd


def verify_blob_file(path: str, ref: BlobRef, owners: Collection[int] = ()) -> None:
    """Verify a blob as `open_blob_file` does."""
    os.close(open_blob_file(path, ref, owners))


def _verified_content(fd: int, status: os.stat_result, path: str, ref: BlobRef) -> bytes:
    if status.st_size != ref.size:
        raise CorruptEntryError(f"{path} has {status.st_size} bytes instead of {ref.size}")
    data = _content(fd)
    if hashlib.sha256(data).hexdigest() != ref.digest:
        raise CorruptEntryError(f"the digest of {path} is wrong")
    with _verified_lock:
        _verified[_identity(status)] = ref.digest
    return data


def sweep_temporaries(directory: str, *, now: float | None = None) -> int:
    """Remove temporary files of dead writers from a directory; return how many. Never raises OSError."""
    now = time.time() if now is None else now
    removed = 0
    try:
        names = [name for name in os.listdir(directory) if name.startswith(TEMPORARY_PREFIX)]
    except OSError:
        return 0
    for name in names:
        path = os.path.join(directory, name)
        try:
            if now - os.lstat(path).st_mtime < TEMPORARY_MAX_AGE or _writer_lives(name):
                continue
            os.unlink(path)
            removed += 1
        except OSError:
            pass
    return removed


def _writer_lives(name: str) -> bool:
    """Return whether the writer named in a temporary file's name is a running process of this host."""
    parts = name[len(TEMPORARY_PREFIX) :].split("-")
    if len(parts) != 3 or parts[0] != _host_tag() or not parts[1].isdigit():
        return False
    try:
        os.kill(int(parts[1]), 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return False  # another user's process has that number now
    return True
