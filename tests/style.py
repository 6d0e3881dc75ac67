"""A lint for prose and names: find phrases that a reader has to translate, and names that say nothing.

    python tests/style.py                    every finding, as path:line: kind: text
    python tests/style.py pool               those of a room, a layer ("identifiers: pool") or a path ("pool/server.py")
    python tests/style.py --counts           the number of findings per layer
    python tests/style.py --root DIR ...     another checkout

It reads docstrings, comments, text for users (arguments of `raise`, warnings and logs; strings of the command line),
the pages without code, and names of parameters, public attributes, functions and classes. Docstrings and comments
outside `fxpool` and `tests` are not read, nor are code in backticks and tables that are made from the code.

Prose, by kind:

- `subject`: a sentence that begins with `Who`, `What` or `Whatever` as its subject (`What is evicted stays listed.`). A
  question passes, as do `What to compare` and titles: headings, bold lead-ins, texts of links, cells of one word. In
  lower case it counts as the first word of a comment, a message, or a module's line in a package's map.
- `who`: a clause with `who` in place of a noun (`remembers jobs for who looks on`). `anyone who`, `the user who` and
  `depends on who wrote it` pass.
- `what is`: `what is kept`, `what was found`, `what is there`; `what the caller asked for` passes.
- `no`: `is none`, `are none`, `has none`, `is no` and `are no`; `there is no` and `is no longer` pass.
- `own`: `of its own`, `of their own`, `of torch's own`; `of its own libraries` passes.
- `word`: `nobody`, `somebody`, `meanwhile`, `anew`, `whoever`, `as things stand`.
- `participle`: a sentence that begins with `Kept`, `Found`, `Made`, `Told`, `Asked`, `Begun` or `Said`.

A name (`name`) is found if it is one of `VAGUE`, in capitals or not.
"""

from __future__ import annotations

import argparse
import ast
import collections
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from sources import sources

__all__ = ["LAYERS", "ROOT", "VAGUE", "Finding", "find", "in_markdown", "in_prose", "in_python"]

ROOT = Path(__file__).parents[1]

_ROOMS = ("fxpool", "torch_compat", "bench", "pool", "codecache", "lowering", "tests")
ERRORS, COMMANDS, PAGES, MODULES = "errors and warnings", "command line", "pages", "package and module docstrings"
PROSE, NAMES = "docstrings and comments: ", "identifiers: "
#: Each has a ceiling. In the order in which texts are rewritten.
LAYERS = (
    ERRORS, COMMANDS, PAGES, MODULES, *(PROSE + room for room in _ROOMS), *(NAMES + room for room in _ROOMS),
)  # fmt: skip

VAGUE = frozenset((
    "asked", "besides", "found", "given", "here", "how", "kept", "known", "made", "one", "otherwise", "place", "rest",
    "there", "told", "what",
))  # fmt: skip

_MESSAGES = ("fxpool/errors.py", "fxpool/reasons.py")
_COMMAND_FOLDERS = ("fxpool/commands/", "fxpool/doctor/", "bench/fxpool_bench/")
_MADE_PAGES = ("docs/architecture/imports.md", "docs/architecture/torch-names.md")
#: Calls whose strings a user reads: of `notices` and `warnings`, and of loggers.
_WARNS = ("notices.warn", "notices.once", "notices.switched_off", "warnings.warn")
_LOGS = re.compile(r"(?:^|[._])log(?:ger)?\.(?:debug|info|warning|error|exception|critical|log)$")
_CLICK = re.compile(r"(?:^|\.)(?:option|argument|command|group)$")


class Finding(NamedTuple):
    """A phrase or a name at a line of a file. The module's docstring lists the kinds."""

    kind: str
    path: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.kind}: {self.text}"


class Text(NamedTuple):
    """A piece of prose, or a name, and the layer that it belongs to."""

    layer: str
    line: int
    text: str


# --- prose ---

