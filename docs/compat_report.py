"""Which private names of torch's and Triton's fxpool uses, and how they differ between releases.

    python docs/compat_report.py .compat    writes docs/architecture/torch-names.md

Names are read from the sources of `fxpool/torch_compat`: imports, attributes of what was imported, and ``getattr``,
``hasattr`` or a function of `patching` with a name in quotes. Attributes of objects that only exist at run time can't
be seen that way. Each name is looked up in this interpreter and in each environment below the folder: `make compat
TORCH=...` makes them.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

__all__ = ["Facts", "is_private", "names_of", "names_used", "page"]

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "architecture" / "torch-names.md"
COMPAT = ROOT / "fxpool" / "torch_compat"
_LIBRARIES = ("torch", "triton")
#: Functions with an object and the name of an attribute as their first arguments.
_NAMING = ("getattr", "hasattr", "patched", "replace", "replaced")

#: By name: None where there is none, else its kind, its signature or value, and a digest of its source.
Facts = dict[str, dict[str, str] | None]

# Runs in each environment: reads names from standard input, prints the release and the facts.
_ASK = r"""
import ast, hashlib, importlib, inspect, json, re, sys, textwrap, warnings
warnings.simplefilter("ignore")
import torch
try:
    import triton
except ImportError:
    triton = None

def find(name):
    parts = name.split(".")
    for n in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:n]))
        except ImportError:
            continue
        for part in parts[n:]:
            found = inspect.getattr_static(found, part) if inspect.isclass(found) else getattr(found, part)
        return found
    raise AttributeError(name)

def body(found):
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(found)))
    except (OSError, TypeError, SyntaxError):
        return ""
    for node in ast.walk(tree):
        text = getattr(node, "body", None)
        first = text[0] if isinstance(text, list) and text else None
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
            del text[0]
    return hashlib.sha256(ast.dump(tree).encode()).hexdigest()[:8]

def describe(found):
    if isinstance(found, (staticmethod, classmethod)):
        found = found.__func__
    if isinstance(found, property):
        found = found.fget
    found = inspect.unwrap(found) if callable(found) else found
    if inspect.ismodule(found):
        return {"kind": "module", "text": "", "digest": ""}
    if inspect.isclass(found):
        return {"kind": "class", "text": "", "digest": body(found)}
    if callable(found):
        try:
            signature = inspect.signature(found)
            bare = [parameter.replace(annotation=parameter.empty) for parameter in signature.parameters.values()]
            text = str(signature.replace(parameters=bare, return_annotation=signature.empty))
            text = re.sub(r" at 0x[0-9a-f]+", "", text)
        except (ValueError, TypeError):
            text = ""
        return {"kind": "function", "text": text, "digest": body(found)}
    text = repr(found)
    return {"kind": type(found).__name__, "text": text if len(text) < 60 and " at 0x" not in text else "", "digest": ""}

facts = {}
for name in json.load(sys.stdin):
    try:
        facts[name] = describe(find(name))
    except Exception:
        facts[name] = None
print("\n" + json.dumps([torch.__version__, triton.__version__ if triton else None, facts]))
"""


def is_private(name: str) -> bool:
    """Return whether a part of a dotted name begins with one underscore. Triton's compiler has no public names."""
    return name.startswith("triton.") or any(p.startswith("_") and not p.startswith("__") for p in name.split("."))


def names_of(source: str) -> set[str]:
    """Return torch's and Triton's names that a module uses, whole: ``torch._inductor.config.cpp.cxx``."""
    tree = ast.parse(source)
    known: dict[str, str] = {}
    used: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] in _LIBRARIES:
                    known[alias.asname or alias.name.split(".")[0]] = (
                        alias.name if alias.asname else alias.name.split(".")[0]
                    )
                    used.add(alias.name)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in _LIBRARIES and not node.level:
            for alias in node.names:
                known[alias.asname or alias.name] = f"{node.module}.{alias.name}"
                used.add(f"{node.module}.{alias.name}")
    inner: set[ast.AST] = set()
    for node in ast.walk(tree):  # outer attributes come first, so that each chain is taken once and whole
        if isinstance(node, ast.Attribute) and node not in inner:
            name, parts = node, [node.attr]
            while isinstance(name.value, ast.Attribute):
                name = name.value
                inner.add(name)
                parts.append(name.attr)
            if isinstance(name.value, ast.Name) and name.value.id in known:
                used.add(".".join([known[name.value.id], *reversed(parts)]))
        elif isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in _NAMING:
            used.update(_named(node, known))
    return used


def _named(call: ast.Call, known: dict[str, str]) -> Iterator[str]:
    if len(call.args) < 2:
        return
    owner, name = call.args[:2]
    if isinstance(name, ast.Constant) and isinstance(name.value, str):
        dotted = ast.unparse(owner)
        root, _, rest = dotted.partition(".")
        if root in known and all(part.isidentifier() for part in dotted.split(".")):
            yield ".".join(part for part in (known[root], rest, name.value) if part)


