"""A compiler's command, by content: what it is, what a script in its place names, what a front of it runs."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from fxpool.codecache.key import compiler_programs, toolchain
from fxpool.codecache.key.cacheable import Bypass
from fxpool.codecache.key.compiler_programs import identify
from fxpool.torch_compat.cpp import cpp_toolchain

Change = Callable[[Path], object]


def script(path: Path, text: str, interpreter: str = "/bin/sh") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!{interpreter}\n{text}\n")
    path.chmod(0o755)
    return path


def named(compiler: Path) -> str:
    """The compiler as CXX names it: from torch 2.14 on, a name with a space is quoted."""
    return shlex.quote(str(compiler)) if cpp_toolchain.takes_arguments() else str(compiler)


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler_programs, "_digests", {})
    monkeypatch.setattr(compiler_programs, "_asked", {})


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Tools of a user's, one directory of them with a space in its name."""
    found = tmp_path / "my tools"
    script(found / "inner", 'exec g++ -O1 "$@"')
    (found / "flags").write_text("-DX=1")
    monkeypatch.setenv("TOOLS", str(found))
    return found


SCRIPTS: dict[str, tuple[str, str]] = {
    "beside it": ("/bin/sh", 'exec "$(dirname "$0")/inner" "$@"'),
    "by its whole name, quoted": ("/bin/sh", 'exec "{place}/inner" "$@"'),
    "by its whole name, escaped": ("/bin/sh", 'exec {escaped}/inner "$@"'),
    "through a variable of its own": ("/bin/sh", 'REAL="{place}/inner"\nexec "$REAL" "$@"'),
    "through one of the environment": ("/bin/sh", 'exec "${{TOOLS}}/inner" "$@"'),
    "on a path of its own": ("/bin/sh", 'PATH="{place}:$PATH"\nexec inner "$@"'),
    "in Python": ("/usr/bin/env python3", "import os, sys\nos.execv('{place}/inner', ['inner', *sys.argv[1:]])"),
    "in Python, beside it": (
        "/usr/bin/env python3",
        "import os, sys\nhere = os.path.dirname(__file__)\nos.execv(os.path.join(here, 'inner'), sys.argv)",
    ),
}


@pytest.mark.parametrize("how", SCRIPTS)
def test_what_a_script_runs_counts(place: Path, how: str) -> None:
    interpreter, text = SCRIPTS[how]
    wrapper = script(place / "c++", text.format(place=place, escaped=str(place).replace(" ", "\\ ")), interpreter)
    before = identify(str(wrapper), None)
    assert not before.unknown
    assert identify(str(wrapper), None) == before
    (place / "unrelated").write_text("text")
    assert identify(str(wrapper), None) == before
    script(place / "inner", 'exec g++ -O2 "$@"')
    assert identify(str(wrapper), None).digest != before.digest


@pytest.mark.parametrize("text", ["g++ @{place}/flags", "g++ $(cat flags)", "g++ -include'{place}/flags'", ". ./flags"])
def test_a_file_that_a_script_reads_counts(place: Path, text: str) -> None:
    wrapper = script(place / "c++", text.format(place=place).replace("my tools", "mytools"))
    place.rename(place.with_name("mytools"))
    wrapper = place.with_name("mytools") / "c++"
    before = identify(str(wrapper), None)
    (wrapper.parent / "flags").write_text("-DX=2")
    assert identify(str(wrapper), None).digest != before.digest


@pytest.mark.parametrize(
    "text",
    [
        'echo "$*" >> "{place}/log" && exec g++ "$@"',
        "echo $* >>{place}/log; exec g++ $*",
        'LOG={place}/log\necho $* >> "${{LOG}}"\nexec g++ $*',
        "echo $* | tee -a {place}/log; exec g++ $*",
        "exec g++ $* 2>{place}/log",
    ],
)
def test_a_file_that_a_script_only_writes_to_does_not_count(place: Path, text: str) -> None:
    """Or it would be another compiler after each compile, and nothing be kept."""
    place = place.rename(place.with_name("mytools"))
    (place / "log").write_text("first")
    wrapper = script(place / "c++", text.format(place=place))
    before = identify(str(wrapper), None)
    (place / "log").write_text("second")
    assert identify(str(wrapper), None) == before
    script(wrapper, text.format(place=place).replace("g++", "g++ -O1"))
    assert identify(str(wrapper), None).digest != before.digest


