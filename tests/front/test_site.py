"""All pages of the documentation: what they name exists, and what is made from the code is up to date.

That the site itself has no broken link is checked by `make docs`.
"""

from __future__ import annotations

import ast
import importlib.util
import re
import runpy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sources import ROOT, sources

from fxpool import config, setting_values
from fxpool.commands.main import main
from fxpool.torch_compat import versions

PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")])
NAMES = [page.relative_to(ROOT).as_posix() for page in PAGES]


@pytest.fixture(scope="module")
def code() -> str:
    """All code of the package in one text."""
    return "\n".join(path.read_text() for path in sources())


def _without_code(text: str) -> str:
    return re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)


def _anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", _without_code(page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_links_and_their_anchors_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", _without_code(page.read_text())):
        if "://" in link:
            continue
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        assert target.exists(), link
        assert target.resolve().is_relative_to(ROOT), link
        assert not anchor or anchor in _anchors(target), link


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_settings_commands_and_targets_that_are_named_exist(page: Path) -> None:
    text = page.read_text()
    known = {*config._VARIABLES, *config._OTHER_VARIABLES}
    assert {name for name in re.findall(r"FXPOOL_[A-Z_]+[A-Z]", text) if name not in known} == set()
    blocks = "\n".join(re.findall(r"^```.*?^```", text, re.MULTILINE | re.DOTALL))
    commands = {*re.findall(r"`fxpool ([a-z-]+)", text), *re.findall(r"^fxpool ([a-z-]+)", blocks, re.MULTILINE)}
    assert commands <= set(main.commands)
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"(?:`|^ {4})make ([a-z-]+)", text, re.MULTILINE)) <= targets


def test_the_table_of_settings_is_of_this_code() -> None:
    made = runpy.run_path(str(ROOT / "docs" / "settings_table.py"))
    assert made["PAGE"].read_text() == made["page"](), "run: python docs/settings_table.py"
    assert all(f"| `{name}` | `{variable}` |" in made["table"]() for variable, name in config._VARIABLES.items())


def test_the_man_page_is_of_this_page() -> None:
    made = runpy.run_path(str(ROOT / "docs" / "man_page.py"))
    assert made["PAGE"].read_text() == made["page"](), "run: python docs/man_page.py"


def _documented() -> set[str]:
    """The reasons in the tables of docs/counters.md, without what stands for more (``:...``)."""
    sections = re.split(r"^## ", (ROOT / "docs" / "counters.md").read_text(), flags=re.MULTILINE)[1:]
    text = "\n".join(row for section in sections for row in section.splitlines() if row.startswith("| `"))
    return {name.rstrip(".").rstrip(":_") for name in re.findall(r"`([a-z_]+:?(?:\.\.\.)?)`", text)}


def test_reasons_that_are_documented_are_counted(code: str) -> None:
    documented = _documented()
    assert len(documented) > 40
    assert {name for name in documented if not re.search(rf"""["']{name}[:_"']""", code)} == set()


def test_reasons_that_are_counted_are_documented(code: str) -> None:
    """Those that stand as text where they are raised."""
    raised = set(re.findall(r"""(?:CannotTravelError|CannotReturnError|Bypass)\(\s*f?"([a-z_]+)""", code))
    assert len(raised) > 30
    covered = _documented()
    assert {name for name in raised if name not in covered and not name.startswith("triton_kernel")} == set()


def test_hosted_ci_tries_every_release_that_is_supported() -> None:
    text = (ROOT / ".github" / "workflows" / "nightly.yml").read_text()

    def row(name: str) -> list[str]:
        return re.findall(r'"([\d.]+)"', re.search(rf"^ +{name}: (\[.*\])$", text, re.MULTILINE)[1])  # type: ignore[index]

    (major, oldest), (_, newest) = versions.OLDEST, versions.NEWEST
    assert row("torch") == [f"{major}.{minor}" for minor in range(oldest, newest + 1)]
    project = (ROOT / "pyproject.toml").read_text()
    assert row("python") == re.findall(r'Python :: (3\.\d+)"', project)
    assert f'"torch>={major}.{oldest},<{major}.{newest + 1}"' in project


