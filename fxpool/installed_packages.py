"""Digests of the installed code used by compiles: torch, Triton and sympy, by content.

Part of each graph's key (`codecache.key.system_facts`), and of the name of the server whose workers have exactly this
code (`pool.client.identity`). Every file in the directories that this process imports from counts by content: edited in
place, added or removed, in a tree earlier on the path than the installed one, in an editable or develop install. A file
that was only touched, or restored, does not count. Few files are read: a distribution's RECORD holds the digest of each
installed file, which is right for files that are not newer. The RECORD counts as well, because two builds of one
version may differ in files that are not listed.

    RECORD ──▶ digest of its lines
    tree   ──▶ digest of each file's content: of the RECORD, or read if the file is newer or of another size ──▶ digest

Left out: compiled bytecode, and headers, which `codecache.key.headers` identifies. Imports nothing of torch; facts hold
no absolute path.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import hashlib
import importlib.metadata
import importlib.util
import json
import marshal
import os
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Protocol

__all__ = ["PACKAGES", "FactCache", "Package", "facts", "version"]

Identity = tuple["str | int", ...]


@dataclasses.dataclass(frozen=True)
class Package:
    """A package used by compiles. `roots` are importable names; it is installed under one of `distributions`.

    `left_out` are directories that no compile imports, as in a RECORD.
    """

    name: str
    roots: tuple[str, ...]
    distributions: tuple[str, ...]
    left_out: tuple[str, ...] = ()


class FactCache(Protocol):
    """Stores answers for the next process; `codecache.key.probe_cache` implements it."""

    def read(self, question: Sequence[str], identity: Identity) -> dict[str, str] | None: ...
    def write(self, question: Sequence[str], identity: Identity, answer: dict[str, str]) -> None: ...


PACKAGES = (
    Package(
        "torch",
        ("torch", "torchgen", "functorch"),
        ("torch",),
        ("torch/include", "torch/share"),
    ),
    Package(
        "triton",
        ("triton",),
        ("triton", "pytorch-triton", "pytorch-triton-rocm", "triton-rocm", "triton-xpu"),
    ),
    Package(
        "sympy",
        ("sympy",),
        ("sympy",),
        # With the tests, half of its files.
        ("sympy/physics", "sympy/plotting", "sympy/stats", "sympy/testing"),
    ),
)
_NEVER = ("__pycache__", "tests", "benchmarks")
# Seconds that a file must have been unchanged before its state can stand for its content: clocks of file systems tick
# a hundred times a second, so that two edits can have the same time.
_SETTLED = 2.0
# Nanoseconds: files up to this much older than the RECORD are read, too, because archives round times to seconds.
_SLACK = 2 * 10**9
# Bytes above which a file's digest is stored separately: large libraries seldom change with the other files.
_LARGE = 4 << 20


def version(distribution: str) -> str:
    """Return the version of an installed distribution, or ""."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return ""


def facts(cache: FactCache | None = None, packages: Sequence[Package] = PACKAGES) -> dict[str, str]:
    """Return versions, and digests of RECORDs and of content, by name of the fact.

    If `cache` has the answer, the state of every file is checked and none is read: 9 ms for torch's 2,800, 2 for sympy,
    1 for Triton (once per process, on a shared AMD EPYC; nothing less would see an edit in place, which leaves its
    directory unchanged). Otherwise directories are listed and files that may differ are read: 90 ms, seconds for a
    develop install with its libraries. Packages that are not installed have no facts.
    """
    fact_by_name: dict[str, str] = {}
    for package in packages:
        fact_by_name.update(_facts(package, cache))
    return fact_by_name


def _facts(package: Package, cache: FactCache | None) -> dict[str, str]:
    records: list[_Record] = []
    for name in package.distributions:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            records.append(_Record(name, importlib.metadata.distribution(name)))
    versions = {record.name: record.distribution.version for record in records}
    places = [(root, place) for root in package.roots for place in _places(root)]
    if not places:
        return versions
    question = ["installed", package.name]
    identity = (
        *(part for root, place in places for part in (root, os.path.realpath(place))),
        *(part for record in records for part in record.identity()),
    )
    answer = cache.read(question, identity) if cache is not None else None
    if answer is not None and _holds(answer):
        return {**versions, **{name: value for name, value in answer.items() if name not in ("listing", "stamp")}}
    listing = _listed(package, places)
    stamp = _stamp(listing)
    of_package = {f"{record.name}_files": digest for record in records if (digest := record.read(package.roots))}
    files = list(_files(listing))
    content = sorted(f"{name} {_content(name, path, status, records, cache)}" for name, path, status in files)
    of_package[f"{package.name}_content"] = hashlib.sha256(
        "\n".join(content).encode("utf-8", "surrogateescape")
    ).hexdigest()
    # The clock of the file system has to have ticked since the last change.
    settled = max((status.st_ctime_ns for _, _, status in files), default=0) < (time.time() - _SETTLED) * 1e9
    if cache is not None and settled and _stamp(listing) == stamp:
        cache.write(question, identity, {**of_package, "listing": json.dumps(listing), "stamp": stamp})
    return {**versions, **of_package}


def _holds(answer: dict[str, str]) -> bool:
    """Return whether the files that an answer was computed from are unchanged."""
    try:
        return _stamp(json.loads(answer["listing"])) == answer["stamp"]
    except (KeyError, TypeError, ValueError):
        return False