_PARTICIPLES = (
    r"(?:\w{2,}ed|begun|built|done|found|given|gone|held|here|kept|known|left|lost|made|meant|put|read|run|said|seen|"
    r"sent|shown|taken|there|thrown|told|written)"
)
_BEFORE_WHO = (
    "after as at because before by for from if in of on once since so than that to unless until when where while "
    "whether with without"
)
#: Words that follow `of its own` where no noun does.
_AFTER_OWN = (
    "after and are as at because before beside besides but by does for from has have if in into is of on once or "
    "since so than that then to under unless until where which while who with without"
)
_RULES = {
    "subject": r"(?<![\"'`“\[*\w] )(?<![\"'`“\[*\w])(?:Who|What|Whatever)\b(?!'s|\*|\s*\||\s+to\b)",
    "who": rf"(?<!depends\s)(?<!depend\s)(?:\b(?:{_BEFORE_WHO.replace(' ', '|')})|[:;—])\s+"
    r"who\s+(?!(?:the|an?|it|they|we|you|I)\b)\w+",
    "what is": r"\b[Ww]hat\s+(?:is|are|was|were|has\s+been)\s+"
    rf"(?:(?:not|already|still|yet|then)\s+){{0,2}}{_PARTICIPLES}\b",
    "no": r"\b(?:is|are|was|were|has|have)\s+none\b|(?<!\b[Tt]here\s)\b(?:is|are)\s+no\s+"
    r"(?!longer\b|more\b|less\b|better\b|worse\b|different\b|reason\b|substitute\b)",
    "own": r"\bof\s+(?:its|their|(?:(?:the|an?|this|that|each|another)\s+)?[\w{}]+(?:'s|s'))\s+own"
    rf"(?=\s*(?:[^\w\s{{]|\Z)|\s+(?:{_AFTER_OWN.replace(' ', '|')})\b)",
    "word": r"\b(?:[Nn]obody|[Ss]omebody|[Mm]eanwhile|[Aa]new|[Ww]hoever|[Aa]s things stand)\b",
    "participle": r"(?:\A\s*|[.!?:]\s+|\n\s*\n\s*|\n\s*[-*#]+\s+)(?:Kept|Found|Made|Told|Asked|Begun|Said)\b",
}
_COMPILED = {kind: re.compile(rule) for kind, rule in _RULES.items()}
#: A text, or a line of a package's map, that begins with a pronoun.
_FIRST = re.compile(r"(?:\A\s*|^ *[\w.{}]+ {2,})(?:who|what|whatever)\b", re.MULTILINE)
_END = re.compile(r"[.!?](?=[\s\"')*])|[.!?]\Z|\n\s*\n|\n(?= *[\w.{}]+ {2,}\S)|\|")
_CODE = re.compile(r"``[^`]+``|`[^`\n]+(?:\n[^`\n]+)?`|https?://\S+")


def _blank(match: re.Match[str]) -> str:
    """Replace code by placeholders, on as many lines."""
    return re.sub(r"\S+", "{}", match[0]) if "\n" in match[0] else "{}"


def in_prose(path: str, line: int, text: str) -> Iterator[Finding]:
    """Find phrases in a text that begins at `line`."""
    text = _CODE.sub(_blank, text)
    subjects = set[int]()
    for kind, rule in _COMPILED.items():
        matches = list(rule.finditer(text))
        if kind == "subject":
            matches += [match for match in _FIRST.finditer(text) if not match[0].lstrip()[:1].isupper()]
        for match in sorted(matches, key=re.Match.start):
            start = match.start() + len(match[0]) - len(match[0].lstrip(".!?: \n-*#"))
            end = _END.search(text, match.end())
            if kind in ("subject", "who", "what is") and end is not None and end[0] == "?":
                continue  # a question
            if kind == "subject":
                subjects.add(match.end())
            elif kind == "what is" and match.start() + len("what") in subjects:
                continue
            yield Finding(kind, path, line + text.count("\n", 0, start), _shown(text, start, match.end()))


def _shown(text: str, start: int, end: int) -> str:
    """Return the part of its sentence around a phrase, on one line."""
    begin = max((end.end() for end in _END.finditer(text) if end.end() <= start), default=0)
    stop = _END.search(text, end)
    begin, stop_at = max(begin, start - 50), min(stop.end() if stop else len(text), end + 60)
    return " ".join(text[begin:stop_at].split()).strip("| ")


