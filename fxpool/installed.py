"""What is installed of the code that compiles: torch, Triton and sympy, by content.

One notion for two uses: it is in every graph's key (`codecache.system`), and it names the server whose workers have
just this code (`pool.identity`). A distribution's RECORD holds the digest of every file that was installed, so two
builds of one version differ in it. What differs from the RECORD now counts by its own content: a file edited in place,
added or removed, a tree that lies earlier on the path than the installed one, an editable or develop install, which has
no such lines at all. A file that was only touched, or copied to where it was, is none of these.

    RECORD ──▶ digest of what was installed
    tree   ──▶ files newer than their RECORD, or of another size ──▶ those whose content differs ──▶ their digest

Compiled byte code is left out, and so are headers that no kernel includes. Nothing of torch is imported here, and facts
hold no absolute path.
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
    """Code that compiles. `roots` are importable names, `distributions` what it is installed by (one of them).

    `left_out` are directories that nothing on the way of a graph imports, `headers` those that hold what C++ kernels
    include; all are written as in a RECORD.
    """

    name: str
    roots: tuple[str, ...]
    distributions: tuple[str, ...]
    left_out: tuple[str, ...] = ()
    headers: tuple[str, ...] = ()


class Kept(Protocol):
    """Where answers are kept for the next process, as `codecache.probe_cache` does."""

    def read(self, question: Sequence[str], identity: Identity) -> dict[str, str] | None: ...
    def write(self, question: Sequence[str], identity: Identity, answer: dict[str, str]) -> None: ...


_INCLUDED = ("ATen/cpu", "ATen/native/cpu", "c10/core", "c10/macros", "c10/util", "torch/csrc/inductor",
             "torch/headeronly")  # fmt: skip

PACKAGES = (
    Package(
        "torch",
        ("torch", "torchgen", "functorch"),
        ("torch",),
        ("torch/include", "torch/share"),
        tuple(f"torch/include/{name}" for name in _INCLUDED),
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
# Seconds that a file must have been left alone before its state can stand for its content: clocks of file systems tick
# a hundred times a second, so that two edits can leave one time.
_SETTLED = 2.0
# Nanoseconds before the RECORD was written from which on a file is read: archives round times to seconds.
_SLACK = 2 * 10**9
# Bytes above which a file's digest is kept by itself: libraries of hundreds of megabytes seldom change with the rest.
_LARGE = 4 << 20


def version(distribution: str) -> str:
    """Version of an installed distribution, or the empty text."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return ""


def facts(kept: Kept | None = None, packages: Sequence[Package] = PACKAGES) -> dict[str, str]:
    """Versions, digests of RECORDs and of what differs from them now, by name; no row for what is not installed.

    A process that finds the answer in `kept` asks for the state of every file and reads none: 9 ms for torch's 2,800,
    2 for sympy, 1 for Triton (once per process, on a shared AMD EPYC; nothing less would see an edit in place, which
    leaves its directory as it was). Otherwise directories are listed and what may differ is read: 90 ms, seconds for
    a develop install with its libraries.
    """
    found: dict[str, str] = {}
    for package in packages:
        found.update(_facts(package, kept))
    return found


def _facts(package: Package, kept: Kept | None) -> dict[str, str]:
    found, records = {}, []
    for name in package.distributions:
        try:
            distribution = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        found[name] = distribution.version
        records.append((name, distribution))
    tree = _Tree(package)
    if not tree.places:
        return found
    question = ["installed", package.name]
    identity = (*tree.identity(), *(part for _, record in records for part in _identity(record)))
    answer = kept.read(question, identity) if kept is not None else None
    if answer is not None and tree.load(answer.get("tree", "")) and tree.stamp() == answer.get("stamp"):
        found.update({name: value for name, value in answer.items() if name not in ("tree", "stamp")})
        return found
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
    return {**found, **of_package}


def _identity(distribution: importlib.metadata.Distribution) -> Identity:
    try:
        status = os.stat(os.path.join(str(getattr(distribution, "_path", "")), "RECORD"))
    except OSError:  # an egg, an archive
        return (distribution.version,)
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


