"""Identify by content the headers that generated C++ includes, as the compiler itself lists them.

    a source of each kind (`included_headers`) ──▶ g++ -M -v ──▶ files it reads    ──▶ their names and digests
                                                   └──▶ where it searches ──▶ directories in which others may appear

A header counts by its content, whichever of CPATH, an edit or another installation put it there. The compiler runs once
per host: afterwards, the state of each listed file and of each searched directory is compared (1 ms for 780 files and
70 directories), once a second at most. A file that was only touched, or an unrelated one in a searched directory,
makes the compiler run again and changes no digest.

A digest contains no paths. It is the same in the process that runs the compiler and in later ones.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import marshal
import os
import re
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from fxpool import forks, interruptions, temporary
from fxpool.codecache.key import probe_cache
from fxpool.torch_compat.cpp import included_headers

__all__ = ["KERNELS", "TARGET", "UnlistedError", "digests", "prerequisites"]

#: The target of rules that `prerequisites` reads.
TARGET = "header"
_TIMEOUT = 60.0
# Seconds for which files and directories are taken to be unchanged: a process may look up many graphs in one.
_CHECKED_FOR = 1.0
# Seconds before a compiler that listed none is asked again: the reason may be temporary, such as a lack of memory.
_FAILED_FOR = 60.0
# Seconds that a file must be unchanged before its times can identify its content.
_SETTLED = 2.0
#: Seconds by which the clock of a file server may be ahead.
_AHEAD = 3600.0
_WORD = re.compile(r"(?:\\[\s#\\]|[^\s])+")
_ESCAPED = re.compile(r"(\\*)\\([ \t#])|\$(\$)")
_MISSING = re.compile(r'^ignoring nonexistent directory "(.*)"$', re.M)
_SEARCHED = re.compile(r"^#include .* search starts here:\n(.*?)^End of search list\.$", re.M | re.S)


def _fact(kind: included_headers.Kind) -> str:
    return "_".join(part for part in ("headers", *kind) if part != "cpu")


#: The fact about the headers of kernels.
KERNELS = _fact(included_headers.KERNELS)


class UnlistedError(Exception):
    """Raised if the compiler does not say which headers generated C++ includes."""


@dataclasses.dataclass(frozen=True)
class _Listing:
    """The headers that a compiler has listed, and the directories in which another one may appear.

    `stamp` is the state of all of them for which `digest` holds.
    """

    digest: str
    stamp: str
    files: list[str]
    places: list[str]

    def holds(self) -> bool:
        return _state(self.files, self.places)[0] == self.stamp


# Listings, or errors, by question, and when they were last compared.
_known: dict[tuple[str, ...], tuple[_Listing | UnlistedError, float]] = {}
_lock = forks.lock(__name__, "_lock")


def digests(
    compiler: Sequence[str],
    about: Mapping[str, str],
    kinds: Iterable[included_headers.Kind],
    root: str | None,
    settle: Callable[[], object],
) -> dict[str, str]:
    """Return the digest of the headers of each kind of source, by the fact's name.

    `compiler` is the compiler's path, with any leading arguments, and `about` are its facts. `root` is the store's
    directory, where listings are stored for the next process. `settle` is called before Inductor builds commands.

    Raises UnlistedError: the compiler fails, or its output can't be understood.
    """
    found = {}
    for kind in kinds:
        decided = json.dumps([sorted(about.items()), included_headers.decided_by(kind)])
        question = ("headers", *kind, hashlib.sha256(decided.encode()).hexdigest(), compiler[0])
        with _lock:  # a second thread waits for the first one's answer
            found[_fact(kind)] = _listing(question, compiler, kind, root, settle).digest
    return found


def _listing(
    question: tuple[str, ...],
    compiler: Sequence[str],
    kind: included_headers.Kind,
    root: str | None,
    settle: Callable[[], object],
) -> _Listing:
    known, checked = _known.get(question, (None, 0.0))
    now = time.monotonic()
    if isinstance(known, UnlistedError):
        if 0 <= now - checked < _FAILED_FOR:  # a restored process may have an earlier clock
            raise known
    elif known is not None:
        if 0 <= now - checked < _CHECKED_FOR:
            return known
        if known.holds():
            _known[question] = known, now
            return known
    listing = _read(question, root)
    if listing is None or not listing.holds():
        settle()
        started = time.time()
        try:
            listing, changed = _asked(kind, compiler)
        except UnlistedError as error:
            _known[question] = error, now
            raise
        # Possibly after the compiler read it; asked again, then. A slow clock makes all files later than now.
        if started - _SETTLED < changed < time.time() + _AHEAD:
            _known.pop(question, None)
            return listing
        paths = json.dumps([listing.files, listing.places])
        probe_cache.write(root, question, (), {"digest": listing.digest, "stamp": listing.stamp, "paths": paths})
    _known[question] = listing, now
    return listing


def _read(question: tuple[str, ...], root: str | None) -> _Listing | None:
    answer = probe_cache.read(root, question, ())
    try:
        return _Listing(answer["digest"], answer["stamp"], *json.loads(answer["paths"])) if answer else None
    except (KeyError, TypeError, ValueError):
        return None


def _state(files: Sequence[str], places: Sequence[str]) -> tuple[str, float]:
    """Return the digest of the state of files and directories, and when the last of them changed.

    The ctime can't be set. A directory's shows that a file was added, removed or renamed in it.
    """
    states: list[int] = []
    latest = 0
    for path in (*files, *places):
        try:
            status = os.stat(path)
        except OSError:
            states.append(-1)
            continue
        size = 0 if stat.S_ISDIR(status.st_mode) else status.st_size
        states += (status.st_dev, status.st_ino, size, status.st_ctime_ns)
        latest = max(latest, status.st_ctime_ns)
    return hashlib.sha256(marshal.dumps(states, 2)).hexdigest(), latest / 1e9


def _asked(kind: included_headers.Kind, compiler: Sequence[str]) -> tuple[_Listing, float]:
    """Return the compiler's listing, and when the last of its files and directories changed. Raises UnlistedError."""
    found: dict[str, None] = {}
    searched: dict[str, None] = {}
    try:
        with temporary.directory("headers") as directory:
            runs: dict[str, subprocess.Popen[bytes]] = {}
            try:
                for command, source in included_headers.listing_commands(kind, compiler, directory):
                    runs[source] = _started(command, source)
                with interruptions.let_through():
                    ended = {source: run.wait(_TIMEOUT) for source, run in runs.items()}
            finally:
                _end(runs.values())
            for source, status in ended.items():
                read, places = _said(source, status)
                found.update(dict.fromkeys(read))
                searched.update(dict.fromkeys(places))
        files, names = list(found), {path: _below(path, searched) for path in found}
        places = _watched(searched, names.values())
        stamp, changed = _state(files, places)
        lines = sorted(f"{name} {_content(path)}" for path, name in names.items())
    except UnlistedError:
        raise
    except Exception as error:  # Inductor looks for the compiler again, and raises a different error in each place
        interruptions.pass_on(error)
        raise UnlistedError(f"the compiler does not list headers: {error}") from error
    whole = hashlib.sha256("\n".join(lines).encode("utf-8", "surrogateescape"))
    return _Listing(whole.hexdigest(), stamp, files, places), changed


