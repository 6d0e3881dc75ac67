"""The components of a key, as a table: what each contains, how a miss shows it, and the facts that only C++ depends on.

`lowering.request.capture.key_parts` makes their values. A new component is a row here, a value there and a row of the
table in ``docs/troubleshooting.md``; keys, entries, comparisons and misses follow from the row.

Values of environment variables may be secrets, so only their digests are stored. Modules that import torch are imported
inside functions, because explaining a miss does not need them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["COMPONENTS", "OF_A_FUNCTION", "ORDER", "KeyComponent", "without_host"]


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Flatten nested mappings: ``inductor.max_autotune`` to its value as text."""
    from fxpool.codecache.graph.encoded_values import shortened

    flat: dict[str, str] = {}
    for name, value in values.items():
        if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = shortened(_stable(value))
    return flat


def _stable(value: Any) -> str:
    """Return a value as text that does not depend on the order of a set."""
    if isinstance(value, (set, frozenset)):
        return "{" + ", ".join(sorted(map(_stable, value))) + "}"
    return repr(value)


def _unchanged(value: Any) -> Any:
    return value


@dataclass(frozen=True)
class KeyComponent:
    """A component of a key. By default its value is a mapping, whose items are compared by name.

    `detail` returns what an entry stores of the value, to compare it with another key's; None: `key_detail.packed` has
    arguments for it. `shown` is its form for people. `of_a_function`: its differences mean nothing between two
    functions, and it describes what a kernel computes. `seldom_changes` between the graphs of a process. `only_for_cpp`
    returns whether code for other devices does not depend on a fact.
    """

    name: str
    detail: Callable[[Any], Any] | None = _flat
    shown: Callable[[Any], Any] = _unchanged
    of_a_function: bool = False
    seldom_changes: bool = False
    only_for_cpp: Callable[[str], bool] | None = None


def _variables(variables: Mapping[str, str | None]) -> dict[str, str]:
    """Return environment variables by name, with digests instead of their values."""

    def digest(value: str) -> str:
        return hashlib.sha256(value.encode("utf-8", "surrogateescape")).hexdigest()[:12]

    return {
        f"environment variable {name}": "not set" if value is None else f"a value of digest {digest(value)}"
        for name, value in variables.items()
    }


def _ambient_detail(ambient: Mapping[str, Any]) -> dict[str, str]:
    switches = {name: value for name, value in ambient.items() if name != "environment"}
    return {**_flat(switches), **_variables(ambient.get("environment", {}))}


def _ambient_shown(ambient: Mapping[str, Any]) -> dict[str, Any]:
    return {**ambient, "environment": _variables(ambient.get("environment", {}))}


def _is_switch_of_cpu(name: str) -> bool:
    from fxpool.torch_compat.state import global_state

    return name in global_state.OF_CPU


def _is_fact_of_cpu(name: str) -> bool:
    from fxpool.codecache.key import system_facts

    return name in system_facts.OF_CPU


def _is_of_cpp(name: str) -> bool:
    from fxpool.codecache.key import source_toolchain

    return name != source_toolchain.SOURCES


COMPONENTS = (
    # Nodes, targets, arguments, nested graphs, constants by content.
    KeyComponent("graph", detail=None, of_a_function=True),
    # Tensors by metadata, views, shared storages, overlaps; plain numbers by value.
    KeyComponent("inputs", detail=None, of_a_function=True),
    # Facts proven about the symbols that occur, without hints: a row per symbol.
    KeyComponent("shapes", detail=_unchanged, of_a_function=True),
    # Global switches: grad mode, autocast, SDPA backends, precision, threads, ...
    KeyComponent("ambient", detail=_ambient_detail, shown=_ambient_shown, only_for_cpp=_is_switch_of_cpu),
    # Options of Inductor, AOTAutograd, the shape machinery and Dynamo; configured code by uuid or content.
    KeyComponent("configuration", seldom_changes=True),
    # Sources of functions and operators from outside torch, as digests by name.
    KeyComponent("code", detail=lambda digests: {name: digest[:16] for name, digest in digests.items()}),
    # torch, Python, CPU or device, fxpool.
    KeyComponent("system", seldom_changes=True, only_for_cpp=_is_fact_of_cpu),
    # The C++ compiler, and the headers that generated code includes.
    KeyComponent("toolchain", seldom_changes=True, only_for_cpp=_is_of_cpp),
)

ORDER = tuple(component.name for component in COMPONENTS)
#: Names of the components that describe a function's graph.
OF_A_FUNCTION = frozenset(component.name for component in COMPONENTS if component.of_a_function)


def without_host(parts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the components of a key for code that runs on GPUs only, without the facts that affect C++."""
    portable = dict(parts)
    for component in COMPONENTS:
        if (of_cpp := component.only_for_cpp) is not None:
            portable[component.name] = {
                name: value for name, value in parts[component.name].items() if not of_cpp(name)
            }
    return portable