class _Record:
    """A distribution, and the files of a package as it installed them: digest and size by name."""

    def __init__(self, name: str, distribution: importlib.metadata.Distribution) -> None:
        self.name, self.distribution = name, distribution
        self._files: dict[str, tuple[str, int]] = {}
        self._status: os.stat_result | None = None
        with contextlib.suppress(OSError):  # an egg, an archive
            self._status = os.stat(os.path.join(str(getattr(distribution, "_path", "")), "RECORD"))

    def identity(self) -> Identity:
        status = self._status
        if status is None:
            return (self.distribution.version,)
        return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns

    def read(self, roots: Sequence[str]) -> str:
        """Read the lines about files below `roots`; return their digest, "" without any."""
        text = self.distribution.read_text("RECORD") or ""
        prefixes = tuple(f"{root}/" for root in roots)
        # Lines about bytecode differ between machines.
        lines = sorted(line for line in text.splitlines() if line.startswith(prefixes) and ".pyc," not in line)
        for line in lines:
            name, digest, size = line.rsplit(",", 2)
            if size.isdigit():
                self._files[name.strip('"')] = digest.removeprefix("sha256="), int(size)
        return hashlib.sha256("\n".join(lines).encode()).hexdigest() if lines else ""

    def digest_of(self, name: str, status: os.stat_result) -> str:
        """Return the digest of a file's content if it is as installed, "" if it has to be read."""
        digest, size = self._files.get(name, ("", -1))
        if self._status is None or status.st_size != size:
            return ""
        # The ctime cannot be set, so it shows an edit whose mtime was restored. Links and unpacking in another order
        # change it, too; for libraries, which can have gigabytes and would have to be read, size and mtime are enough.
        if status.st_size >= _LARGE:
            return digest if status.st_mtime_ns <= self._status.st_mtime_ns else ""
        newer = max(status.st_mtime_ns - self._status.st_mtime_ns, status.st_ctime_ns - self._status.st_ctime_ns)
        return digest if newer < -_SLACK else ""


# A row per directory: its name as in a RECORD, its path, and the names of its files.
_Listing = Sequence[tuple[str, str, Sequence[str]]]


def _places(root: str) -> list[str]:
    """Return the directories of an importable package: those of the imported module, else those an import would use."""
    module = sys.modules.get(root)
    if module is None:
        spec = importlib.util.find_spec(root)
        places = spec.submodule_search_locations if spec is not None else None
    else:
        places = getattr(module, "__path__", None)
    return [os.path.abspath(place) for place in places or ()]


def _listed(package: Package, places: Sequence[tuple[str, str]]) -> _Listing:
    """List the directories of a package. Links are followed, because an overlay may consist of links."""
    listing: list[tuple[str, str, list[str]]] = []
    for root, place in places:
        seen: set[tuple[int, int]] = set()
        waiting = [(root, place)]
        while waiting:
            name, path = waiting.pop()
            try:
                status = os.stat(path)
                with os.scandir(path) as listed:
                    entries = sorted(listed, key=lambda entry: entry.name)
            except OSError:
                continue
            if (status.st_dev, status.st_ino) in seen:  # a link to a directory above
                continue
            seen.add((status.st_dev, status.st_ino))
            names = [entry.name for entry in entries if _counts(name, entry.name)]
            directories = [
                (f"{name}/{entry.name}", entry.path)
                for entry in entries
                if entry.name not in _NEVER and entry.is_dir() and f"{name}/{entry.name}" not in package.left_out
            ]
            waiting += reversed(directories)
            if names or directories:
                listing.append((name, path, names))
    return listing


def _counts(directory: str, name: str) -> bool:
    """Return whether a file's content can affect a compile, by its directory and name."""
    if name.endswith((".py", ".so", ".jinja")) or ".so." in name:
        return True
    # Triton's assembler, its device library, the C sources of its launchers.
    return name.endswith((".bc", ".c", ".cpp")) or directory.endswith("/bin")


def _stamp(listing: _Listing) -> str:
    """Return the digest of the state of every directory and file. Any edit changes a file's ctime."""
    states: list[int] = []
    look, take = os.stat, states.extend
    for _, path, names in listing:
        try:
            # Names below an open directory: a path of ten parts takes twice as long.
            directory = os.open(path, os.O_PATH | os.O_DIRECTORY)
        except OSError:
            take((-1,))
            continue
        try:
            status = look(directory)
            take((status.st_ino, status.st_mtime_ns))
            for name in names:
                try:
                    status = look(name, dir_fd=directory)
                except OSError:
                    take((-1,))
                else:
                    take((status.st_size, status.st_ctime_ns, status.st_ino))
        finally:
            os.close(directory)
    return hashlib.sha256(marshal.dumps(states, 2)).hexdigest()


def _files(listing: _Listing) -> Iterator[tuple[str, str, os.stat_result]]:
    """Yield (name as in a RECORD, path, state) of each existing file."""
    for directory, path, names in listing:
        for name in names:
            with contextlib.suppress(OSError):  # a link to nowhere
                yield f"{directory}/{name}", f"{path}/{name}", os.stat(f"{path}/{name}")


def _content(name: str, path: str, status: os.stat_result, records: Sequence[_Record], cache: FactCache | None) -> str:
    """Return a file's digest in the form of a RECORD; "" if the file cannot be read."""
    if recorded := next(filter(None, (record.digest_of(name, status) for record in records)), ""):
        return recorded
    large = cache if status.st_size >= _LARGE else None
    identity = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    known = large.read(["content"], identity) if large is not None else None
    if known is not None and "digest" in known:
        return known["digest"]
    whole = hashlib.sha256()
    try:
        with open(path, "rb") as file:
            while block := file.read(1 << 20):
                whole.update(block)
    except OSError:
        return ""
    digest = base64.urlsafe_b64encode(whole.digest()).rstrip(b"=").decode()
    if large is not None and status.st_ctime_ns < (time.time() - _SETTLED) * 1e9:
        large.write(["content"], identity, {"digest": digest})
    return digest
