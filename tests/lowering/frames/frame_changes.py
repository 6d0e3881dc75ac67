"""Records the frame of a program and meets a change of it in another process: is the frame served, and rightly?

    frame_changes.py FOLDER KIND...

prints a line of JSON for each kind of `frame_kinds`: the outcome of the program unchanged, and changed. Each runs in a
forked child. Graphs run as Dynamo captured them, so that nothing is compiled; everything else is what
`fxpool.frames` does with a store.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
import json
import os
import pickle
import random
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import torch
from frame_kinds import KINDS
from frame_programs import Kind, Together
from torch.fx.experimental.proxy_tensor import make_fx

from fxpool.frames import process_facts, record, record_making, serving
from fxpool.torch_compat.frames import frame_conversion
from fxpool.torch_compat.frames.recording import Recorder


class MissedError(Exception):
    """No record fits the first frame: Dynamo would trace all."""


class Shelf:
    """Keeps the records and graphs of one program in a folder, by the key that `fxpool.frames` gives a frame."""

    def __init__(self, folder: Path, tracing: bool) -> None:
        self._folder, self._tracing = folder, tracing
        self.said: list[str] = []
        self.missed = 0

    def around(self, call: frame_conversion.Call, trace: Callable[[Recorder | None], Any]) -> Any:
        try:
            key = serving.key_of(call, serving.attempt_for(None))
        except serving.REFUSALS as error:
            self.said.append(f"no key: {error}")
            return trace(None)
        for path in sorted(self._folder.glob(f"{key}.*.record")):
            kept = msgspec.msgpack.decode(path.read_bytes(), type=record.Record)
            try:
                fitted = record.fit(kept, call)
            except process_facts.UnfitError as error:
                self.said.append(str(error))
                continue
            graphs = {
                f"{fitted.prefix}{number}": torch._dynamo.disable(
                    pickle.loads((self._folder / row[1][0]).read_bytes()).forward
                )
                for number, row in kept.installed.items()
                if row[0] == "graph"
            }
            self.said.append("served")
            defined = {**fitted.defined, **graphs, **record.rests(kept, fitted, call)[0]}
            return frame_conversion.hand_over(call, fitted.code, fitted.built.manager, defined)
        if not self._tracing:
            self.missed += 1
            if "served" in self.said:
                return trace(None)
            raise MissedError
        recorder = Recorder()
        answer = trace(recorder)
        number = len([*self._folder.iterdir()])
        graphs_kept: list[str] = []

        def recipe_of(function: Any) -> list[str]:
            name = f"graph.{number}.{len(graphs_kept)}"
            (self._folder / name).write_bytes(pickle.dumps(function.__self__))
            graphs_kept.append(name)
            return [name]

        try:
            made = record_making.make(call, recorder, recipe_of)
        except record_making.RefusedError as error:
            self.said.append(f"not kept: {error}")
            return answer
        (self._folder / f"{key}.{number:03}.record").write_bytes(msgspec.msgpack.encode(made))
        self.said.append("kept")
        return answer


def _as_captured(gm: torch.fx.GraphModule, inputs: object) -> Any:
    return gm.forward


def _flattened(gm: torch.fx.GraphModule, inputs: list[Any]) -> Any:
    examples = [
        torch.ones(value.shape, dtype=value.dtype, device=value.device) if isinstance(value, torch.Tensor) else value
        for value in inputs
    ]
    with torch._guards.tracing(None), torch.no_grad():
        return make_fx(gm)(*examples).forward


@contextlib.contextmanager
def program(kind: Kind | Together, folder: Path, *, changed: bool) -> Iterator[tuple[Any, Any, Any]]:
    """Have a kind's program in this process: its function, arguments to call it with, and the outcome uncompiled."""
    sources = folder / "program"
    for file, text in kind.files(changed).items():
        (sources / f"{file}.py").write_text(text)
    sys.path.insert(0, str(sources))
    sys.dont_write_bytecode = True
    for name, value in kind.environment(changed).items():
        os.environ[name] = value
    module = importlib.import_module("program")
    random.seed(3)
    torch.manual_seed(0)
    _, others = module.make()  # the function may change the first
    random.seed(3)
    torch.manual_seed(0)
    function, inputs = module.make()
    kind.prepare(module, function, changed)
    with _context(kind.context(changed)):
        torch.manual_seed(1)
        random.seed(5)
        want = outcome(function, inputs)
        torch.manual_seed(1)
        random.seed(5)
        yield function, others, want


