"""Identify by content the programs that a compiler command runs: compiler, wrapper script, and the files they name.

    script ──▶ its text ──▶ files and programs that it names, followed in turn
                       └──▶ variables that it reads, by value
    ccache, distcc, ... ──▶ their settings, and the compiler behind them
    compiler ──▶ its file, and those of the passes that it starts (cc1plus, as, ld)

A script is read, not run: every file that it names is included, whether the script uses it or not. Names that the
script computes at run time are missed, but the version that it reports is still part of the key (`toolchain`).
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence

from fxpool import failures
from fxpool.codecache.key import compiler_examination, probe_cache

__all__ = ["FRONTS", "Program", "identify", "is_script", "output_of"]

#: Front ends that run the next compiler with their own name on PATH, and the prefix of their environment variables.
FRONTS = {"ccache": "CCACHE_", "sccache": "SCCACHE_", "distcc": "DISTCC_", "icecc": "ICECC_"}
# Variables for a front end's storage and logs, which do not affect the generated code.
_OF_THE_PLACE = re.compile(r"_(DIR|TEMPDIR|LOGFILE|LOG|DEBUG|DEBUGDIR|MAXSIZE|MAXFILES|STATS|STATSLOG|VERBOSE)$")
_SETTINGS = ("/etc/ccache.conf", "~/.config/ccache/ccache.conf", "~/.ccache/ccache.conf")
# Names of compilers that can be queried for their passes. Any other program might treat the query as a command.
_COMPILER = re.compile(r"(^|-)(g\+\+|gcc|c\+\+|cc|clang|clang\+\+|icpx|icx)(-[\d.]+)?$")
_PASSES = ("cc1plus", "as", "collect2", "ld")
_VARIABLES = re.compile(
    r"""\$ENV\{["']?(\w+) | \$\{?[!#]?([A-Za-z_]\w*) | environ(?:\.get)?[\[(]\s*["'](\w+) | getenv\(\s*["'](\w+)""",
    re.X,
)
# Set by the shell itself, or passed to every process in another way.
_OF_THE_SHELL = frozenset(("PATH", "PWD", "OLDPWD", "SHLVL", "IFS", "PPID", "RANDOM", "SECONDS", "LINENO", "TMPDIR"))
_WORDS = re.compile(r"""[^\s;|&()<>`'"=:,{}\[\]]+|"([^"\n]*)"|'([^'\n]*)'|((?:[^\s\\'"]|\\.)+)""")
_COMMENT = re.compile(r"^\s*#(?!!).*$", re.M)
# Matches files that a shell script only writes to, such as logs: `>> "$log"` and `tee -a file`.
_SHELL = re.compile(r"^#!.*\b(?:sh|bash|dash|ksh|zsh|ash)\b")
_WRITTEN = re.compile(
    r"""(?:(?:\d|&)?>>?\|?|\btee\s+(?:-\w+\s+)*)\s*(?P<to>"[^"\n]*"|'[^'\n]*'|[^\s;|&()<>]+)""",
)
_ONE_VARIABLE = re.compile(r"""^["']?\$\{?([A-Za-z_]\w*)\}?["']?$""")
# A compiler wrapper written by hand refers to fewer files.
_MOST_FILES = 200
_LONGEST_TEXT = 256 << 10
_TIMEOUT = 60.0
# Seconds that a file must be unchanged before its timestamps can identify its content.
_SETTLED = 2.0


@dataclasses.dataclass(frozen=True)
class Program:
    """An identified program: the `digest` of its files, and the environment `variables` that it may read.

    `unknown` is the reason why these are incomplete, or "" if they are complete.
    """

    digest: str
    variables: tuple[str, ...] = ()
    unknown: str = ""


def is_script(path: str) -> bool:
    """Return whether a program is a script with a `#!` line. Raises OSError."""
    with open(path, "rb") as file:
        return file.read(2) == b"#!"


@compiler_examination.once
def identify(path: str, root: str | None) -> Program:
    """Identify the program at `path` and every program it runs. Digests of files are cached under `root`."""
    looked = _Look(root)
    looked.at(path, ())
    names = tuple(sorted(looked.variables))
    whole = hashlib.sha256("\n".join(sorted(looked.lines)).encode()).hexdigest()
    return Program(whole, names, looked.unknown)


class _Look:
    """A traversal from a program to every program it runs."""

    def __init__(self, root: str | None) -> None:
        self._root = root
        self._seen: set[tuple[str, str]] = set()
        self.lines: set[str] = set()  # a line per file: its name and the digest of its content
        self.variables: set[str] = set()
        self.unknown = ""

    def at(self, path: str, places: tuple[str, ...]) -> None:
        """Add a file. `places` are the directories named by the scripts that lead to it."""
        real = os.path.realpath(path)
        called = (os.path.basename(path), real)  # with the name, because front ends and compilers act on it
        if called in self._seen or self.unknown:
            return
        self._seen.add(called)
        if len(self._seen) > _MOST_FILES:
            self.unknown = f"a script refers to more than {_MOST_FILES} files"
            return
        try:
            text = _text(real)
            content = hashlib.sha256(text).hexdigest() if text is not None else _digest(real, self._root)
        except OSError as error:
            if os.path.exists(path):  # executable, but not readable
                self.unknown = f"{os.path.basename(path)}: {error.strerror}"
            return
        self.lines.add(f"{os.path.basename(path)} {content}")
        if text is not None:
            self._script(path, real, text.decode("utf-8", "surrogateescape"), places)
        elif os.path.basename(real) in FRONTS:
            self._front(path, os.path.basename(real), places)
        elif _COMPILER.search(os.path.basename(real)):
            for place in _passes(real, self._root):
                self.at(place, places)

    def _script(self, path: str, real: str, text: str, places: tuple[str, ...]) -> None:
        if len(text) >= _LONGEST_TEXT:
            self.unknown = f"{os.path.basename(path)} is too long to read"
        text = _COMMENT.sub("", text)
        if _SHELL.match(text):
            text = _without_what_it_writes(text)
        named = {name for groups in _VARIABLES.findall(text) for name in groups if name}
        self.variables |= named - _OF_THE_SHELL
        words = {os.path.expandvars(os.path.expanduser(word)) for word in _words(text)}
        beside = tuple(dict.fromkeys((os.path.dirname(path), os.path.dirname(real))))
        words |= {part for word in words if ":" in word for part in word.split(":")}
        further = tuple(word for word in sorted(words) if word.startswith("/") and word != "/" and os.path.isdir(word))
        places = (*further, *places)
        for word in sorted(words):
            for candidate in _candidates(word, beside, places):
                if os.path.isfile(candidate):
                    self.at(candidate, places)

    def _front(self, path: str, front: str, places: tuple[str, ...]) -> None:
        begins = FRONTS[front]
        settings = {name for name in os.environ if name.startswith(begins)}
        self.variables |= {name for name in settings if not _OF_THE_PLACE.search(name)}
        files = [os.path.expanduser(name) for name in _SETTINGS] if front == "ccache" else []
        for name in sorted(settings):  # CCACHE_CONFIGPATH, CCACHE_COMPILER, CCACHE_PREFIX, ...
            for word in (os.environ[name], *os.environ[name].split()):
                files.append(word if os.path.isabs(word) else shutil.which(word) or "")
        directory = os.environ.get(f"{begins}DIR", "")
        for file in (*files, os.path.join(directory, "ccache.conf") if directory else ""):
            if os.path.isfile(file):
                self.at(file, places)
        # A front end runs the next program with its own name on PATH that is not a front end.
        wanted = os.path.basename(path)
        search = [*os.environ.get(f"{begins}PATH", "").split(os.pathsep), *_search_path()]
        for place in filter(None, (*search, *places)):
            candidate = os.path.join(place, wanted)
            if os.access(candidate, os.X_OK) and os.path.basename(os.path.realpath(candidate)) not in FRONTS:
                self.at(candidate, places)
                return


def _without_what_it_writes(text: str) -> str:
    """Remove the names of output files from a shell script's text: these files change each time it runs."""
    logs = {variable[1] for one in _WRITTEN.finditer(text) if (variable := _ONE_VARIABLE.match(one["to"]))}
    text = _WRITTEN.sub(" ", text)
    for name in logs:
        if not re.search(rf"\$\{{?{name}\b", text):
            text = re.sub(rf"""(^|[\s;&(]){name}=("[^"\n]*"|'[^'\n]*'|[^\s;|&()<>]*)""", r"\1", text)
    return text


def _words(text: str) -> Iterator[str]:
    for match in _WORDS.finditer(text):
        word = next((group for group in match.groups() if group is not None), match[0])
        yield re.sub(r"\\(.)", r"\1", word)
        yield from re.findall(r"[^\s;|&()<>`'\"=:,{}\[\]]+", word)


def _candidates(word: str, beside: tuple[str, ...], places: tuple[str, ...]) -> Iterator[str]:
    """Yield the paths that a word of a script may refer to."""
    if not word or len(word) > 4096 or "\0" in word:
        return
    if "/" in word:
        yield word[word.index("/") :]  # the word itself, or the path after -B, -include, @, ...
        for place in beside:  # "$(dirname "$0")/g++-12"
            yield os.path.join(place, word[word.index("/") :].lstrip("/"))
            yield os.path.join(place, word)
        return
    for place in (*beside, *places):
        yield os.path.join(place, word.lstrip("@"))
    for place in _search_path():
        candidate = os.path.join(place, word)
        if os.path.isfile(candidate) and os.access(candidate, os.X_OK):
            yield candidate
            # A script may run the next program with its own name.
            if os.path.basename(os.path.realpath(candidate)) not in FRONTS and not _runs_others(candidate):
                return


def _runs_others(path: str) -> bool:
    try:
        return is_script(path)
    except OSError:
        return False


def _search_path() -> list[str]:
    return [place for place in os.environ.get("PATH", os.defpath).split(os.pathsep) if place]


def _text(path: str) -> bytes | None:
    """Return the start of a file, up to `_LONGEST_TEXT`; None for a binary or a long file that is not a script."""
    with open(path, "rb") as file:
        start = file.read(4096)
        if b"\0" in start or (not start.startswith(b"#!") and os.fstat(file.fileno()).st_size > _LONGEST_TEXT):
            return None
        return start + file.read(_LONGEST_TEXT)


def _digest(path: str, root: str | None) -> str:
    """Return the digest of a program's content, cached while the file is unchanged. Raises OSError."""
    identity = probe_cache.identity_of(path)
    known = _digests.get(identity) or (probe_cache.read(root, ["content"], identity) or {}).get("digest")
    if known is None:
        whole = hashlib.sha256()
        with open(path, "rb") as file:
            while block := file.read(1 << 20):
                whole.update(block)
        known = whole.hexdigest()
        if os.stat(path).st_ctime > time.time() - _SETTLED or probe_cache.identity_of(path) != identity:
            return known
        probe_cache.write(root, ["content"], identity, {"digest": known})
    _digests[identity] = known
    return known


_digests: dict[probe_cache.Identity, str] = {}
_asked: dict[probe_cache.Identity, dict[str, str]] = {}


def _passes(compiler: str, root: str | None) -> list[str]:
    """Return the programs that a compiler starts and its own libraries: rebuilt, these may report the same version.

    The compiler's search directories are cached. The files in them are checked each time: installing another assembler
    there, or in a directory earlier on PATH, leaves the compiler's own file unchanged.
    """
    identity = probe_cache.identity_of(compiler)
    question = ["where passes are", *(os.environ.get(name, "") for name in ("COMPILER_PATH", "GCC_EXEC_PREFIX"))]
    kept = _asked.get((*question, *identity)) or probe_cache.read(root, question, identity)
    if kept is None:
        kept = {name: _said([compiler, f"-print-prog-name={name}"]).strip() for name in _PASSES}
        kept["places"] = os.pathsep.join(_places_of_passes(compiler))
        for library in _own_libraries(compiler):
            kept[os.path.basename(library)] = library
        probe_cache.write(root, question, identity, kept)
    _asked[(*question, *identity)] = kept
    paths = {said for said in kept.values() if os.path.isabs(said)}
    paths.update(_as_a_compiler_finds(name, kept.get("places", "").split(os.pathsep)) for name in _PASSES)
    return sorted(place for place in paths if place and os.path.isfile(place))


def _places_of_passes(compiler: str) -> list[str]:
    """Return the directories that a compiler searches for its passes before PATH."""
    said = re.search(r"^programs: =(.*)$", _said([compiler, "-print-search-dirs"]), re.M)
    places = said[1].split(os.pathsep) if said is not None else []
    return list(dict.fromkeys(os.path.realpath(place) for place in places if place))


def _as_a_compiler_finds(name: str, places: list[str]) -> str:
    for place in filter(None, places):
        candidate = os.path.join(place, name)
        if os.path.isfile(candidate) and os.access(candidate, os.X_OK):
            return candidate
    return shutil.which(name) or ""


def _own_libraries(compiler: str) -> list[str]:
    """Return the shared libraries that contain a compiler's passes, as with clang."""
    linked = re.findall(r"=> (/\S*/lib(?:clang|LLVM)\S*)", _said(["ldd", compiler]))
    return [os.path.realpath(path) for path in linked]


def _said(command: Sequence[str]) -> str:
    return output_of(command, errors="surrogateescape") or ""


def output_of(command: Sequence[str], *, errors: str = "replace") -> str | None:
    """Return a program's output; None if it cannot be run, or fails. Raises ShortageError."""
    try:
        run = failures.run(command, timeout=_TIMEOUT)
        run.check_returncode()
    except (OSError, subprocess.SubprocessError):
        return None
    return run.stdout.decode("utf-8", errors)