def _site_hooks() -> Any:
    spec = importlib.util.spec_from_file_location("site_hooks", ROOT / "docs" / "site_hooks.py")
    assert spec is not None and spec.loader is not None
    hooks = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hooks)
    return hooks


def _page(path: str) -> Any:
    return SimpleNamespace(file=SimpleNamespace(src_uri=path), meta={})


def test_pictures_and_pages_are_of_the_site_and_code_is_of_the_repository() -> None:
    hooks = _site_hooks()
    config = SimpleNamespace(repo_url="https://code.example/fxpool")

    def led(text: str, page: str = "dashboard.md") -> str:
        written: str = hooks.on_page_markdown(text, page=_page(page), config=config, files=None)
        return written

    assert led("![live](dashboard.png)") == "![live](dashboard.png)"
    assert led("![live](../dashboard.png)", "architecture/index.md") == "![live](../dashboard.png)"
    assert led("[a](security.md#the-dashboard)") == "[a](security.md#the-dashboard)"
    assert led("[a](../README.md)") == "[a](index.md)"
    assert led("[a](settings_table.py)") == "[a](https://code.example/fxpool/blob/main/docs/settings_table.py)"
    assert led("[a](../examples)") == "[a](https://code.example/fxpool/tree/main/examples)"
    assert led("[a](https://pytorch.org)") == "[a](https://pytorch.org)"


def test_the_table_of_settings_has_room() -> None:
    hooks = _site_hooks()
    settings, other = _page("settings.md"), _page("pool.md")
    for page in (settings, other):
        hooks.on_page_markdown("# Settings", page=page, config=None, files=None)
    assert settings.meta == {"hide": ["toc"]} and other.meta == {}


def test_sizes_are_shown_as_they_are_written() -> None:
    made = runpy.run_path(str(ROOT / "docs" / "settings_table.py"))
    assert "| `FXPOOL_CACHE_MAX_BYTES` | `10G` |" in made["table"]()
    assert [setting_values.size_text(value) for value in (1 << 40, 3 << 29, 1 << 10, 1000)] == [
        "1T",
        "1536M",
        "1K",
        "1000",
    ]


def test_the_site_works_as_files() -> None:
    """Search, and what wraps long signatures, need more than mkdocs itself."""
    text = (ROOT / "mkdocs.yml").read_text()
    assert re.search(r"^  - offline$", text, re.MULTILINE)
    for name in re.findall(r"(?:polyfills: \[|^extra_css:\n  - )([\w.-]+)", text, re.MULTILINE):
        assert (ROOT / "docs" / name).exists(), name
    # The theme draws these with a script that it loads from the network.
    assert not [page for page in PAGES if re.search(r"^```mermaid", page.read_text(), re.MULTILINE)]
    assert re.search(r"^ruff==", (ROOT / "docs" / "requirements.txt").read_text(), re.MULTILINE)


def test_the_python_reference_finds_what_it_names() -> None:
    """The site reads the checkout's sources without importing them."""
    named = {name for page in PAGES for name in re.findall(r"^::: (\S+)$", page.read_text(), re.MULTILINE)}
    assert len(named) > 20
    for name in named:
        assert any(_defines(ROOT, name.split("."), parts) for parts in range(1, name.count(".") + 2)), name


def _defines(sources: Path, name: list[str], parts: int) -> bool:
    """Whether the module of the first `parts` of `name` is there and defines the rest."""
    module = sources.joinpath(*name[:parts])
    file = module / "__init__.py" if module.is_dir() else module.with_suffix(".py")
    rest = name[parts:]
    if not file.exists() or len(rest) > 1:
        return False
    return not rest or rest[0] in _names(file)


def _names(file: Path) -> set[str]:
    named = (ast.ClassDef, ast.FunctionDef)
    return {node.name for node in ast.parse(file.read_text()).body if isinstance(node, named)}


def test_the_address_of_the_repository_stands_in_one_place() -> None:
    hooks = _site_hooks()
    address = hooks.repository()
    assert address.startswith("https://")
    assert [name for page, name in zip(PAGES, NAMES, strict=True) if address in page.read_text()] == []
    assert address not in (ROOT / "mkdocs.yml").read_text()
