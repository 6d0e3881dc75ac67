"""Write the tables of reasons into docs/counters.md, from `fxpool/reasons.py`.

    python docs/reasons_table.py    writes each table between two marks

Needs neither torch nor any other package.
"""

from __future__ import annotations

import sys
from pathlib import Path

__all__ = ["PAGE", "page", "table"]

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "counters.md"
BEGIN, END = "<!-- {}, made by: python docs/reasons_table.py -->\n", "<!-- end of {} -->\n"


def table(counter: str) -> str:
    """One row per meaning: reasons that mean the same share one."""
    from fxpool.reasons import TABLES, Reason

    names: dict[Reason, list[str]] = {}
    for name, reason in TABLES[counter].items():
        names.setdefault(reason, []).append(f"`{name}...`" if name[-1] in ":_" else f"`{name}`")
    lines = ["| reason | it means | do |", "|---|---|---|"]
    for reason, of_it in names.items():
        more = f" [More]({reason.page})" if reason.page else ""
        lines.append(f"| {', '.join(of_it)} | {reason.meaning} | {reason.advice}{more} |".replace("  |", " |"))
    return "\n".join(lines) + "\n"


def page() -> str:
    """The page with its tables made anew."""
    sys.path.insert(0, str(ROOT))
    try:
        from fxpool.reasons import COUNTERS
    finally:
        sys.path.remove(str(ROOT))
    text = PAGE.read_text(encoding="utf-8")
    for counter in COUNTERS:
        begin, end = BEGIN.format(counter), END.format(counter)
        before, _, rest = text.partition(begin)
        text = before + begin + "\n" + table(counter) + "\n" + end + rest.partition(end)[2]
    return text


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