# --- pages ---

_NOT_PROSE = re.compile(
    r"^(?P<fence>```+|~~~+).*?^(?P=fence)|<!--[^\n]*made by: python docs/.*?<!-- end[^\n]*-->|<!--.*?-->",
    re.MULTILINE | re.DOTALL,
)
_LINK = re.compile(r"(?<=\])\([^)\s]*\)")
_TITLE = re.compile(r"^#+ .*$|\*\*[^*\n]+\*\*", re.MULTILINE)


def in_markdown(text: str) -> str:
    """Return a page with its code, titles and made tables left out, and every line where it was."""
    for part in (_NOT_PROSE, _LINK):
        text = part.sub(lambda match: "\n" * match[0].count("\n"), text)
    # In a title the pronouns may stand first, so only those go.
    text = _TITLE.sub(lambda match: re.sub(r"\b(?:Who|What|Whatever)\b", "{}", match[0]), text)
    lines, is_code, in_list = [], False, False
    for before, line in zip(["", *text.split("\n")], text.split("\n"), strict=False):
        if line.strip() and not line.startswith("    "):
            is_code, in_list = (
                False,
                bool(re.match(r"\s*(?:[-*]|\d+\.|!!!|\?\?\?) ?", line)) or (in_list and line[0] == " "),
            )
        elif line.strip() and not before.strip() and not in_list:
            is_code = True
        lines.append("" if is_code else line)
    return "\n".join(lines)


# --- Python ---


def in_python(path: str, source: str) -> Iterator[Text]:
    """Yield all prose and names of a module whose path begins with its room."""
    tree = ast.parse(source)
    room = _room(path)
    is_error, is_command = path in _MESSAGES, path.startswith(_COMMAND_FOLDERS)
    prose = ERRORS if is_error else PROSE + room
    yield from (Text(NAMES + room, line, name) for line, name in _names(tree))
    yield from (Text(prose, line, text) for line, text in _comments(source))
    seen: set[int] = set()
    for layer, docstring in _docstrings(tree, ERRORS if is_error else MODULES if room != "tests" else prose, prose):
        seen.add(id(docstring))
        yield Text(layer, docstring.lineno, str(docstring.value))
    if room == "tests":
        return
    for node in ast.walk(tree):
        # `raise X("...")`, warnings and logs; help= of options.
        if isinstance(node, ast.Raise):
            yield from _strings(node, ERRORS, seen)
        elif isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            if name in _WARNS or _LOGS.search(name):
                yield from _strings(node, ERRORS, seen)
            elif _CLICK.search(name):
                for keyword in node.keywords:
                    yield from _strings(keyword.value, COMMANDS, seen)
    if is_error or is_command:
        yield from _strings(tree, ERRORS if is_error else COMMANDS, seen)


def _room(path: str) -> str:
    parts = [part for part in Path(path).parts if part in _ROOMS]
    return parts[1] if parts[:1] == ["fxpool"] and len(parts) > 1 else parts[0]


def _strings(node: ast.AST, layer: str, seen: set[int]) -> Iterator[Text]:
    """Yield the strings of several words below `node` that are not in `seen`, and add them to it."""
    if id(node) in seen:
        return
    if isinstance(node, ast.JoinedStr):
        parts = [part.value if isinstance(part, ast.Constant) else "{}" for part in node.values]
        text = "".join(map(str, parts))
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        text = node.value
    else:
        for child in ast.iter_child_nodes(node):
            yield from _strings(child, layer, seen)
        return
    seen.add(id(node))
    if " " in text.strip():
        yield Text(layer, node.lineno, text)