def _started(command: Sequence[str], source: str) -> subprocess.Popen[bytes]:
    """Start a compiler that writes a make rule and its messages beside a source.

    The directory is empty but for the sources, as those in which workers compile: nothing is found by a relative path.
    """
    with open(f"{source}.err", "wb") as messages:
        return subprocess.Popen(
            [*command, "-MF", f"{source}.d", "-MT", TARGET],
            cwd=os.path.dirname(source),
            env={**os.environ, "LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=messages,
            start_new_session=True,  # for `_end`
        )


def _end(runs: Iterable[subprocess.Popen[bytes]]) -> None:
    """Kill the compilers that still run, with their children: g++ has cc1plus write the files."""
    for run in runs:
        if run.poll() is None:
            os.killpg(run.pid, signal.SIGKILL)
            run.wait()


def _said(source: str, status: int) -> tuple[list[str], list[str]]:
    """Return the headers that the compiler read for a source, and the directories in which it searched headers."""
    said = _text(f"{source}.err")
    if status != 0:
        complaint = next((line for line in said.splitlines() if "error:" in line), f"it ended with {status}")
        raise UnlistedError(f"the compiler does not list headers: {complaint}")
    read = prerequisites(_text(f"{source}.d"))
    searched = _SEARCHED.search(said)
    if searched is None or source not in read or not all(map(os.path.isabs, read)):
        raise UnlistedError("the compiler does not list headers: its output has another form than that of g++")
    lines = [line.strip() for line in searched[1].splitlines() if not line.startswith("#")]
    places = [*lines, *_MISSING.findall(said)]
    for place in places:
        if not os.path.isabs(place) and os.path.normpath(place).startswith(os.pardir):
            raise UnlistedError(f"the compiler searches headers in {place!r}, relative to where it is started")
    return [path for path in read if path != source], list(filter(os.path.isabs, places))


def _text(path: str) -> str:
    with open(path, encoding=sys.getfilesystemencoding(), errors="surrogateescape") as file:
        return file.read()


def prerequisites(rule: str) -> list[str]:
    """Return the files that a make rule for `TARGET` names, as compilers write it.

    Spaces and ``#`` in a file name are escaped by a backslash, and the backslashes before them are doubled, as is
    ``$``; quotes have no meaning.
    """

    def plain(match: re.Match[str]) -> str:
        return match[3] or match[1][::2] + match[2]

    words = _WORD.findall(rule.partition(":")[2].replace("\\\n", " "))
    return [_ESCAPED.sub(plain, word) for word in words]


def _below(path: str, places: Iterable[str]) -> str:
    """Return a header's name below the innermost include directory that contains it: its path on any machine."""
    roots = {root.rstrip("/") + "/" for place in places for root in (place, os.path.realpath(place))}
    inside = max((root for root in roots if path.startswith(root)), key=len, default=os.path.dirname(path) + "/")
    return os.path.normpath(path[len(inside) :])


def _watched(places: Iterable[str], names: Iterable[str]) -> list[str]:
    """Return the directories whose change may put a header before one of the same name, existing or not.

    A directory that is missing in an include directory shows in the state of the one above it when it appears.
    """
    parents = {""}
    for name in names:
        while name := os.path.dirname(name):
            parents.add(name)
    inside = [os.path.join(place, parent) for place in places for parent in sorted(parents) if parent]
    return [*places, *filter(os.path.isdir, inside)]


def _content(path: str) -> str:
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()
