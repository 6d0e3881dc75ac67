"""Digests of the installed code used by compiles: torch, Triton and sympy, by content.

Part of each graph's key (`codecache.key.system`), and of the name of the server whose workers have exactly this code
(`pool.client.identity`). A distribution's RECORD holds the digest of every installed file, so two builds of one version
differ in it. Deviations from the RECORD count by content: a file edited in place, added or removed, a tree
earlier on the path than the installed one, an editable or develop install (whose RECORD lists no such files). A file
that was only touched, or restored, does not count.

    RECORD ──▶ digest of the installed files
    tree   ──▶ files newer than their RECORD, or of another size ──▶ those whose content differs ──▶ their digest

Left out: compiled bytecode, and headers, which `codecache.key.headers` identifies. Imports nothing of torch; facts hold
no absolute path.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import importlib.metadata
import importlib.util
import marshal
import os
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Protocol

__all__ = ["PACKAGES", "Kept", "Package", "facts", "version"]

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


class Kept(Protocol):
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


def facts(kept: Kept | None = None, packages: Sequence[Package] = PACKAGES) -> dict[str, str]:
    """Return versions, digests of RECORDs, and digests of deviations from them, by name of the fact.

    If `kept` has the answer, the state of every file is checked and none is read: 9 ms for torch's 2,800, 2 for sympy,
    1 for Triton (once per process, on a shared AMD EPYC; nothing less would see an edit in place, which leaves its
    directory unchanged). Otherwise directories are listed and files that may differ are read: 90 ms, seconds for a
    develop install with its libraries. Packages that are not installed have no facts.
    """
    fact_by_name: dict[str, str] = {}
    for package in packages:
        fact_by_name.update(_facts(package, kept))
    return fact_by_name


def _facts(package: Package, kept: Kept | None) -> dict[str, str]:
    fact_by_name, records = {}, []
    for name in package.distributions:
        try:
            distribution = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        fact_by_name[name] = distribution.version
        records.append((name, distribution))
    tree = _Tree(package)
    if not tree.places:
        return fact_by_name
    question = ["installed", package.name]
    identity = (*tree.identity(), *(part for _, record in records for part in _identity(record)))
    answer = kept.read(question, identity) if kept is not None else None
    if answer is not None and tree.load(answer.get("tree", "")) and tree.stamp() == answer.get("stamp"):
        fact_by_name.update({name: value for name, value in answer.items() if name not in ("tree", "stamp")})
        return fact_by_name
    tree.walk()
    stamp = tree.stamp()
    of_package = {}
    recorded = _Recorded(package)
    for name, distribution in records:
        if digest := recorded.add(distribution):
            of_package[f"{name}_files"] = digest
    if edited := list(_edited(tree, recorded, kept)):
        of_package[f"{package.name}_edited"] = hashlib.sha256("\n".join(edited).encode()).hexdigest()
    if kept is not None and tree.is_settled() and tree.stamp() == stamp:
        kept.write(question, identity, {**of_package, "tree": tree.dump(), "stamp": stamp})
    return {**fact_by_name, **of_package}


def _identity(distribution: importlib.metadata.Distribution) -> Identity:
    try:
        status = os.stat(os.path.join(str(getattr(distribution, "_path", "")), "RECORD"))
    except OSError:  # an egg, an archive
        return (distribution.version,)
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


class _Recorded:
    """The files of a package as installed: digest and size by name."""

    def __init__(self, package: Package) -> None:
        self._prefixes = tuple(f"{root}/" for root in package.roots)
        self.files: dict[str, tuple[str, int]] = {}
        self.modified = self.changed = 0  # the RECORD's times in ns; files that are not newer are unchanged

    def add(self, distribution: importlib.metadata.Distribution) -> str:
        """Add a distribution's RECORD. Return the digest of its lines about the package, "" without any."""
        text = distribution.read_text("RECORD") or ""
        # Lines about bytecode differ between machines.
        lines = sorted(line for line in text.splitlines() if line.startswith(self._prefixes) and ".pyc," not in line)
        if not lines:
            return ""
        for line in lines:
            name, digest, size = line.rsplit(",", 2)
            if size.isdigit():
                self.files[name.strip('"')] = digest.removeprefix("sha256="), int(size)
        try:
            status = os.stat(os.path.join(str(getattr(distribution, "_path", "")), "RECORD"))
        except OSError:
            pass  # without a time, all files count by content
        else:
            self.modified = max(self.modified, status.st_mtime_ns)
            self.changed = max(self.changed, status.st_ctime_ns)
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()


