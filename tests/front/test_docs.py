"""The pages for users: what they link is there, and what they name exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fxpool import config
from fxpool.commands.main import main

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    links = [link.split("#")[0] for link in re.findall(r"\]\(([^)]+)\)", page.read_text()) if "://" not in link]
    assert [link for link in links if link and not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_settings_and_commands_that_are_named_exist(page: Path) -> None:
    text = page.read_text()
    known = {*config._VARIABLES, *config._OTHER_VARIABLES}
    assert {name for name in re.findall(r"FXPOOL_[A-Z_]+[A-Z]", text) if name not in known} == set()
    assert {name for name in re.findall(r"`fxpool ([a-z-]+)", text) if name not in main.commands} == set()


def test_the_patch_is_one_line() -> None:
    lines = (ROOT / "docs" / "accelerate.patch").read_text().splitlines()
    changed = [line for line in lines if line[:1] in "+-" and line[:3] not in ("+++", "---")]
    assert changed == ['+    FXPOOL = "FXPOOL"']
    trainer = (ROOT / "docs" / "trainer.md").read_text()
    assert 'model.compile(backend="fxpool")' in trainer and "fxpool.install()" in trainer
    assert "docs/trainer.md" in (ROOT / "README.md").read_text()
