"""What `mkdocs build` does besides: the repository's address, its links, and pages that stand in its root.

The address is that of pyproject.toml, so that it stands in one place. A link that leads out of docs/ goes to the file
in the repository; one to a file that does not exist is a warning, and so an error. A page whose only line is
``<!-- page: ../CHANGELOG.md -->`` is that file.
"""

from __future__ import annotations

import logging
import re
from pathlib import Path, PurePosixPath
from typing import Any

log = logging.getLogger("mkdocs.hooks.fxpool")

ROOT = Path(__file__).parents[1]
_LINK = re.compile(r"(\]\()([^)\s]+)(\))")
_PAGE = re.compile(r"<!-- page: (\S+) -->\s*")
#: Files in the root that are pages of the site, too.
_OF_THE_ROOT = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
#: Suffixes of pages and pictures. The site has those of docs/; links to all other files lead to the repository.
_ON_THE_SITE = (".md", ".png", ".svg")
#: Pages with a wide table, which takes the room of the list of headings.
_WIDE = {"settings.md", "architecture/torch-names.md"}


def on_config(config: Any) -> Any:
    config.repo_url = repository()
    config.repo_name = "fxpool"
    return config


def repository() -> str:
    """The address in pyproject.toml."""
    found = re.search(r'^Repository = "([^"]+)"', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)
    if found is None:
        raise LookupError("pyproject.toml has no Repository under [project.urls]")
    return found[1].rstrip("/")


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Any) -> str:
    here = PurePosixPath("docs", page.file.src_uri).parent
    if page.file.src_uri in _WIDE:
        page.meta["hide"] = ["toc"]
    whole = _PAGE.fullmatch(markdown.strip())
    folder = here
    if whole is not None:
        path = ROOT / here / whole[1]
        folder = PurePosixPath(path.resolve().relative_to(ROOT).parent.as_posix())
        markdown = path.read_text(encoding="utf-8")

    def led(match: re.Match[str]) -> str:
        link, _, anchor = match[2].partition("#")
        if not link or "://" in link or link.startswith("mailto:"):
            return match[0]
        target = _normal(folder / link)
        if not (ROOT / target).exists():
            log.warning("%s: there is no %s", page.file.src_uri, target)
            return match[0]
        suffix = f"#{anchor}" if anchor else ""
        target = PurePosixPath("docs", _OF_THE_ROOT[str(target)]) if str(target) in _OF_THE_ROOT else target
        if target.parts[:1] == ("docs",) and target.suffix in _ON_THE_SITE:
            steps = len(here.parts)
            return f"{match[1]}{'../' * (steps - 1)}{PurePosixPath(*target.parts[1:])}{suffix}{match[3]}"
        kind = "tree" if (ROOT / target).is_dir() else "blob"
        return f"{match[1]}{config.repo_url}/{kind}/main/{target}{suffix}{match[3]}"

    return _LINK.sub(led, markdown)


def _normal(path: PurePosixPath) -> PurePosixPath:
    parts: list[str] = []
    for part in path.parts:
        if part == "..":
            if not parts:
                return PurePosixPath("..", path)
            parts.pop()
        else:
            parts.append(part)
    return PurePosixPath(*parts)
