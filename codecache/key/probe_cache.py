"""Cache the results of slow probes beside the graphs. A result is valid while the probed file is unchanged.

    <root>/toolchain/<digest of question and file>.json

A file counts as unchanged while its real path, device, inode, size and times are the same. Answers contain no paths.
If an answer can't be read, the probe runs again; if it can't be written, the next process runs the probe again. Neither
is an error.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence

from fxpool.codecache.store.blobs import check_directory, read_stored, write_private
from fxpool.errors import StoreError

Identity = tuple["str | int", ...]


def identity_of(path: str) -> Identity:
    """Return facts that distinguish a file from every other file, and from itself after a change. Raises OSError."""
    real = os.path.realpath(path)
    status = os.stat(real)
    return real, status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def read(root: str | None, question: Sequence[str], identity: Identity) -> dict[str, str] | None:
    """Return the stored answer to a question about a file; None without an answer or if the directory is unsafe."""
    if root is None:
        return None
    try:
        check_directory(root)
        answer = json.loads(read_stored(_place(root, question, identity))[0])
    except (OSError, StoreError, ValueError):
        return None
    sound = isinstance(answer, dict) and all(isinstance(value, str) for value in answer.values())
    return answer if sound else None


def write(root: str | None, question: Sequence[str], identity: Identity, answer: dict[str, str]) -> None:
    """Store an answer for the next process. Failures to write are ignored."""
    if root is None:
        return
    try:
        check_directory(root)
        write_private(_place(root, question, identity), json.dumps(answer).encode())
    except StoreError:
        pass


class FactCache:
    """The answers stored under `root`, as an object for modules that must not import this package."""

    def __init__(self, root: str | None) -> None:
        self._root = root

    def read(self, question: Sequence[str], identity: Identity) -> dict[str, str] | None:
        return read(self._root, question, identity)

    def write(self, question: Sequence[str], identity: Identity, answer: dict[str, str]) -> None:
        write(self._root, question, identity, answer)


def _place(root: str, question: Sequence[str], identity: Identity) -> str:
    digest = hashlib.sha256(json.dumps([list(question), list(identity)]).encode()).hexdigest()
    return os.path.join(root, "toolchain", f"{digest}.json")
