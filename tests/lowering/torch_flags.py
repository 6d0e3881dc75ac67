"""Flags that torch sets for a while and puts back: by their names in its sources, and their values in a process.

A flag is a global of a module, or an attribute of something global, that is assigned where a ``finally``, an
``__exit__`` or the end of a context manager puts it back; a thread-local; a context variable; or what ``mock.patch``
replaces.
"""

from __future__ import annotations

import ast
import contextlib
import contextvars
import re
import sys
import threading
import types
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

__all__ = ["flags", "held", "values"]

# Packages that no compile of a worker runs. torch's configuration is found by `torch_state`.
_PACKAGES = """
    _native _numpy _vendor ao backends contrib cuda distributed distributions jit monitor mps mtia multiprocessing nn
    onnx optim package profiler quantization sparse test testing xpu
"""
_NO_PART = frozenset(_PACKAGES.split())
_OF_DEVICES = re.compile(
    "cuda|cudnn|cublas|nccl|mtia|xpu|mps|jit|hip|rocm|nvtx|stream|backtrace|accelerator", re.IGNORECASE
)
_NO_PART_EITHER = ("torch.utils.data.", "torch.utils.benchmark.", "torch.utils.jit.", "torch.fx.passes.tests.",
                   "torch._dynamo.testing", "torch._dynamo.test_", "torch._inductor.mock_cache")  # fmt: skip
_MAY_SET = re.compile(r"\b(finally:|__exit__|contextmanager|local\(|ContextVar|patch)")


def flags(root: Path | None = None) -> set[str]:
    """Return the names of all flags in the sources of a torch, as ``torch.module.name``."""
    root = root or Path(torch.__file__).parent
    found: set[str] = set()
    for path in sorted(root.rglob("*.py")):
        parts = ["torch", *path.relative_to(root).with_suffix("").parts]
        name = ".".join(parts).removesuffix(".__init__")
        if parts[1] in _NO_PART or name.startswith(_NO_PART_EITHER):
            continue
        text = path.read_text(encoding="utf-8")
        if _MAY_SET.search(text):
            found |= _Module(name, ast.parse(text), parts[-1] == "__init__").flags()
    return {name for name in found if re.match(r"torch\.", name) and not re.search(r"\.config\.", name)}