def names_used() -> dict[str, list[str]]:
    """Return every private name with the modules of `fxpool.torch_compat` that use it."""
    used: dict[str, list[str]] = {}
    for path in sorted(COMPAT.rglob("*.py")):
        for name in names_of(path.read_text()):
            if is_private(name):
                used.setdefault(name, []).append(str(path.relative_to(COMPAT).with_suffix("")))
    return dict(sorted(used.items()))


def ask(python: Path, names: list[str]) -> tuple[str, str | None, Facts]:
    """Return an environment's torch, its Triton and the facts of `names` there."""
    path = python.parents[1] / "triton"  # where `make test` puts it for a torch that has not brought its own
    done = subprocess.run(
        [python, "-c", _ASK],
        input=json.dumps(names),
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(path)},
    )
    release, triton, facts = json.loads(done.stdout.splitlines()[-1])
    return release, triton, facts


def page(used: dict[str, list[str]], answers: list[tuple[str, str | None, Facts]]) -> str:
    """Return the page: the environments, the names that differ between them with their signatures, then all others."""
    answers = sorted(answers, key=lambda answer: _version(answer[0]))
    releases = [".".join(release.split("+")[0].split(".")[:2]) for release, _, _ in answers]
    lines = [
        "# Private names of torch",
        "",
        "<!-- made by: make compat-report -->",
        "",
        f"`fxpool/torch_compat` uses {len(used)} private names of torch's and Triton's. Letters stand for different "
        "sources of one name, comments and docstrings left out: two releases with the same letter have the same code. "
        "✓ is a module or a value, · a name that the release does not have. Attributes of objects that only exist at "
        "run time are not listed.",
        "",
        *(f"- torch {release}, Triton {triton or 'not installed'}" for release, triton, _ in answers),
        "",
    ]
    rows: dict[bool, list[str]] = {True: [], False: []}
    signatures: list[str] = []
    for name, modules in used.items():
        marks, differs = _marks([facts[name] for _, _, facts in answers])
        rows[differs].append(f"| `{name}` | {' | '.join(marks)} | {', '.join(modules)} |")
        signatures += _signatures(name, releases, [facts[name] for _, _, facts in answers])
    gone = [f"- `{name}`: last in {last}" for name in used if (last := _last_seen(name, releases, answers))]
    head = [f"| name | {' | '.join(releases)} | used in |", "|---|" + "---|" * (len(releases) + 1)]
    if gone:
        lines += [f"## Not in {releases[-1]}", "", *gone, ""]
    lines += ["## Names that differ between releases", "", *head, *rows[True], ""]
    lines += ["## Signatures that changed", "", *signatures, ""]
    lines += ["## The same in all of them", "", *head, *rows[False], ""]
    return "\n".join(lines)


def _last_seen(name: str, releases: list[str], answers: list[tuple[str, str | None, Facts]]) -> str:
    """Return the last release that has a name which the newest lacks; empty if the newest has it."""
    having = [release for release, (_, _, facts) in zip(releases, answers, strict=True) if facts[name] is not None]
    return having[-1] if having and having[-1] != releases[-1] else ""


def _version(release: str) -> tuple[int, ...]:
    return tuple(int(part) for part in release.split("+")[0].split(".")[:2])


def _marks(facts: list[dict[str, str] | None]) -> tuple[list[str], bool]:
    """Return a mark for each release, and whether they differ."""
    letters: dict[str, str] = {}
    marks = []
    for fact in facts:
        if fact is None:
            marks.append("·")
        elif not fact["digest"]:
            marks.append("✓")
        else:
            marks.append(letters.setdefault(fact["digest"], chr(ord("a") + len(letters))))
    return marks, len(set(marks)) > 1


def _signatures(name: str, releases: list[str], facts: list[dict[str, str] | None]) -> list[str]:
    changed: list[str] = []
    last = None
    for release, fact in zip(releases, facts, strict=True):
        if fact is not None and fact["kind"] == "function" and fact["text"] and fact["text"] != last:
            last = fact["text"]
            changed.append(f"    - {release}: `{last}`")
    return [f"- `{name}`", *changed] if len(changed) > 1 else []


def main(folder: Path) -> None:
    """Write the page. Environments without torch are left out."""
    used = names_used()
    pythons = [Path(sys.executable), *sorted(folder.glob("*/bin/python"))]
    answers: dict[tuple[int, ...], Any] = {}
    for python in pythons:
        try:
            answer = ask(python, list(used))
        except subprocess.CalledProcessError as error:
            print(f"{python}: {(error.stderr.strip().splitlines() or ['failed'])[-1]}", file=sys.stderr)
            continue
        answers[_version(answer[0])] = answer
    PAGE.write_text(page(used, list(answers.values())))
    print(f"{PAGE.relative_to(ROOT)}: {len(used)} names in torch {', '.join(a[0] for a in answers.values())}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else ".compat"))
