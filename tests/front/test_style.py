"""Prose and names: findings of the lint in tests/style.py, with a ceiling per layer that may only fall."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import style

#: Findings per layer. A text that is rewritten lowers its number here.
CEILINGS = {
    "errors and warnings": 0,
    "command line": 0,
    "pages": 0,
    "package and module docstrings": 0,
    "docstrings and comments: fxpool": 0,
    "docstrings and comments: torch_compat": 0,
    "docstrings and comments: bench": 0,
    "docstrings and comments: pool": 0,
    "docstrings and comments: codecache": 0,
    "docstrings and comments: lowering": 0,
    "docstrings and comments: tests": 362,
    "identifiers: fxpool": 1,
    "identifiers: torch_compat": 0,
    "identifiers: bench": 0,
    "identifiers: pool": 0,
    "identifiers: codecache": 0,
    "identifiers: lowering": 0,
    "identifiers: tests": 389,
}
_SHOWN = 30


@pytest.fixture(scope="module")
def findings() -> dict[str, list[style.Finding]]:
    return style.find()


def _latest_first(findings: list[style.Finding]) -> list[str]:
    """Return findings as lines, those of the files that were changed last first: new ones are likely among them."""
    return [str(finding) for finding in sorted(findings, key=lambda f: -(style.ROOT / f.path).stat().st_mtime)]


def test_each_layer_has_a_ceiling() -> None:
    assert list(CEILINGS) == list(style.LAYERS)


@pytest.mark.parametrize("layer", style.LAYERS)
def test_findings_only_become_fewer(layer: str, findings: dict[str, list[style.Finding]]) -> None:
    count, ceiling = len(findings[layer]), CEILINGS[layer]
    if count > ceiling:
        shown = "\n".join(_latest_first(findings[layer])[:_SHOWN])
        pytest.fail(
            f"{layer}: {count} findings, {ceiling} allowed. Those in the files changed last:\n{shown}\n"
            f'All of them: python tests/style.py "{layer}"',
            pytrace=False,
        )
    if count < ceiling:
        pytest.fail(
            f'{layer}: {count} findings, fewer than before. In tests/front/test_style.py, set CEILINGS["{layer}"] '
            f"to {count}.",
            pytrace=False,
        )


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("subject", "Who publishes evicts."),
        ("subject", "It ends. What is\nevicted stays listed."),
        ("subject", "- Whatever differs counts."),
        ("subject", "What Prometheus scrapes."),
        ("subject", "who watches {} raised"),
        ("subject", "Modules:\n\n    jobs       what runs in a worker\n    load       a callable"),
        ("who", "Remembers jobs for who looks on."),
        ("who", "Limits are kept by who\npublishes."),
        ("who", "The address is secret: who has it sees your graphs."),
        ("who", "A look stays when who evicts writes it down."),
        ("what is", "Return what was found."),
        ("what is", "Discard what is there."),
        ("what is", "It keeps what is not yet written."),
        ("no", "Raise if there is none."),
        ("no", "Processes that are no workers."),
        ("no", "A torch that has none."),
        ("own", "Every test has directories of its own."),
        ("own", "In a process of their own, with limits."),
        ("own", "A server of the caller's own is started."),
        ("own", "Each is a task of its own with a limit."),
        ("word", "It hurts nobody."),
        ("word", "Somebody's lock."),
        ("word", "Begin anew; meanwhile"),
        ("word", "It is up to whoever reads."),
        ("word", "As things stand, it waits."),
        ("participle", "Made without arguments when first needed."),
        ("participle", "It waits. Told only if it answers."),
    ],
)
def test_a_phrase_is_found(kind: str, text: str) -> None:
    assert kind in {finding.kind for finding in style.in_prose("a.py", 1, text)}


@pytest.mark.parametrize(
    "text",
    [
        "What is evicted, and when?",
        "Who runs a job, and what if it dies?",
        "What to compare, separated by commas.",
        "What's new",
        "| What | How |",
        "**What it costs.** A hit takes 0.05 s.",
        "See [What a hit costs](#costs).",
        "It says what the caller asked for.",
        "The process that published it evicts.",
        "Anyone who has the address can see your graphs.",
        "The users who share a store trust each other.",
        "It depends on who wrote it.",
        "It is no longer read, and there is no lock. There\nis no index.",
        "The value is None, or `is none` in code.",
        "More than one of its own caches.",
        "Its own server, and one of torch's own functions.",
        "A digest found in the store, kept for a day.",
        "Run `what is kept` or `nobody`, and read ``meanwhile``.",
    ],
)
def test_plain_english_passes(text: str) -> None:
    assert list(style.in_prose("a.py", 1, text)) == []


def test_a_finding_has_its_line_and_its_sentence() -> None:
    (finding,) = style.in_prose("pool/a.py", 10, "A first.\n\nA second that\nhurts nobody at all. A third.")
    assert str(finding) == "pool/a.py:13: word: A second that hurts nobody at all."


def test_a_page_without_code_titles_and_made_tables() -> None:
    page = """\