class _Module:
    """One module's sources. `names` maps what is global in it to where it comes from."""

    def __init__(self, name: str, tree: ast.Module, is_package: bool) -> None:
        self._tree = tree
        self._prefix = name
        package = name if is_package else name.rpartition(".")[0]
        self._names: dict[str, str] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    whole = alias.name if alias.asname else alias.name.partition(".")[0]
                    self._names[alias.asname or whole] = whole
            elif isinstance(node, ast.ImportFrom):
                up = package.split(".")[: 1 - node.level or None] if node.level else []
                base = ".".join([*up, *([node.module] if node.module else [])])
                self._names.update({alias.asname or alias.name: f"{base}.{alias.name}" for alias in node.names})
        for node in tree.body:
            targets = getattr(node, "targets", [getattr(node, "target", None)])
            own = [target.id for target in targets if isinstance(target, ast.Name)]
            if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
                own.append(node.name)
            self._names.update({one: f"{name}.{one}" for one in own})

    def flags(self) -> set[str]:
        found = set()
        for node in ast.walk(self._tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                found |= set(self._put_back(node))
            elif isinstance(node, (ast.Assign, ast.AnnAssign)) and _is_local(node.value):
                for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                    found.add(f"{self._prefix}.{ast.unparse(target)}")
            elif isinstance(node, ast.Call) and re.search(r"(^|\.)patch(\.object)?$", ast.unparse(node.func)):
                found |= set(self._patched(node))
        return found

    def _put_back(self, function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
        restoring = _restoring(function)
        if not restoring:
            return
        declared = {name for node in ast.walk(function) if isinstance(node, ast.Global) for name in node.names}
        stored = {node.id for node in _names(function) if isinstance(node.ctx, ast.Store)}
        arguments = {node.arg for node in ast.walk(function) if isinstance(node, ast.arg)}
        own = (stored | arguments) - declared
        for statement in restoring:
            for node in _names(statement, (ast.Name, ast.Attribute)):
                if not isinstance(node.ctx, (ast.Store, ast.Del)):
                    continue
                root = ast.unparse(node).partition(".")[0]
                if isinstance(node, ast.Name) and root in declared:
                    yield f"{self._prefix}.{root}"
                elif isinstance(node, ast.Attribute) and root not in own and (name := self._whole(node)):
                    yield name

    def _patched(self, call: ast.Call) -> Iterator[str]:
        first, second = (*call.args, None, None)[:2]
        if isinstance(first, ast.Constant):
            yield str(first.value)
        elif first is not None and isinstance(second, ast.Constant) and (owner := self._whole(first)):
            yield f"{owner}.{second.value!s}"

    def _whole(self, node: ast.expr) -> str:
        """Return the path of something global; empty for anything else."""
        root, dot, rest = ast.unparse(node).partition(".")
        return f"{self._names[root]}{dot}{rest}" if root in self._names and re.fullmatch(r"[\w.]*", rest) else ""


def _is_local(value: ast.expr | None) -> bool:
    return isinstance(value, ast.Call) and bool(re.search(r"(^|\.)(local|ContextVar)$", ast.unparse(value.func)))


def _names(node: ast.AST, kinds: Any = ast.Name) -> Iterator[Any]:
    return (one for one in ast.walk(node) if isinstance(one, kinds))


def _restoring(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[ast.stmt]:
    """Return the statements of a function that put something back."""
    found = [one for node in ast.walk(function) if isinstance(node, ast.Try) for one in node.finalbody]
    if function.name in ("__exit__", "__aexit__"):
        found += function.body
    if any("contextmanager" in ast.unparse(decorator) for decorator in function.decorator_list):
        yields = [i for i, one in enumerate(function.body) if any(isinstance(x, ast.Yield) for x in ast.walk(one))]
        found += function.body[yields[0] + 1 :] if yields else []
    return found


# ---------------------------------------------------------------- values


def values() -> dict[str, str]:
    """Return what every flag of this process is: plain globals, thread-locals and context variables of torch's modules,
    and what torch's core answers without arguments."""
    found: dict[str, str] = {}
    for name, module in list(sys.modules.items()):
        parts = name.split(".")
        if parts[0] != "torch" or not isinstance(module, types.ModuleType) or parts[-1] in ("config", "_config"):
            continue
        if len(parts) > 1 and (parts[1] in _NO_PART or "compile_tasks" in parts):
            continue
        for key, value in list(vars(module).items()):
            if isinstance(value, threading.local):
                found.update({f"{name}.{key}.{one}": _shown(part) for one, part in list(vars(value).items())})
            elif isinstance(value, contextvars.ContextVar):
                found[f"{name}.{key}"] = _shown(value.get(None))
            elif isinstance(value, type) and value.__module__ == name:
                plain = {one: part for one, part in list(vars(value).items()) if _is_plain(part)}
                found.update({f"{name}.{key}.{one}": _shown(part) for one, part in plain.items()})
            elif _is_plain(value):
                found[f"{name}.{key}"] = _shown(value)
    return found | _of_core()


def _is_plain(value: object) -> bool:
    return value is None or isinstance(value, (bool, int, float, str))


def _shown(value: object) -> str:
    if _is_plain(value):
        return repr(value)
    return (
        f"a {type(value).__name__} of {len(value)}"
        if isinstance(value, (list, tuple, set, dict))
        else type(value).__name__
    )


def _of_core() -> dict[str, str]:
    core: Any = torch._C
    found = {
        "included": str(core._dispatch_tls_local_include_set()),
        "excluded": str(core._dispatch_tls_local_exclude_set()),
        "modes": str([type(mode).__name__ for mode in torch.utils._python_dispatch._get_current_dispatch_mode_stack()]),
    }
    for owner in (core, core._functorch, core._autograd, core._dynamo.eval_frame):
        for name in dir(owner):
            if re.match(r"_?(is|are|len|get|has|peek|current)_", name) and not re.search(
                "cuda|cudnn|cublas|nccl|mtia|xpu|mps|jit|hip|rocm|nvtx|stream|backtrace|accelerator",
                name,
                re.IGNORECASE,
            ):
                # Some take arguments, or are of a part that this build lacks.
                with contextlib.suppress(Exception), warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # old names
                    found[f"{owner.__name__}.{name}"] = _shown(getattr(owner, name)())
    return found


def held(at: dict[str, str], before: dict[str, str], after: dict[str, str]) -> dict[str, str]:
    """Return those values of `at` that are others before and after: what was set for a while. Counters are not."""

    def is_held(name: str, value: str) -> bool:
        first, last = before.get(name, value), after.get(name, value)
        counts = all(re.fullmatch(r"-?\d+", one) for one in (first, value, last))
        return value not in (first, last) and not (counts and int(first) < int(value) < int(last))

    return {name: value for name, value in at.items() if is_held(name, value)}
