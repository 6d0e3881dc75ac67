"""Every reason that the sources count is explained, and the page of counters is made from the explanations."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterator

import pytest
from sources import ROOT, sources

from fxpool import reasons

#: What counts a reason, or raises one that is counted, and the counter.
CALLS = {
    "CannotTravelError": "fallbacks",
    "CannotReturnError": "fallbacks",
    "NotDescribedError": "fallbacks",
    "step_down": "fallbacks",
    "Bypass": "bypasses",
    "bypass": "bypasses",
    "switched_off": "switched_off",
}


def counted_in(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """(counter, reason) of each reason that is named in a source; of one that is put together, its beginning."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and node.args:
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            first = _text(node.args[0])
            if name == "count" and first in reasons.TABLES and len(node.args) > 1:
                if (reason := _text(node.args[1])) is not None and reason not in reasons.NO_REASONS:
                    yield str(first), reason
            elif name in ("RefusedError", "refuse") and first is not None:
                yield "frames", f"refused:{first}"
            elif name in CALLS and first is not None:
                yield CALLS[name], first
        elif isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "counted":
            reason = _text(node.value)
            if reason is not None:
                yield ("fallbacks" if ":" in reason else "switched_off"), reason


def _text(node: ast.AST) -> str | None:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr) and node.values and isinstance(node.values[0], ast.Constant):
        return str(node.values[0].value)
    return None


def all_counted() -> set[tuple[str, str]]:
    found: set[tuple[str, str]] = set()
    for path in sources():
        found |= set(counted_in(ast.parse(path.read_text())))
    return found


def test_the_walk_finds_what_there_is() -> None:
    source = """
raise CannotTravelError("one", "detail")
attempt.bypass("two")
counters.count("fallbacks", f"three:{what}")
counters.count("hits")
notices.switched_off("four", "text")
class A: counted = "five"
"""
    assert set(counted_in(ast.parse(source))) == {
        ("fallbacks", "one"), ("bypasses", "two"), ("fallbacks", "three:"), ("switched_off", "four"),
        ("switched_off", "five"),
    }  # fmt: skip
    assert len(all_counted()) > 80


def test_every_reason_that_is_counted_is_explained() -> None:
    missing = [f"{counter}: {reason}" for counter, reason in sorted(all_counted()) if not reasons.find(counter, reason)]
    assert not missing, "fxpool/reasons.py lacks:\n" + "\n".join(missing)


def test_each_has_a_sentence_and_a_page_that_exists() -> None:
    for table in reasons.TABLES.values():
        for name, reason in table.items():
            assert reason.meaning and not reason.meaning.endswith("."), name
            assert not reason.advice or reason.advice.endswith("."), name
            assert not reason.page or (ROOT / "docs" / reason.page).exists(), name


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("fx:code_differs", ("after AOTAutograd", "different code")),
        ("return:output_code", ("sent back", "kind of result")),
        ("compile_error:RuntimeError", ("raised this error",)),
        ("borrowed:operator_in_main", ("install()", "main script")),
        ("borrowed:WorkerDiedError", ("install()",)),
        ("pool:JobTimeoutError", ("the error's",)),
    ],
)
def test_a_reason_within_another_is_explained_as_both(name: str, words: tuple[str, ...]) -> None:
    reason = reasons.find("fallbacks", name)
    assert reason is not None and all(word in reason.meaning for word in words)


def test_what_is_not_known_is_none() -> None:
    assert reasons.find("fallbacks", "nothing_of_ours") is None
    assert reasons.find("hits", "code_differs") is None


def test_the_page_is_made_from_the_table() -> None:
    spec = importlib.util.spec_from_file_location("reasons_table", ROOT / "docs" / "reasons_table.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.PAGE.read_text() == module.page(), "run: python docs/reasons_table.py"
