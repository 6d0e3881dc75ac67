"""Sdist and wheel as a release has them: files, metadata, the manual page and shell completion."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from email.message import Message
from pathlib import Path

import pytest
from sources import ROOT

DATA = {"share/man/man1/fxpool.1", "share/bash-completion/completions/fxpool",
        "share/zsh/site-functions/_fxpool", "share/fish/vendor_completions.d/fxpool.fish"}  # fmt: skip


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the checkout: setuptools writes into the tree it builds, and takes what an earlier build left there."""
    root = tmp_path_factory.mktemp("checkout")
    ignore = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for folder in ("fxpool", "pool", "lowering", "codecache", "bench", "docs", "examples", "share", "tests"):
        shutil.copytree(ROOT / folder, root / folder, ignore=ignore, symlinks=True)
    for path in ROOT.iterdir():
        if path.is_file():
            shutil.copy(path, root)
    return root


def _build(kind: str, source: Path, directory: Path) -> Path:
    """Build ``wheel`` or ``sdist`` from a tree; return the file."""
    program = "import sys, setuptools.build_meta as b; print(getattr(b, 'build_' + sys.argv[1])(sys.argv[2]))"
    directory.mkdir()
    command = [sys.executable, "-c", program, kind, str(directory)]
    subprocess.run(command, cwd=source, check=True, capture_output=True)
    (built,) = directory.iterdir()
    return built


@pytest.fixture(scope="module")
def wheel(copy: Path) -> Path:
    return _build("wheel", copy, copy.parent / "wheel")


def _contents(wheel: Path) -> dict[str, bytes]:
    """Return the files in a wheel by their installed names, without those about it."""
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if ".dist-info/" not in name]
        return {re.sub(r"^fxpool-[^/]+\.data/data/", "", name): archive.read(name) for name in names}


@pytest.fixture
def metadata(wheel: Path) -> Message:
    (about,) = importlib.metadata.distributions(path=[str(wheel)])
    return about.metadata  # type: ignore[return-value]  # a message with fewer methods in its type


def test_the_wheel_holds_what_the_folders_hold_and_the_sdist_builds_it(copy: Path, wheel: Path, tmp_path: Path) -> None:
    walk = list(os.walk(copy / "fxpool", followlinks=True))
    package = {Path(folder, name).relative_to(copy).as_posix() for folder, _, names in walk for name in names}
    contents = _contents(wheel)
    assert {*contents} == package | DATA
    with zipfile.ZipFile(wheel) as archive:
        entry_points = next(name for name in archive.namelist() if name.endswith("entry_points.txt"))
        assert "fxpool = fxpool.lowering.entry_point:fxpool_backend" in archive.read(entry_points).decode()

    sdist = _build("sdist", copy, tmp_path / "sdist")
    with tarfile.open(sdist) as packed:
        files = {member.name.partition("/")[2] for member in packed.getmembers() if member.isfile()}
        assert not [member.name for member in packed.getmembers() if member.issym() or member.islnk()]
        packed.extractall(tmp_path / "unpacked", filter="data")
    assert {name for name in files if name.startswith("fxpool/")} == package
    # Each file once: below fxpool/, not in the folders that the links lead to as well.
    assert not [name for name in files if name.startswith(("pool/", "lowering/", "codecache/", "bench/fxpool_bench/"))]
    assert {
        "CHANGELOG.md", "README.md", "LICENSE", "Makefile", "docs/index.md", "docs/fxpool.1.md", "bench/RESULTS.md",
        "examples/torchrun_training.py", "tests/conftest.py", "tests/front/test_distributions.py",
    } <= files  # fmt: skip
    (source,) = (tmp_path / "unpacked").iterdir()
    assert _contents(_build("wheel", source, tmp_path / "again")) == contents


def test_metadata(metadata: Message) -> None:
    assert (metadata["Name"], metadata["Author"]) == ("fxpool", "The fxpool developers")
    urls = dict(url.split(", ") for url in metadata.get_all("Project-URL", []))
    assert {"Homepage", "Repository", "Documentation", "Changelog", "Issues"} == {*urls}
    assert all(url.startswith(urls["Repository"]) for url in urls.values())


def test_no_link_dies_on_the_page_of_a_package_index(metadata: Message) -> None:
    assert metadata["Description-Content-Type"] == "text/markdown"
    readme = (ROOT / "README.md").read_text()
    before = re.findall(r"\]\(([^)]+)\)", readme)
    # The backport of importlib.metadata, which Dask imports, replaces the standard finder, and has the text elsewhere.
    page = str(metadata.get_payload() or metadata["Description"])
    after = re.findall(r"\]\(([^)]+)\)", page)
    prefix = f"{metadata.get_all('Project-URL')[1].split(', ')[1]}/blob/v{metadata['Version']}/"  # type: ignore[index]
    assert [link.removeprefix(prefix) for link in after] == before
    for link in before:
        assert link.startswith(("#", "https://")) or (ROOT / link.partition("#")[0]).exists(), link
    assert all(link.startswith(("#", "https://")) for link in after)


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put `fxpool` on the PATH, as pip writes it."""
    program = tmp_path / "fxpool"
    program.write_text(f"#!{sys.executable}\nfrom fxpool.commands.main import main\nmain()\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)


@pytest.mark.usefixtures("command")
def test_bash_completes_commands_and_options() -> None:
    def completions(*words: str) -> list[str]:
        script = ROOT / "share/bash-completion/completions/fxpool"
        quoted = " ".join(f"'{word}'" for word in words)
        program = f"""source {script}; COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}
                      _fxpool_completion fxpool; printf '%s\\n' "${{COMPREPLY[@]}}" """
        return subprocess.run(["bash", "-c", program], check=True, capture_output=True, text=True).stdout.split()

    assert completions("fxpool", "st") == ["stats", "status", "stop"]
    assert "clear" in completions("fxpool", "cache", "")
    assert "--dry-run" in completions("fxpool", "cache", "gc", "--")


@pytest.mark.usefixtures("command")
@pytest.mark.parametrize(("shell", "words"), [("zsh", "fxpool st"), ("fish", "fxpool st")])
def test_other_shells_ask_for_words_in_the_same_way(shell: str, words: str) -> None:
    variables = dict(re.findall(r"\b(_FXPOOL_COMPLETE)=(\w+)", _script(shell)))
    assert variables == {"_FXPOOL_COMPLETE": f"{shell}_complete"}
    number = "1" if shell == "zsh" else "st"  # fish gives the word itself
    environment = {**os.environ, **variables, "COMP_WORDS": words, "COMP_CWORD": number}
    said = subprocess.run(["fxpool"], env=environment, check=True, capture_output=True, text=True).stdout
    assert all(command in said for command in ("stats", "status", "stop")) and "doctor" not in said


def _script(shell: str) -> str:
    (name,) = (name for name in DATA if f"/{shell}/" in name)
    return (ROOT / name).read_text()


@pytest.mark.skipif(shutil.which("groff") is None, reason="groff is not installed")
def test_the_man_page_is_well_formed() -> None:
    command = ["groff", "-man", "-Tutf8", "-ww", "-z", str(ROOT / "share/man/man1/fxpool.1")]
    assert subprocess.run(command, check=True, capture_output=True, text=True).stderr == ""