def test_a_file_that_a_script_writes_and_reads_counts(place: Path) -> None:
    place = place.rename(place.with_name("mytools"))
    wrapper = script(place / "c++", f"FLAGS={place}/flags\n[ -e $FLAGS ] || echo -DX=1 > $FLAGS\ng++ @$FLAGS $*")
    before = identify(str(wrapper), None)
    (place / "flags").write_text("-DX=2")
    assert identify(str(wrapper), None).digest != before.digest


def test_the_compiler_behind_scripts_counts(place: Path) -> None:
    shutil.copy(shutil.which("true") or "", place / "gcc-of-ours")
    wrapper = script(place / "c++", 'exec "$(dirname "$0")/second" "$@"')
    script(place / "second", f'exec "{place}/gcc-of-ours" "$@"')
    before = identify(str(wrapper), None)
    with open(place / "gcc-of-ours", "ab") as file:
        file.write(b"rebuilt")
    assert identify(str(wrapper), None).digest != before.digest


@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ here")
def test_a_compiler_is_its_passes_too() -> None:
    looked = compiler_programs._Look(None)
    looked.at(shutil.which("g++") or "", ())
    names = {line.split()[0] for line in looked.lines}
    assert {"g++", "cc1plus"} <= names, names
    assert len(names) >= 4, "an assembler and a linker"


PLACES: dict[str, Callable[[Path], tuple[str, str]]] = {
    "on the path": lambda place: ("PATH", os.pathsep.join([str(place / "earlier"), os.environ["PATH"]])),
    "where it looks first": lambda place: ("COMPILER_PATH", str(place / "earlier")),
}


@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ here")
@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("where", PLACES)
def test_an_assembler_that_is_found_earlier_counts(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, kept: bool
) -> None:
    """It leaves the compiler's own file as it is, and what was kept of that."""
    root = tmp_path / "root"
    root.mkdir(mode=0o700)
    compiler = shutil.which("g++") or ""
    (place / "earlier").mkdir()
    monkeypatch.setenv(*PLACES[where](place))
    found = [identify(compiler, str(root) if kept else None)]
    for flag in ("--32", "--64"):
        script(place / "earlier/as", f'exec /usr/bin/as {flag} $ASSEMBLER_FLAGS "$@"')
        found.append(identify(compiler, str(root) if kept else None))  # in the same process
        monkeypatch.setattr(compiler_programs, "_asked", {})
        assert identify(compiler, str(root) if kept else None) == found[-1]  # as a new process
        assert "ASSEMBLER_FLAGS" in found[-1].variables
    assert len({program.digest for program in found}) == 3
    monkeypatch.setattr(toolchain, "_candidates", lambda: ["g++"])
    assert "ASSEMBLER_FLAGS" in toolchain.variables_read()


@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ here")
@pytest.mark.parametrize("name", compiler_programs._PASSES)
def test_passes_are_found_as_the_compiler_finds_them(name: str) -> None:
    compiler = os.path.realpath(shutil.which("g++") or "")
    said = compiler_programs._said([compiler, f"-print-prog-name={name}"]).strip()
    found = compiler_programs._as_a_compiler_finds(name, compiler_programs._places_of_passes(compiler))
    assert os.path.realpath(found) == os.path.realpath(shutil.which(said) or "")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("interpreter", "text"),
    [
        ("/bin/sh", 'exec g++ $EXTRA_FLAGS "$@"'),
        ("/bin/sh", 'exec g++ ${EXTRA_FLAGS:-} "$@"'),
        ("/usr/bin/env python3", "import os\nflags = os.environ.get('EXTRA_FLAGS', '')"),
        ("/usr/bin/env python3", "import os\nflags = os.environ['EXTRA_FLAGS']"),
        ("/usr/bin/env python3", "import os\nflags = os.getenv('EXTRA_FLAGS')"),
        ("/usr/bin/env perl", "my $flags = $ENV{EXTRA_FLAGS};"),
    ],
)
def test_variables_that_a_script_reads_count(
    place: Path, monkeypatch: pytest.MonkeyPatch, interpreter: str, text: str
) -> None:
    assert "EXTRA_FLAGS" in identify(str(script(place / "c++", text, interpreter)), None).variables
    sh = script(place / "sh-c++", f'. "{place}/settings"\necho "c++ 1"')
    script(place / "settings", text, interpreter)
    monkeypatch.setattr(toolchain, "_candidates", lambda: [named(sh)])
    monkeypatch.setattr(toolchain, "_run", lambda path: ("c++ 1", ""))
    assert "EXTRA_FLAGS" in toolchain.variables_read()
    found = []
    for value in (None, "-DX=1", "-DX=2"):
        if value is not None:
            monkeypatch.setenv("EXTRA_FLAGS", value)
        found.append(toolchain.toolchain_facts())
    assert len({str(facts) for facts in found}) == 3
    assert not any("-DX" in str(facts) for facts in found)