def outcome(function: Callable[..., Any], inputs: Any) -> tuple[Any, ...]:
    """The result of a function, and the gradients of its arguments."""
    result = function(*inputs)
    leaves = [value for value in inputs if isinstance(value, torch.Tensor) and value.requires_grad]
    if not leaves or not isinstance(result, torch.Tensor) or not result.requires_grad:
        return (result,)
    return (result, *torch.autograd.grad(result.sum(), leaves, retain_graph=True, allow_unused=True))


def run(kind: Kind | Together, folder: Path, *, changed: bool, tracing: bool) -> dict[str, Any]:
    """Run a kind's program: with Dynamo and records in `folder`, and without both."""
    shelf = Shelf(folder, tracing)
    with program(kind, folder, changed=changed) as (function, inputs, want):
        frame_conversion.surround(shelf.around)
        try:
            backend = _flattened if kind.flat else _as_captured
            got = outcome(torch.compile(function, backend=backend, dynamic=False), inputs)
        except MissedError:
            return {"outcome": "missed", "said": shelf.said, "want": _digest(want)}
    became = (
        ("partly" if shelf.missed else "served")
        if "served" in shelf.said
        else "kept"
        if "kept" in shelf.said
        else "refused"
    )
    return {"outcome": became, "same": is_same(want, got), "said": shelf.said, "want": _digest(want)}


def _digest(value: Any) -> str:
    if isinstance(value, tuple):
        return " ".join(map(_digest, value))
    dtype = getattr(value, "dtype", None)
    return hashlib.sha256(f"{dtype} {value!r}".encode()).hexdigest()


def is_same(want: Any, got: Any) -> bool:
    if isinstance(want, tuple) and isinstance(got, tuple):
        return len(want) == len(got) and all(map(is_same, want, got))
    if not isinstance(want, torch.Tensor):
        return type(want) is type(got) and repr(want) == repr(got)
    if want.dtype != got.dtype or want.shape != got.shape or want.requires_grad != got.requires_grad:
        return False
    return torch.allclose(want, got, equal_nan=True)


@contextlib.contextmanager
def _context(expression: str) -> Iterator[None]:
    with eval(expression, {"torch": torch}) if expression else contextlib.nullcontext():
        yield


def in_child(work: Callable[..., dict[str, Any]], **options: bool) -> dict[str, Any]:
    """The result of a function in a forked child."""
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:
        os.close(reader)
        try:
            result = work(**options)
        except BaseException:
            result = {"outcome": "failed", "said": [traceback.format_exc()[-1500:]]}
        with os.fdopen(writer, "w") as pipe:
            json.dump(result, pipe)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        text = pipe.read()
    status = os.waitpid(child, 0)[1]
    report: dict[str, Any] = json.loads(text) if text else {"outcome": f"ended with {status}", "said": []}
    return report


def warm_up() -> None:
    """Import and examine what all children need."""
    torch.set_num_threads(1)
    warm = torch.compile(lambda x: x + 1, backend="eager")
    warm(torch.ones(2))
    torch._dynamo.reset()
    serving.surroundings_of(serving.attempt_for(None))  # remembered by a process, and inherited by its children


def reported(kind: Kind | Together, folder: Path, *, again: bool = True) -> dict[str, Any]:
    """Return what became of a program, by name of the process: first, again and changed."""
    (folder / "program").mkdir(parents=True)
    in_this = functools.partial(run, kind, folder)
    report: dict[str, Any] = {"first": in_child(in_this, changed=False, tracing=True)}
    if report["first"]["outcome"] == "kept":
        if again:
            report["again"] = in_child(in_this, changed=False, tracing=False)
        report["changed"] = in_child(in_this, changed=True, tracing=False)
    return report


def main(parent: Path, names: list[str]) -> None:
    """Print what became of each kind."""
    warm_up()
    for number, name in enumerate(names):
        print(json.dumps({"kind": name, **reported(KINDS[name], parent / str(number))}), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:] or [*KINDS])
