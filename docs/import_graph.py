"""Which module imports which, read from the sources; circles in it, and a table of the packages.

    python docs/import_graph.py    writes docs/architecture/imports.md

Imports inside functions count. Those for type checkers only don't, as they are none at run time, and neither do those
of the front doors: `fxpool/__init__.py`, which hands out names of all packages and is imported before each of them, and
`fxpool/torch_import.py`, which torch calls.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

__all__ = ["FRONT_DOOR", "circles", "imports", "modules", "package_of", "packages", "sources", "table"]

ROOT = Path(__file__).parents[1]
#: Modules whose imports are no dependency of their package's.
FRONT_DOOR = frozenset(("fxpool", "fxpool.__main__", "fxpool.torch_import"))
PAGE = ROOT / "docs" / "architecture" / "imports.md"

Graph = dict[str, set[str]]


def sources() -> list[Path]:
    """Return the package's Python files, by the paths they are installed under: pool/ and others are links there."""
    walk = os.walk(ROOT / "fxpool", followlinks=True)
    return sorted(Path(directory, name) for directory, _, names in walk for name in names if name.endswith(".py"))


def modules() -> dict[str, Path]:
    """Every module by its dotted name; packages by theirs."""
    return {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in sources()
    }


def package_of(module: str, known: Mapping[str, Path]) -> str:
    """The package that a module is in; a package is in itself."""
    return module if known[module].name == "__init__.py" else module.rpartition(".")[0]


def imports(known: Mapping[str, Path]) -> Graph:
    """By module: which of the others it imports when it is imported, or in a function."""
    return {name: set(_imported(name, path, known)) for name, path in known.items()}


def _imported(name: str, path: Path, known: Mapping[str, Path]) -> Iterator[str]:
    for full in _names(ast.parse(path.read_text())):
        while full and full not in known:
            full = full.rpartition(".")[0]
        if full and full != name:
            yield full


def _names(tree: ast.AST) -> Iterator[str]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        yield from _names(node)


def packages(graph: Graph, known: Mapping[str, Path]) -> Graph:
    """The same between packages, the front door left out."""
    found: Graph = {package_of(name, known): set() for name in graph}
    for name, targets in graph.items():
        if name not in FRONT_DOOR:
            here = package_of(name, known)
            found[here] |= {package_of(target, known) for target in targets} - {here}
    return found


def circles(graph: Graph) -> list[list[str]]:
    """Groups of which every member leads to every other (Tarjan's strongly connected components of two and more)."""
    number: dict[str, int] = {}
    lowest: dict[str, int] = {}
    path: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        number[name] = lowest[name] = len(number)
        path.append(name)
        for target in sorted(graph.get(name, ())):
            if target not in number:
                visit(target)
                lowest[name] = min(lowest[name], lowest[target])
            elif target in path:
                lowest[name] = min(lowest[name], number[target])
        if lowest[name] == number[name]:
            group = path[path.index(name) :]
            del path[path.index(name) :]
            if len(group) > 1:
                found.append(sorted(group))

    for name in sorted(graph):
        if name not in number:
            visit(name)
    return found


def table(graph: Graph) -> str:
    """Packages and what they import, as a Markdown table; what is reached through another package is left out.

    A package stands above those that it imports.
    """
    reached = {name: _reached(graph, name) for name in graph}
    lines = ["| Package | Imports |", "| --- | --- |"]
    for name in sorted(graph, key=lambda name: (-_height(graph, name), name)):
        direct = [
            f"`{target}`"
            for target in sorted(graph[name])
            if not any(target in reached[other] for other in graph[name] - {target})
        ]
        lines.append(f"| `{name}` | {', '.join(direct) or '-'} |")
    return "\n".join(lines) + "\n"


def _height(graph: Graph, name: str) -> int:
    """The length of the longest way down from a package; the graph has no circle."""
    return max((_height(graph, target) + 1 for target in graph.get(name, ())), default=0)


def _reached(graph: Graph, name: str) -> set[str]:
    found: set[str] = set()
    left = [name]
    while left:
        for target in graph.get(left.pop(), ()):
            if target not in found:
                found.add(target)
                left.append(target)
    return found


def page() -> str:
    """The page of the documentation."""
    known = modules()
    graph = packages(imports(known), known)
    return (
        "# Imports between packages\n\n"
        "Made by `python docs/import_graph.py` from the sources. A package stands above what it imports. What it\n"
        "also reaches through another package is left out. There is no circle (`tests/front/test_rooms.py`).\n\n"
        + table(graph)
    )


if __name__ == "__main__":
    PAGE.parent.mkdir(parents=True, exist_ok=True)
    PAGE.write_text(page())