def _docstrings(tree: ast.Module, module: str, other: str) -> Iterator[tuple[str, ast.Constant]]:
    """Yield docstrings, those below fields among them, with their layers."""
    for node in ast.walk(tree):
        body = getattr(node, "body", [])
        for before, statement in zip([None, *body], body, strict=False) if isinstance(body, list) else ():
            if not isinstance(statement, ast.Expr) or not isinstance(statement.value, ast.Constant):
                continue
            if not isinstance(statement.value.value, str) or not (before is None or isinstance(before, ast.AnnAssign)):
                continue
            decorators = [ast.unparse(one).partition("(")[0] for one in getattr(node, "decorator_list", [])]
            is_command = any(_CLICK.search(name) and not name.endswith("option") for name in decorators)
            yield module if isinstance(node, ast.Module) else COMMANDS if is_command else other, statement.value


def _comments(source: str) -> Iterator[tuple[int, str]]:
    """Yield comments; those on consecutive lines of one column are one text."""
    first, column, lines = 0, 0, list[str]()
    tokens = tokenize.generate_tokens(iter(source.splitlines(keepends=True)).__next__)
    for token in tokens:
        if token.type != tokenize.COMMENT or re.match(r"#\s*(?:type:|noqa|fmt:|!)", token.string):
            continue
        (line, start), text = token.start, token.string.lstrip("#:").strip()
        if lines and (line, start) == (first + len(lines), column):
            lines.append(text)
            continue
        if lines:
            yield first, "\n".join(lines)
        first, column, lines = line, start, [text]
    if lines:
        yield first, "\n".join(lines)


def _names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield parameters of all functions, and public functions, classes, attributes and names of the module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            spec = node.args
            every = [*spec.posonlyargs, *spec.args, *spec.kwonlyargs, spec.vararg, spec.kwarg]
            yield from ((argument.lineno, argument.arg) for argument in every if argument is not None)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.lineno, node.name
        if isinstance(node, ast.Module | ast.ClassDef):
            for statement in node.body:
                targets = (
                    statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
                )
                yield from (
                    (name.lineno, name.id)
                    for target in targets
                    for name in (target.elts if isinstance(target, ast.Tuple) else [target])
                    if isinstance(name, ast.Name)
                )
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self":
            yield node.lineno, node.attr


# --- the checkout ---


def find(root: Path = ROOT) -> dict[str, list[Finding]]:
    """Return the findings of a checkout by layer, in the order of paths and lines."""
    root = root.resolve()
    findings: dict[str, list[Finding]] = {layer: [] for layer in LAYERS}
    for file in (*sources(str(root / "fxpool")), *sources(str(root / "tests"))):
        path = file.resolve().relative_to(root).as_posix()
        for layer, line, text in in_python(path, file.read_text(encoding="utf-8")):
            if not layer.startswith(NAMES):
                findings[layer] += in_prose(path, line, text)
            elif text.lower() in VAGUE:
                findings[layer].append(Finding("name", path, line, text))
    for file in (*root.glob("*.md"), *(root / "docs").rglob("*.md")):
        path = file.relative_to(root).as_posix()
        if path not in _MADE_PAGES:
            findings[PAGES] += in_prose(path, 1, in_markdown(file.read_text(encoding="utf-8")))
    return {layer: sorted(set(every), key=lambda finding: finding[1:3]) for layer, every in findings.items()}


def _main() -> None:
    parser = argparse.ArgumentParser(description="Find phrases and names that a reader has to translate.")
    parser.add_argument("room", nargs="?", default="", help="a room, a layer, or the start of a path")
    parser.add_argument("--root", type=Path, default=ROOT, help="the checkout (default: this one)")
    parser.add_argument("--counts", action="store_true", help="print the number of findings per layer")
    arguments = parser.parse_args()
    counts: collections.Counter[str] = collections.Counter()
    for layer, findings in find(arguments.root).items():
        is_layer = re.search(rf"\b{re.escape(arguments.room)}\b", layer)
        chosen = [finding for finding in findings if is_layer or finding.path.startswith(arguments.room)]
        counts[layer] = len(chosen)
        if not arguments.counts:
            sys.stdout.writelines(f"{finding}\n" for finding in chosen)
    if arguments.counts:
        sys.stdout.writelines(f"{count:5}  {layer}\n" for layer, count in counts.items() if count)


if __name__ == "__main__":
    _main()
