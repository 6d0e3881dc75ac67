"""Code that other processes cannot import by name, and metadata of nodes, reach a worker; the result is kept."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
from processes import run_python

pytestmark = [pytest.mark.slow, pytest.mark.timeout(280)]

SPAWNED = """
import json, sys
import torch
import torch.multiprocessing as mp

@torch.library.custom_op("spawned::third", mutates_args=())
def third(x: torch.Tensor) -> torch.Tensor:
    return x / 3

third.register_fake(lambda x: torch.empty_like(x))
third.register_autograd(lambda ctx, g: g / 3)

def work(rank, queue):
    import fxpool
    x = torch.linspace(-1, 1, 6, requires_grad=True)
    y = torch.compile(lambda t: third(t.sin()) * 2, backend="fxpool")(x)
    y.sum().backward()
    assert torch.allclose(y, x.sin() * 2 / 3) and torch.allclose(x.grad, x.cos() * 2 / 3, atol=1e-6)
    stats = fxpool.stats()
    queue.put([stats["hits"], stats["compiles"], stats["fallbacks"]])

if __name__ == "__main__":
    queue = mp.get_context("spawn").Queue()
    found = []
    for rank in range(2):
        mp.spawn(work, args=(queue,), nprocs=1, join=True)
        found.append(queue.get(timeout=100))
    work(2, queue)
    print(json.dumps([*found, queue.get(timeout=100)]))
"""


def run(directory: Path, name: str, text: str, **environment: str) -> Any:
    (directory / f"{name}.py").write_text(text)
    out = run_python([str(directory / f"{name}.py")], **environment)
    return json.loads(out.splitlines()[-1])


def test_operators_of_a_script_that_is_spawned(tmp_path: Path) -> None:
    """`multiprocessing` calls it `__mp_main__`."""
    here = {"worker": 0, "in_process": 0}
    assert run(tmp_path, "script", SPAWNED) == [
        [0, {"worker": 1, "in_process": 0}, {}],
        [1, here, {}],
        [1, here, {}],
    ]


ARCHIVED = """
import torch

@torch.library.custom_op("archived::half", mutates_args=())
def half(x: torch.Tensor) -> torch.Tensor:
    return x / 2

@half.register_fake
def _(x):
    return torch.empty_like(x)

half.register_autograd(lambda ctx, g: g * {factor})
"""
USES_ARCHIVE = """
import json, sys
sys.path.insert(0, {archive!r})
import torch, fxpool
from package.operators import half
x = torch.linspace(-1, 1, 6, requires_grad=True)
y = torch.compile(lambda t: half(t).relu(), backend="fxpool")(x)
y.sum().backward()
stats = fxpool.stats()
print(json.dumps([x.grad.tolist(), stats["hits"], stats["compiles"]["worker"], stats["fallbacks"]]))
"""


def test_operators_of_an_archive(tmp_path: Path) -> None:
    def run_with(factor: float) -> Any:
        with zipfile.ZipFile(tmp_path / "a library.zip", "w") as archive:
            archive.writestr("package/__init__.py", "")
            archive.writestr("package/operators.py", ARCHIVED.format(factor=factor))
        return run(tmp_path, "script", USES_ARCHIVE.format(archive=str(tmp_path / "a library.zip")))

    for factor, hits, compiles in ((2.0, 0, 1), (2.0, 1, 0), (3.0, 0, 1)):
        assert run_with(factor) == [[0.0] * 3 + [factor] * 3, hits, compiles, {}]


OWN_PASS = """
import json
import torch, fxpool
from torch._inductor import config
from torch._inductor.custom_graph_pass import CustomGraphPass

class Scale(CustomGraphPass):
    registry = {{}}

    def __init__(self, by):
        self.by = by

    def __call__(self, graph):
        for node in graph.nodes:
            if node.target is torch.ops.aten.sin.default and not node.meta.get("scaled"):
                with graph.inserting_after(node):
                    scaled = graph.call_function(torch.ops.aten.mul.Tensor, (node, self.by))
                    scaled.meta.update(node.meta)
                node.replace_all_uses_with(scaled, lambda user: user is not scaled)
                node.meta["scaled"] = True

    def uuid(self):
        return ("scale", self.by)

config.post_grad_custom_post_pass = Scale({by})
x = torch.ones(4)
y = torch.compile(lambda t: t.sin() + 1, backend="fxpool")(x)
assert torch.allclose(y, x.sin() * {by} + 1)
stats = fxpool.stats()
print(json.dumps([stats["hits"], stats["compiles"]["worker"], stats["fallbacks"]]))
"""


def test_a_pass_of_the_main_script(tmp_path: Path) -> None:
    for by, expected in ((0.5, [0, 1, {}]), (0.5, [1, 0, {}]), (0.25, [0, 1, {}])):
        assert run(tmp_path, "script", OWN_PASS.format(by=by)) == expected


NOTES = """
import json
from torch._inductor.custom_graph_pass import CustomGraphPass

class Notes(CustomGraphPass):
    def __call__(self, graph):
        with open({path!r}, "a") as file:
            for node in graph.nodes:
                print(json.dumps([node.op, str(node.target), sorted(node.meta)]), file=file)

    def uuid(self):
        return {path!r}
"""
USES_NOTES = """
import sys
sys.path.insert(0, {directory!r})
import torch, notes
from torch._functorch import config as functorch
from torch._inductor import config
functorch.enable_autograd_cache = False  # AOTAutograd runs here, and workers compile the graphs that it makes
config.post_grad_custom_post_pass = notes.Notes()
config.fx_graph_cache = {caches}
model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.GELU(), torch.nn.LayerNorm(5))
model(torch.ones(3, 6))
torch.compile(model, backend={backend!r})(torch.ones(3, 6)).sum().backward()
print("[]")
"""
# Metadata that passes of torch 2.11 to 2.15 read at that level.
READ = frozenset((
    "val", "tensor_meta", "custom", "recompute", "partitioner_tag", "eager_input_vals", "unbacked_bindings",
    "dislike_padding", "mutation_region_id", "original_aten", "stack_trace",
))  # fmt: skip


def test_metadata_of_nodes_after_autograd(tmp_path: Path) -> None:
    seen = {}
    for backend in ("inductor", "fxpool"):
        path = tmp_path / f"{backend}.txt"
        (tmp_path / "notes.py").write_text(NOTES.format(path=str(path)))
        text = USES_NOTES.format(directory=str(tmp_path), backend=backend, caches=backend == "fxpool")
        run(tmp_path, "script", text, FXPOOL_POOL="embedded", TORCHINDUCTOR_CACHE_DIR=str(tmp_path / "i"))
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        seen[backend] = [(kind, target, sorted(READ.intersection(names))) for kind, target, names in rows]
    assert any("tensor_meta" in names for _, _, names in seen["inductor"])
    assert seen["fxpool"] == seen["inductor"]