FRONT: dict[str, Change] = {
    "another compiler behind it": lambda place: script(place / "bin/g++", 'exec /usr/bin/g++ -O2 "$@"'),
    "its settings": lambda place: (place / "ccache.conf").write_text("compiler = other"),
}


@pytest.mark.parametrize("change", FRONT)
def test_a_front_is_what_it_runs(place: Path, monkeypatch: pytest.MonkeyPatch, change: str) -> None:
    shutil.copy(shutil.which("true") or "", place / "ccache")
    (place / "masks").mkdir()
    (place / "masks/g++").symlink_to(place / "ccache")
    script(place / "bin/g++", 'exec /usr/bin/g++ -O1 "$@"')
    (place / "ccache.conf").write_text("compiler =")
    monkeypatch.setenv("PATH", os.pathsep.join([str(place / "masks"), str(place / "bin"), os.environ["PATH"]]))
    monkeypatch.setenv("CCACHE_CONFIGPATH", str(place / "ccache.conf"))
    before = identify(str(place / "masks/g++"), None)
    assert "CCACHE_CONFIGPATH" in before.variables
    FRONT[change](place)
    after = identify(str(place / "masks/g++"), None)
    assert after.digest != before.digest
    monkeypatch.setenv("CCACHE_PREFIX", "distcc")
    assert "CCACHE_PREFIX" in identify(str(place / "masks/g++"), None).variables


def test_a_script_earlier_on_the_path_that_runs_the_next_of_its_name(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = script(place / "one/g++", 'PATH="${PATH#*:}"\nexec g++ "$@"')
    second = script(place / "two/g++", 'exec /usr/bin/g++ -O1 "$@"')
    monkeypatch.setenv("PATH", os.pathsep.join([str(first.parent), str(second.parent), os.environ["PATH"]]))
    before = identify(str(first), None)
    script(second, 'exec /usr/bin/g++ -O2 "$@"')
    assert identify(str(first), None).digest != before.digest


def test_a_link_is_what_it_leads_to(place: Path) -> None:
    link = place / "c++"
    link.symlink_to(place / "inner")
    before = identify(str(link), None)
    script(place / "other", 'exec g++ -O2 "$@"')
    link.unlink()
    link.symlink_to(place / "other")
    assert identify(str(link), None).digest != before.digest


def test_scripts_that_run_each_other(place: Path) -> None:
    script(place / "one", f'exec "{place}/two"')
    script(place / "two", f'exec "{place}/one"')
    assert not identify(str(place / "one"), None).unknown


def test_what_cannot_be_followed_is_not_kept(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(compiler_programs._MOST_FILES + 1):
        (place / f"part{number}").write_text("")
    wrapper = script(place / "c++", "\n".join(f'. "{place}/part{n}"' for n in range(compiler_programs._MOST_FILES + 1)))
    monkeypatch.setattr(toolchain, "_candidates", lambda: [named(wrapper)])
    monkeypatch.setattr(toolchain, "_run", lambda path: ("c++ 1", ""))
    assert "compiler_unknown" in toolchain.toolchain_facts()
    with pytest.raises(Bypass, match="compiler_unknown"):
        toolchain.key_facts()


def test_digests_are_kept_and_asked_for_again_when_a_file_changed(place: Path, tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir(mode=0o700)
    compiler = Path(shutil.copy(shutil.which("true") or "", place / "gcc"))
    before = identify(str(compiler), str(root))
    status = compiler.stat()
    with open(compiler, "r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\x55")
    os.utime(compiler, ns=(status.st_atime_ns, status.st_mtime_ns))
    after = identify(str(compiler), str(root))
    assert after.digest != before.digest
    assert identify(str(compiler), None) == after
