"""Which rooms import which, and which modules use private names of torch."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from sources import ROOT, sources

from fxpool.torch_compat import versions

FORBIDDEN = {
    "fxpool/pool": ("torch", "fxpool.lowering", "fxpool.codecache", "fxpool.torch_compat"),
    "fxpool/codecache": ("fxpool.pool", "fxpool.lowering"),
    "fxpool/torch_compat": ("fxpool.pool", "fxpool.lowering", "fxpool.codecache", "fxpool.config", "fxpool.counters"),
}


def _package_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).parts[:-1])


def _imports(tree: ast.AST, package: str) -> Iterator[tuple[int, str, str]]:
    """(line, local name, full dotted name) of every import, wherever it stands, relative ones resolved."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.asname:
                    yield node.lineno, alias.asname, alias.name
                else:
                    yield node.lineno, alias.name.split(".")[0], alias.name
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, base] if base else above)
            for alias in node.names:
                yield node.lineno, alias.asname or alias.name, f"{base}.{alias.name}"
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called in ("import_module", "__import__") and isinstance(node.args[0].value, str):
                yield node.lineno, "", node.args[0].value


def _dotted(node: ast.expr) -> list[str]:
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    return [node.id, *reversed(names)] if isinstance(node, ast.Name) else []


def _is_private(name: str) -> bool:
    """Whether a dotted name is one that torch may change without notice."""
    parts = name.split(".")
    if parts[0] != "torch":
        return False
    private = any(part.startswith("_") and not (part.startswith("__") and part.endswith("__")) for part in parts[1:])
    return private or parts[1:3] == ["fx", "experimental"]


def private_names(source: str, package: str = "fxpool") -> list[str]:
    """`line: name` of every private name of torch that a module imports or reaches through an import."""
    tree = ast.parse(source)
    found = set()
    local = {}
    for line, name, full in _imports(tree, package):
        if _is_private(full):
            found.add((line, full))
        if name:
            # `import torch.fx` binds torch.
            local[name] = full if not full.startswith(name + ".") else name
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            names = _dotted(node)
            if names and names[0] in local:
                full = ".".join([local[names[0]], *names[1:]])
                if _is_private(full) and not _is_private(full.rpartition(".")[0]):
                    found.add((node.lineno, full))
    return [f"{line}: {name}" for line, name in sorted(found)]


@pytest.mark.parametrize(
    "source",
    [
        "import torch._inductor",
        "import torch\ntorch._C._log_api_usage_once",
        "from torch import _dynamo",
        "from torch.fx.experimental.symbolic_shapes import ShapeEnv",
        "from torch.utils._pytree import tree_map",
        "import torch as t\nt.utils._pytree.tree_map",
        "from torch.fx import Node\ndef f():\n    return Node._foo",
        "import importlib\nimportlib.import_module('torch._inductor.graph')",
        "def f():\n    import torch._functorch.config as c\n    return c",
    ],
)
def test_the_scan_sees_private_names(source: str) -> None:
    assert private_names(source)


@pytest.mark.parametrize(
    "source",
    [
        "import torch\ntorch.__version__",
        "import torch.fx\ntorch.fx.Node",
        "self._torch = 1",
        "import _thread",
        "x._private",
    ],
)
def test_the_scan_lets_public_names_pass(source: str) -> None:
    assert private_names(source) == []


def test_private_names_of_torch_stand_in_torch_compat_only() -> None:
    found = []
    for path in sources():
        name = path.relative_to(ROOT).as_posix()
        if not name.startswith("fxpool/torch_compat/"):
            found += [f"{name}:{line}" for line in private_names(path.read_text(), _package_of(path))]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("folder", FORBIDDEN)
def test_who_may_import_whom(folder: str) -> None:
    found = []
    for path in sources(folder):
        for line, _, full in _imports(ast.parse(path.read_text()), _package_of(path)):
            if any(full == name or full.startswith(name + ".") for name in FORBIDDEN[folder]):
                found.append(f"{path.relative_to(ROOT)}:{line}: {full}")
    assert not found, "\n".join(found)


def test_nothing_generic_is_installed_at_the_top() -> None:
    import importlib.metadata

    # What is installed has a RECORD; the egg-info that a build leaves in the checkout lists sources instead.
    installed = [d for d in importlib.metadata.distributions(name="fxpool") if d.read_text("RECORD")]
    names = {Path(str(file)).parts[0] for distribution in installed for file in distribution.files or []}
    assert names
    assert not names & {"pool", "lowering", "codecache", "tests", "bench"}


def _unexplained_imports(path: Path) -> Iterator[int]:
    """Lines of imports inside functions for which neither a comment nor a docstring gives a reason.

    A comment stands beside an import, or above a block of them; a docstring is the module's or that of a package
    around it.
    """
    text = path.read_text()
    tree, lines = ast.parse(text), text.splitlines()
    around = [above / "__init__.py" for above in path.parents if ROOT in above.parents]
    trees = [
        tree,
        *(ast.parse(one.read_text()) for one in around if one.exists() and one != ROOT / "fxpool/__init__.py"),
    ]
    if any("inside functions" in (ast.get_docstring(one) or "") for one in trees):
        return
    inside = sorted(
        {
            node.lineno
            for function in ast.walk(tree)
            if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef))
            for node in ast.walk(function)
            if isinstance(node, (ast.Import, ast.ImportFrom))
        }
    )
    explained = 0
    for number in inside:
        above = lines[number - 2].strip()
        if "#" in lines[number - 1] or above.startswith("#") or (explained == number - 1 and explained):
            explained = number
        else:
            yield number


def test_an_import_inside_a_function_says_why() -> None:
    found = [f"{path.relative_to(ROOT)}:{number}" for path in sources() for number in _unexplained_imports(path)]
    assert not found, "a comment beside or above it, or 'inside functions' in the module's docstring"


def test_all_places_that_say_which_pythons_say_the_same() -> None:
    """pip goes by `requires-python`, the workflow tests, and fxpool itself refuses."""
    (_, oldest), (_, newest) = versions.PYTHONS
    every = [f"3.{minor}" for minor in range(oldest, newest + 1)]
    project = (ROOT / "pyproject.toml").read_text()
    assert f'requires-python = ">=3.{oldest},<3.{newest + 1}"' in project
    assert [version for version in every if f'"Programming Language :: Python :: {version}"' in project] == every
    assert f'"Programming Language :: Python :: 3.{newest + 1}"' not in project
    assert f"python: {json.dumps(every)}" in (ROOT / ".github/workflows/nightly.yml").read_text()
    assert f"Python 3.{oldest}-3.{newest}" in (ROOT / "README.md").read_text()
