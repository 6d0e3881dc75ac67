"""Write the table of settings into docs/settings.md, from `fxpool/config.py`.

    python docs/settings_table.py    writes the table, between two marks

Names, variables, types and defaults are those of the code, and a description is the docstring below the field of
`Settings`. Needs neither torch nor any other package.
"""

from __future__ import annotations

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
        from fxpool import config, setting_values
    finally:
        sys.path.remove(str(ROOT))
    with mock.patch.dict(os.environ, {"HOME": "/~"}):
        os.environ.pop("XDG_CACHE_HOME", None)
        defaults = {name: row.default() for name, row in config._TABLE.items()}
    lines = ["| setting | environment variable | default | |", "|---|---|---|---|"]
    for name, description in config.descriptions().items():
        value = defaults[name]
        is_size = value is not None and config.parser(name) in setting_values.SIZES
        default = setting_values.size_text(value) if is_size else value
        lines.append(f"| `{name}` | `{config.variable(name)}` | {_shown(default)} | {_for_users(description)} |")
    return "\n".join(lines) + "\n"


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
