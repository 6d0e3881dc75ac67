"""docs/upstream.md names what exists, in torch and in fxpool, and denies nothing that fxpool has."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from sources import ROOT, sources

import fxpool
from fxpool.torch_compat import versions

PAGE = (ROOT / "docs" / "upstream.md").read_text()
TORCH = Path(torch.__file__).parent
FOLDERS = ("_inductor", "_functorch", "_dynamo", "compiler", "utils")
INSTALLED = versions.parse(torch.version.__version__)
_WORD = re.compile(r"[A-Za-z_]\w*")


def _lines() -> list[str]:
    """The page's bullets and table rows, and the line below each heading."""
    text = re.sub(r"\n  +", " ", PAGE.partition("\n## ")[2])
    return [line for line in text.splitlines() if "`" in line and not line.startswith("| torch |")]


def _names(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


def _releases(text: str) -> list[tuple[int, int]]:
    return [versions.parse(release) for release in re.findall(r"\b2\.1\d\b", text)]


@pytest.fixture(scope="module")
def torch_words() -> set[str]:
    files = [file for folder in FOLDERS for file in (TORCH / folder).rglob("*.py")]
    return {word for file in files for word in _WORD.findall(file.read_text(errors="replace"))}


@pytest.fixture(scope="module")
def words(torch_words: set[str]) -> set[str]:
    texts = [path.read_text() for path in sources()]
    return torch_words | {word for text in texts for word in _WORD.findall(text)}


def _is_known(name: str, words: set[str]) -> bool:
    if name.startswith("fxpool."):
        return hasattr(fxpool, name.removeprefix("fxpool.").removesuffix("()"))
    if name.startswith("torch."):
        return _resolves(name.removesuffix("()"))
    if ".py" in name:
        return any(TORCH.rglob(name))
    return {*_WORD.findall(name)} <= words | {"ccache"}


def _resolves(name: str) -> bool:
    thing: object = torch
    try:
        for part in name.split(".")[1:]:
            thing = getattr(thing, part)
    except AttributeError:
        return False
    return True


def test_names_of_torch_exist(torch_words: set[str]) -> None:
    """Those of releases up to the installed one, which a line names with the release."""
    lines = [line for line in _lines() if all(release <= INSTALLED for release in _releases(line))]
    assert len(lines) > 25
    unknown = [name for line in lines for name in _names(line.partition("**")[0]) if not _is_known(name, torch_words)]
    assert unknown == []


def test_names_in_what_fxpool_has_exist(words: set[str]) -> None:
    unknown = [name for line in _lines() for name in _names(line.partition("**")[2]) if not _is_known(name, words)]
    assert unknown == []


def test_nothing_that_fxpool_has_is_missing() -> None:
    denied = [
        name.split(".")[-1] for line in _lines() if line.count("**Missing") for name in _names(line.partition("**")[0])
    ]
    assert len(denied) > 5
    assert {*denied} & {*fxpool.__all__} == set()


@pytest.mark.parametrize("name", ["aot_compile", "standalone_compile"])
def test_calls_like_torch_s_are_equivalent(name: str) -> None:
    (line,) = [line for line in _lines() if f"`fxpool.{name}`" in line]
    assert "**Equivalent:**" in line and hasattr(fxpool, name)