class _Tree:
    """The files of a package in the directories from which this process imports it or would import it."""

    def __init__(self, package: Package) -> None:
        self._package = package
        self.places = [(root, place) for root in package.roots for place in _places(root)]
        self._found: dict[tuple[int, str], list[str]] = {}  # names by place and directory

    def identity(self) -> Identity:
        return tuple(part for root, place in self.places for part in (root, os.path.realpath(place)))

    def walk(self) -> None:
        """List the directories. Links are followed, because an overlay may consist of links."""
        self._found = {}
        for number, (root, place) in enumerate(self.places):
            seen: set[tuple[int, int]] = set()
            waiting = [""]
            while waiting:
                below = waiting.pop()
                try:
                    status = os.stat(place + below)
                    with os.scandir(place + below) as listed:
                        entries = sorted(listed, key=lambda entry: entry.name)
                except OSError:
                    continue
                if (status.st_dev, status.st_ino) in seen:  # a link to a directory above
                    continue
                seen.add((status.st_dev, status.st_ino))
                names = [entry.name for entry in entries if _counts(below, entry.name)]
                directories = [
                    f"{below}/{entry.name}"
                    for entry in entries
                    if entry.name not in _NEVER
                    and entry.is_dir()
                    and self._is_of_interest(f"{root}{below}/{entry.name}")
                ]
                waiting += reversed(directories)
                if names or directories:
                    self._found[number, below] = names

    def _is_of_interest(self, name: str) -> bool:
        return name not in self._package.left_out

    def stamp(self) -> str:
        """Return the digest of the state of every directory and file. Any edit changes a file's ctime."""
        states: list[int] = []
        look, take = os.stat, states.extend
        for (number, below), names in self._found.items():
            try:
                # Names below an open directory: a path of ten parts takes twice as long.
                directory = os.open(self.places[number][1] + below, os.O_PATH | os.O_DIRECTORY)
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

    def is_settled(self) -> bool:
        """Return whether the last change is long enough ago for the file system's clock to have ticked since."""
        return max((status.st_ctime_ns for _, _, status in self.files()), default=0) < (time.time() - _SETTLED) * 1e9

    def files(self) -> Iterator[tuple[str, str, os.stat_result]]:
        """Yield (name as in a RECORD, path, state) of each existing file."""
        for (number, below), names in self._found.items():
            root, place = self.places[number]
            for name in names:
                path = f"{place}{below}/{name}"
                try:
                    yield f"{root}{below}/{name}", path, os.stat(path)
                except OSError:  # a link to nowhere
                    continue

    def holds(self, name: str) -> bool:
        """Return whether a RECORD's file would be listed by `walk` if it existed."""
        below, _, last = name.rpartition("/")
        parts = below.split("/")
        if any(part in _NEVER for part in parts) or not _counts(f"/{'/'.join(parts[1:])}", last):
            return False
        return not any(below == left or below.startswith(f"{left}/") for left in self._package.left_out)

    def dump(self) -> str:
        """Return the list of files as text, without their places; "" if a name has a tab or line break."""
        lines = [f"{number}{below}\t" + "\t".join(names) for (number, below), names in self._found.items()]
        names = [part for (_, below), names in self._found.items() for part in (below, *names)]
        return "" if any("\n" in name or "\t" in name for name in names) else "\n".join(lines)

    def load(self, text: str) -> bool:
        """Restore a list from `dump`; return False if `text` is not one."""
        self._found = {}
        for line in text.splitlines():
            directory, *names = line.split("\t")
            number, slash, below = directory.partition("/")
            if not number.isdigit() or int(number) >= len(self.places):
                return False
            self._found[int(number), slash + below] = [name for name in names if name]
        return bool(self._found)


def _counts(below: str, name: str) -> bool:
    """Return whether a file's content can affect a compile, by its directory and name."""
    if name.endswith((".py", ".so")) or ".so." in name:
        return True
    # Triton's assembler, its device library, the C sources of its launchers.
    return name.endswith((".bc", ".c", ".cpp")) or below.endswith("/bin")


def _places(root: str) -> list[str]:
    """Return the directories of an importable package: those of the imported module, else those an import would use."""
    module = sys.modules.get(root)
    if module is None:
        spec = importlib.util.find_spec(root)
        places = spec.submodule_search_locations if spec is not None else None
    else:
        places = getattr(module, "__path__", None)
    return [os.path.abspath(place) for place in places or ()]


def _edited(tree: _Tree, recorded: _Recorded, kept: Kept | None) -> Iterator[str]:
    """Yield a line for each file that differs from its installation: its name, and its digest or "is gone"."""
    present = set()
    for name, path, status in tree.files():
        present.add(name)
        digest, size = recorded.files.get(name, ("", -1))
        # The ctime cannot be set, so it shows an edit whose mtime was restored. Links and unpacking in another order
        # change it, too; for libraries, which can have gigabytes and would have to be read, size and mtime are enough.
        newer = status.st_mtime_ns > recorded.modified
        if status.st_size < _LARGE:
            times = status.st_mtime_ns - recorded.modified, status.st_ctime_ns - recorded.changed
            newer = max(times) >= -_SLACK
        if status.st_size == size and not newer:
            continue
        content = _content(path, status, kept)
        if content and content != digest:
            yield f"{name} {content}"
    for name in sorted(recorded.files.keys() - present):
        if tree.holds(name):
            yield f"{name} is gone"


def _content(path: str, status: os.stat_result, kept: Kept | None) -> str:
    """Return a file's digest in the form of a RECORD; "" if the file cannot be read."""
    large = kept if status.st_size >= _LARGE else None
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