# What a hit costs

```
# nobody
```

- a list

  of nobody

Prose:

    # nobody, in code

<!-- reasons, made by: python docs/reasons_table.py -->
| `a` | nobody |
<!-- end of reasons -->
Who writes evicts.
"""
    found = list(style.in_prose("docs/a.md", 1, style.in_markdown(page)))
    assert sorted((finding.line, finding.kind) for finding in found) == [(9, "word"), (18, "subject")]


_MODULE = '''
"""Module: nobody."""
# A comment on two lines: no
# body and nobody.
kept = 1
_found = 2

@click.command()
@click.option("--a", help="Option: nobody.")
def run(place, *, rest=None, _how=None):
    """Command: nobody."""
    one = 1
    log.warning("log of %s: nobody", one)
    notices.once(one, "notice: nobody")
    raise ValueError(f"{one}: nobody, " "raised") from None

class What(Exception):
    """Class: nobody."""
    known: int = 0
    """Field: nobody."""

    def made(self):
        self.told = self._asked = "a plain string: nobody"
'''


def _texts(path: str) -> dict[str, list[str]]:
    layers: dict[str, list[str]] = {}
    for layer, line, text in style.in_python(path, _MODULE):
        if layer.startswith("identifiers"):
            if text.lower() in style.VAGUE:
                layers.setdefault(layer, []).append(text)
        else:
            found = style.in_prose(path, line, text)
            layers.setdefault(layer, []).extend(re.split(r":|,| on ", finding.text)[0] for finding in found)
    return {layer: sorted(texts) for layer, texts in layers.items()}


def test_a_module_s_texts_by_layer() -> None:
    assert _texts("pool/server.py") == {
        "identifiers: pool": ["What", "kept", "known", "made", "place", "rest", "told"],
        "docstrings and comments: pool": ["A comment", "Class", "Field"],
        "package and module docstrings": ["Module"],
        "command line": ["Command", "Option"],
        "errors and warnings": ["log of %s", "notice", "{}"],
    }


def test_messages_commands_and_tests_are_rooms_too() -> None:
    assert _texts("fxpool/errors.py")["errors and warnings"] == [
        "A comment", "Class", "Field", "Module", "a plain string", "log of %s", "notice", "{}",
    ]  # fmt: skip
    assert _texts("fxpool/commands/bench.py")["command line"] == ["Command", "Option", "a plain string"]
    assert "identifiers: fxpool" in _texts("fxpool/commands/bench.py")
    assert "identifiers: torch_compat" in _texts("fxpool/torch_compat/versions.py")
    assert set(_texts("tests/pool/test_pool.py")) == {
        "identifiers: tests",
        "docstrings and comments: tests",
        "command line",
    }


def test_the_program_lists_a_checkout(tmp_path: Path) -> None:
    for name in ("pool", "fxpool", "tests", "docs"):
        (tmp_path / name).mkdir()
    (tmp_path / "pool" / "a.py").write_text("# Of nobody.\n")
    (tmp_path / "fxpool" / "pool").symlink_to("../pool")
    (tmp_path / "README.md").write_text("Who writes evicts.\n")

    def run(*arguments: str) -> str:
        command = [sys.executable, style.__file__, "--root", str(tmp_path), *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    assert run() == "README.md:1: subject: Who writes evicts.\npool/a.py:1: word: Of nobody.\n"
    assert run("pool") == run("pool/") == "pool/a.py:1: word: Of nobody.\n"
    assert run("--counts").split() == ["1", "pages", "1", "docstrings", "and", "comments:", "pool"]
