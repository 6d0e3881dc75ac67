"""The facts of a record as text. The command ``fxpool frames`` reads records without torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

__all__ = ["facts", "summary"]

# The text for functions that a record has the code of.
_TEXTS = {"rest": "after a graph break", "skipped": "a comprehension with a graph break"}


def summary(record: Any) -> dict[str, int]:
    """Return the numbers of a record that lists show: guards, facts that were proven, and graphs."""
    graphs = sum(row[0] == "graph" for row in record.installed.values())
    return {"guards": len(record.tree.checks) + len(record.guards.rows), "facts": record.proof, "graphs": graphs}


def facts(record: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield (kind, text) of all that a decoded record depends on. Kinds come one after another."""
    managers = record["tree"]["managers"]
    for number, _, kind, data, texts, _ in record["tree"]["checks"]:
        text = " and ".join(texts) or f"{managers[number - 1][3]} has no {data}"
        yield "guard", f"{text}: {data}" if kind in ("object", "type") else text
    for line in record["said"]:
        yield "guard", line
    texts = [record["texts"][number] for number in record["tree_names"]]
    of_tree = [(manager[3], text) for manager, text in zip(managers, texts, strict=True)]
    for source, text in [*of_tree, *record["names"]]:
        if text:
            yield "object", f"{source}: {text}"
    for module, name, _, digest in record["traced"]:
        yield "code", f"{module}.{name}: {digest}"
    for module, names in record["scopes"]:
        yield "module", f"{module}: {' '.join(names)}"
    for result in record.get("results", ()):
        arguments = [*map(repr, result["arguments"]), *(f"{name}={value!r}" for name, value in result["named"].items())]
        yield "result", f"{result['module']}.{result['name']}({', '.join(arguments)}) is {result['text']}"
    for module, name, answer in record.get("answers", ()):
        yield "attribute", f"{module}.{name}" if answer else f"no {module}.{name}"
    for module, name, digest in record.get("listed", ()):
        yield "names", f"{module}.{name}: {digest}" if module else f"{name}: {digest}"
    for name, digest in record.get("operators", ()):
        yield "operator", f"{name}: {digest}"
    for name, classes in sorted(record.get("virtual", {}).items()):
        yield "virtual subclasses", f"{name}: {' '.join(classes)}"
    for alias, module in sorted(record["imports"].items()):
        yield "import", f"{alias}: {module}"
    yield "environment", record["environment"]
    for name, text in record.get("pythons", ()):
        yield "builtin", f"{name}: {text}"
    for text in record["devices"] or ():
        yield "device", text
    for _, row in sorted(record["installed"].items()):
        yield row[0], _TEXTS.get(row[0]) or ".".join(map(str, row[1:]))
