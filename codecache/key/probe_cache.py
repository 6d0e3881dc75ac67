"""Cache the results of slow probes beside the graphs. A result is valid while the probed file is unchanged.

A file counts as unchanged while its real path, device, inode, size and times are the same. Answers contain no paths.
If an answer can't be read, the probe runs again; if it can't be written, the next process runs the probe again. Neither
is an error. Answers are records (`codecache.store.small_records`), by the digest of question and file.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Sequence

import msgspec

from fxpool.codecache.store.small_records import Records
from fxpool.errors import StoreError

Identity = tuple["str | int", ...]


def identity_of(path: str) -> Identity:
    """Return facts that distinguish a file from every other file, and from itself after a change. Raises OSError."""
    real = os.path.realpath(path)
    status = os.stat(real)
    return real, status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _decode(content: bytes, _: float) -> dict[str, str]:
    return msgspec.json.decode(content, type=dict[str, str])


_answers: Records[dict[str, str]] = Records("toolchain", msgspec.json.encode, _decode, suffix=".json")


def read(root: str | None, question: Sequence[str], identity: Identity) -> dict[str, str] | None:
    """Return the stored answer to a question about a file; None without an answer or if the directory is unsafe."""
    return _answers.find(root, _key(question, identity)) if root is not None else None


def write(root: str | None, question: Sequence[str], identity: Identity, answer: dict[str, str]) -> None:
    """Store an answer for the next process. Failures to write are ignored."""
    if root is not None:
        with contextlib.suppress(StoreError):
            _answers.add(root, _key(question, identity), answer)


class FactCache:
    """The answers stored under `root`, as an object for modules that must not import this package."""

    def __init__(self, root: str | None) -> None:
        self._root = root

    def read(self, question: Sequence[str], identity: Identity) -> dict[str, str] | None:
        return read(self._root, question, identity)

    def write(self, question: Sequence[str], identity: Identity, answer: dict[str, str]) -> None:
        write(self._root, question, identity, answer)


def _key(question: Sequence[str], identity: Identity) -> str:
    return hashlib.sha256(json.dumps([list(question), list(identity)]).encode()).hexdigest()