class _Recorded:
    """The files of a package as they were installed: digest and size by name."""

    def __init__(self, package: Package) -> None:
        self._prefixes = tuple(f"{root}/" for root in package.roots)
        self.files: dict[str, tuple[str, int]] = {}
        self.modified = self.changed = 0  # when, in ns; what is not newer is what was installed

    def add(self, distribution: importlib.metadata.Distribution) -> str:
        """Take up a distribution's RECORD. Returns the digest of what it says of the package, empty for nothing."""
        text = distribution.read_text("RECORD") or ""
        # Lines about byte code differ between machines.
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
            pass  # nothing says when: every file counts by its content
        else:
            self.modified = max(self.modified, status.st_mtime_ns)
            self.changed = max(self.changed, status.st_ctime_ns)
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()


class _Tree:
    """The files of a package where this process imports it from, or would."""

    def __init__(self, package: Package) -> None:
        self._package = package
        self.places = [(root, place) for root in package.roots for place in _places(root)]
        self._found: dict[tuple[int, str], list[str]] = {}  # names by place and directory

    def identity(self) -> Identity:
        return tuple(part for root, place in self.places for part in (root, os.path.realpath(place)))

    def walk(self) -> None:
        """List the directories. Links are followed: an overlay may be made of them."""
        self._found = {}
        for number, (root, place) in enumerate(self.places):
            seen: set[tuple[int, int]] = set()
            waiting = ["", *(name.removeprefix(root) for name in self._package.headers if name.startswith(f"{root}/"))]
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
        """Digest of the state of every directory and file. A file's time of change is that of any edit."""
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
        """Whether nothing was changed just now, when the file system's clock may not have ticked since."""
        return max((status.st_ctime_ns for _, _, status in self.files()), default=0) < (time.time() - _SETTLED) * 1e9

    def files(self) -> Iterator[tuple[str, str, os.stat_result]]:
        """(name as in a RECORD, path, state) of each file that is there."""
        for (number, below), names in self._found.items():
            root, place = self.places[number]
            for name in names:
                path = f"{place}{below}/{name}"
                try:
                    yield f"{root}{below}/{name}", path, os.stat(path)
                except OSError:  # a link to nowhere
                    continue

    def holds(self, name: str) -> bool:
        """Whether a file of a RECORD is one that would have been listed."""
        below, _, last = name.rpartition("/")
        parts = below.split("/")
        if any(part in _NEVER for part in parts) or not _counts(f"/{'/'.join(parts[1:])}", last):
            return False
        if any(below == header or below.startswith(f"{header}/") for header in self._package.headers):
            return True
        return not any(below == left or below.startswith(f"{left}/") for left in self._package.left_out)

    def dump(self) -> str:
        """The list of files, without where they are; empty if a name can't be written so."""
        lines = [f"{number}{below}\t" + "\t".join(names) for (number, below), names in self._found.items()]
        names = [part for (_, below), names in self._found.items() for part in (below, *names)]
        return "" if any("\n" in name or "\t" in name for name in names) else "\n".join(lines)

    def load(self, text: str) -> bool:
        """Take a list that `dump` gave; False if it is none."""
        self._found = {}
        for line in text.splitlines():
            directory, *names = line.split("\t")
            number, slash, below = directory.partition("/")
            if not number.isdigit() or int(number) >= len(self.places):
                return False
            self._found[int(number), slash + below] = [name for name in names if name]
        return bool(self._found)


def _counts(below: str, name: str) -> bool:
    """Whether a file's content can change what is compiled, by the directory it is in and its name."""
    if name.endswith((".py", ".so")) or ".so." in name:
        return True
    if below.startswith("/include/"):
        return name.endswith((".h", ".hpp"))
    # Triton's assembler, its library for devices, the C of its launchers.
    return name.endswith((".bc", ".c", ".cpp")) or below.endswith("/bin")


def _places(root: str) -> list[str]:
    """The directories of an importable package: those of the one that is imported, or of the one that would be."""
    module = sys.modules.get(root)
    if module is None:
        spec = importlib.util.find_spec(root)
        found = spec.submodule_search_locations if spec is not None else None
    else:
        found = getattr(module, "__path__", None)
    return [os.path.abspath(place) for place in found or ()]


def _edited(tree: _Tree, recorded: _Recorded, kept: Kept | None) -> Iterator[str]:
    """A line for each file that is not as it was installed: its name, and the digest of its content if it is there."""
    present = set()
    for name, path, status in tree.files():
        present.add(name)
        digest, size = recorded.files.get(name, ("", -1))
        # The time of a file's last change can't be set, so it shows an edit that has an old time put back. Links and
        # unpacking in another order change it, too; of a library of gigabytes, which has to be read then, its size and
        # when it was written are enough.
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
    """A file's digest, as a RECORD writes it; empty if it can't be read."""
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
