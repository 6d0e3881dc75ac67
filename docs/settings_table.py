"""Write the table of settings into docs/settings.md, from `fxpool/config.py`.

    python docs/settings_table.py    writes the table, between two marks

Names, variables, types and defaults are those of the code, and a description is the docstring below the field of
`Settings`. Needs neither torch nor any other package.
"""

from __future__ import annotations

import ast
import os
import sys
from pathlib import Path
from typing import Any
from unittest import mock

__all__ = ["PAGE", "page", "table"]

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "settings.md"
BEGIN, END = "<!-- made by: python docs/settings_table.py -->\n", "<!-- end -->\n"


def table() -> str:
    """One row per setting, in the order of `Settings`."""
    sys.path.insert(0, str(ROOT))
    try:
        from fxpool import config
    finally:
        sys.path.remove(str(ROOT))
    variables = {name: variable for variable, name in config._VARIABLES.items()}
    with mock.patch.dict(os.environ, {"HOME": "/~"}):
        os.environ.pop("XDG_CACHE_HOME", None)
        defaults = {name: row.default() for name, row in config._TABLE.items()}
    lines = ["| setting | environment variable | default | |", "|---|---|---|---|"]
    for name, description in _descriptions(Path(config.__file__)).items():
        lines.append(f"| `{name}` | `{variables[name]}` | {_shown(defaults[name])} | {description} |")
    return "\n".join(lines) + "\n"


def _descriptions(path: Path) -> dict[str, str]:
    """The fields of the class `Settings`, with the strings that stand below them."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    (settings,) = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Settings")
    found, last = {}, ""
    for node in settings.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            last = node.target.id
            found[last] = ""
        elif last and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            found[last] = _for_users(" ".join(str(node.value.value).split()))
    return found


def _for_users(text: str) -> str:
    """The words of the code in those of the page."""
    return (
        text.replace("|", "\\|")
        .replace("; None: ", "; if not set: ")
        .replace(" None: ", " If not set: ")
        .replace("one of `WORKING_MODES`", "one of the [modes](modes.md)")
    )


def _shown(value: Any) -> str:
    if value is None or value == "":
        return "not set"
    if isinstance(value, Path):
        return f"`{str(value).removeprefix('/')}`"
    if isinstance(value, float) and value.is_integer():
        return f"`{value:g}`"
    if isinstance(value, tuple):
        return f"`{list(value)}`"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def page() -> str:
    """The page with its table made anew."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    return before + BEGIN + "\n" + table() + "\n" + END + rest.partition(END)[2]


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
