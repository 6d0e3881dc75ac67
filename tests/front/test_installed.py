"""What is installed of the code that compiles: a file that differs from its installation counts, by content."""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from fxpool import installed_packages
from fxpool.installed_packages import Package

THING = Package("thing", ("thing",), ("thing",), left_out=("thing/include",))
FILES = {
    "thing/__init__.py": "x = 1\n",
    "thing/deep/er.py": "y = 1\n",
    "thing/lib/libthing.so": "machine code",
    "thing/include/other.h": "// one\n",
    "thing/bin/assembler": "machine code",
}
Facts = dict[str, str]


def install(place: Path, *, recorded: bool = True) -> None:
    """As pip leaves it; an editable install has no lines about the package's files."""
    lines = []
    for name, text in FILES.items():
        path = place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        lines.append(f"{name},sha256={digest},{len(text)}\n")
    about = place / "thing-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: thing\nVersion: 1\n")
    (about / "RECORD").write_text("".join(lines) if recorded else "__editable__.thing.pth,sha256=abc,3\n")


class Memory:
    """Answers kept in this process; `writes` counts them."""

    def __init__(self) -> None:
        self.answers: dict[tuple[object, ...], dict[str, str]] = {}
        self.hits = 0

    def read(self, question: Sequence[str], identity: installed_packages.Identity) -> dict[str, str] | None:
        found = self.answers.get((*question, *identity))
        self.hits += found is not None
        return found

    def write(self, question: Sequence[str], identity: installed_packages.Identity, answer: dict[str, str]) -> None:
        self.answers[(*question, *identity)] = answer


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    found = tmp_path / "site"
    found.mkdir()
    monkeypatch.syspath_prepend(str(found))
    return found


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Memory:
    monkeypatch.setattr(installed_packages, "_SETTLED", -1000.0)  # these files are as old as the test
    return Memory()


def facts(kept: installed_packages.FactCache | None = None) -> Facts:
    return installed_packages.facts(kept, [THING])


def rewrite(path: Path, text: str) -> None:
    """In place: the directory stays as it was."""
    with open(path, "r+") as file:
        file.truncate()
        file.write(text)


def put_back_its_time(path: Path) -> None:
    """An edit of the same size that hides: its time is what it was."""
    status = path.stat()
    rewrite(path, path.read_text().replace("1", "2"))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def replace(top: Path) -> None:
    (top / "n").write_text("y = 3\n")
    os.replace(top / "n", top / "deep/er.py")


def add_a_package(top: Path) -> None:
    (top / "deep/er").mkdir()
    (top / "deep/er/__init__.py").write_text("y = 4\n")


EDITS: dict[str, Callable[[Path], object]] = {
    "edited": lambda top: rewrite(top / "deep/er.py", "y = 22\n"),
    "edited, of the same size": lambda top: rewrite(top / "deep/er.py", "y = 2\n"),
    "edited, its time put back": lambda top: put_back_its_time(top / "deep/er.py"),
    "replaced": lambda top: replace(top),
    "added": lambda top: (top / "deep/more.py").write_text("z = 1\n"),
    "removed": lambda top: (top / "deep/er.py").unlink(),
    "a package in a module's place": lambda top: add_a_package(top),
    "an extension in a module's place": lambda top: (top / "deep/er.abi3.so").write_text("machine code"),
    "a library": lambda top: rewrite(top / "lib/libthing.so", "other code.."),
    "a template": lambda top: (top / "deep/product.py.jinja").write_text("machine code"),
    "a program": lambda top: rewrite(top / "bin/assembler", "other code.."),
}


@pytest.mark.parametrize("edit", EDITS)
@pytest.mark.parametrize("recorded", [True, False], ids=["installed", "editable"])
def test_what_differs_counts(place: Path, memory: Memory, edit: str, recorded: bool) -> None:
    install(place, recorded=recorded)
    before = facts(memory)
    assert ("thing_files" in before) is recorded
    assert facts() == before == facts(memory) and memory.hits == 1
    EDITS[edit](place / "thing")
    after = facts(memory)
    assert after["thing_content"] != before["thing_content"]
    assert after.get("thing_files") == before.get("thing_files")
    assert after == facts() == facts(memory)


def test_what_is_put_back_is_no_edit(place: Path, memory: Memory) -> None:
    install(place)
    before = facts(memory)
    path = place / "thing/deep/er.py"
    rewrite(path, "y = 2\n")
    assert facts(memory) != before
    rewrite(path, "y = 1\n")
    os.utime(place / "thing/__init__.py", (time.time() + 60,) * 2)
    shutil.copy(path, place / "copy")
    os.replace(place / "copy", path)
    assert facts(memory) == before == facts()


def test_headers_do_not_count(place: Path, memory: Memory) -> None:
    install(place)
    before = facts(memory)
    rewrite(place / "thing/include/other.h", "// two\n")
    (place / "thing/__pycache__").mkdir()
    (place / "thing/__pycache__/er.py").write_text("")
    (place / "thing/notes.txt").write_text("")
    assert facts(memory) == before == facts()


def test_a_tree_earlier_on_the_path_counts(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Links to what is installed are that; the one file that is none is an edit."""
    install(place)
    before = facts()
    farm = tmp_path / "farm"
    (farm / "thing").mkdir(parents=True)
    for name in os.listdir(place / "thing"):
        (farm / "thing" / name).symlink_to(place / "thing" / name)
    monkeypatch.syspath_prepend(str(farm))
    assert facts() == before
    (farm / "thing/__init__.py").unlink()
    (farm / "thing/__init__.py").write_text("x = 2\n")
    assert facts()["thing_content"] != before["thing_content"]
    assert facts()["thing_files"] == before["thing_files"]


def test_a_tree_that_is_imported_counts_and_not_one_that_would_be(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(place)
    before = facts()
    import thing

    try:
        other = tmp_path / "other"
        shutil.copytree(place, other)
        (other / "thing/__init__.py").write_text("x = 2\n")
        monkeypatch.syspath_prepend(str(other))
        assert thing.x == 1
        assert facts() == before
    finally:
        del sys.modules["thing"]
    assert facts()["thing_content"] != before["thing_content"]


def test_links_in_a_circle(place: Path) -> None:
    install(place)
    before = facts()
    (place / "thing/deep/again").symlink_to(place / "thing")
    assert facts() == facts() and facts()["thing_files"] == before["thing_files"]


def test_a_file_that_was_just_written_is_looked_at_again(place: Path) -> None:
    """A clock that has not ticked since gives the next edit the same time."""
    install(place)
    memory = Memory()
    facts(memory)
    assert not memory.answers


@pytest.mark.parametrize("damage", ["", "x", "[1]", "[]", "{}", '[["thing", "/else", ["er.py"]]]', '[["thing", 1, 2]]'])
def test_a_damaged_list_is_made_again(place: Path, memory: Memory, damage: str) -> None:
    install(place)
    before = facts(memory)
    for answer in memory.answers.values():
        answer["listing"] = damage
    assert facts(memory) == before


def test_what_is_not_installed_has_no_row() -> None:
    assert installed_packages.facts(None, [Package("no_such_thing", ("no_such_thing",), ("no-such-thing",))]) == {}
    assert installed_packages.version("no-such-thing") == ""
