"""While a worker compiles, torch's flags are as they are while torch compiles in the program's process.

`torch_flags` finds them in torch's sources and in a process; `flag_decisions` has the decisions. A flag that a release
adds fails here until it is among the switches that a worker takes over, or there is a reason why it need not be.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import flag_decisions
import flag_probes
import pytest
import torch
import torch_flags
from capturing import complete
from processes import HERE
from torch._inductor import compile_fx

from fxpool.lowering.core.attempt import Destination
from fxpool.lowering.core.runtime import runtime
from fxpool.lowering.request import capture
from fxpool.lowering.request.captured_graph import Captured
from fxpool.lowering.request.compile_request import CompileRequest
from fxpool.lowering.worker import compiler
from fxpool.pool import JobSpec
from fxpool.torch_compat.inductor import aot_graph
from fxpool.torch_compat.state import global_state

Noted = dict[str, dict[str, str]]
LATER = "lowering in the backward"
POINTS = ["formula", "fake rule", "backward", "decomposition", "lowering", LATER]


@pytest.mark.slow
def test_every_flag_is_decided() -> None:
    found = torch_flags.flags()
    assert len(found) > 100
    decided = {**flag_decisions.ALLOWED, **flag_decisions.IN_FORCE}
    assert found - decided.keys() == set()
    assert set(flag_decisions.IN_FORCE.values()) <= global_state.TABLE.keys()
    assert len(decided.keys() - found) < 60, "most are of this release"


def test_a_flag_that_a_release_adds_is_found(tmp_path: Path) -> None:
    texts = {
        "compiler/__init__.py": "import contextlib\n_on = False\n@contextlib.contextmanager\ndef session():\n"
        "    global _on\n    before, _on = _on, True\n    yield\n    _on = before\n",
        "_dynamo/tracer.py": "import threading\nfrom .. import compiler\nTLS = threading.local()\ndef trace():\n"
        "    try:\n        compiler._deep = 1\n        local = 2\n    finally:\n        compiler._deep = local = 0\n",
        "_inductor/lower.py": "from unittest import mock\nimport torch.fx as fx\nclass Layout:\n    strict = True\n"
        "def lower():\n    with mock.patch.object(Layout, 'strict', False), mock.patch.object(fx.Node, 'x', 1):\n"
        "        pass\n",
        "fx/node.py": "import contextvars\nWHERE = contextvars.ContextVar('WHERE')\nclass Inside:\n"
        "    def __exit__(self, *args):\n        global depth\n        depth -= 1\n        self.depth = 0\n",
    }
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert torch_flags.flags(tmp_path) == {
        "torch.compiler._on", "torch.compiler._deep", "torch._dynamo.tracer.TLS", "torch._inductor.lower.Layout.strict",
        "torch.fx.Node.x", "torch.fx.node.WHERE", "torch.fx.node.depth",
    }  # fmt: skip


@dataclasses.dataclass
class Seen:
    """`stock` compiled in this process; `serialized` as mode "serialize" does; the others in workers, by level."""

    stock: Noted
    serialized: Noted
    aot: Noted
    fx: list[Noted]


def ends(noted: Noted) -> tuple[dict[str, str], dict[str, str]]:
    return noted["before"], noted["after"]


def in_worker(request: CompileRequest) -> Noted:
    spec = JobSpec(label="flags", sys_path=[str(HERE)])
    return json.loads(runtime.pool().submit("flag_probes:compile_and_note", request.dump(), spec).result())


@pytest.fixture(scope="module", params=[False, True], ids=["static", "dynamic"])
def seen(request: pytest.FixtureRequest, shared_pool: Path, tmp_path_factory: pytest.TempPathFactory) -> Seen:
    requests: list[CompileRequest] = []
    directory = tmp_path_factory.mktemp("flags")
    serialized: Noted = {}

    def take(captured: Captured) -> None:
        whole = complete(captured, str(directory))
        requests.append(dataclasses.replace(whole, code=None, modules=["flag_probes"], key=None, store=None))

    def lower(gm: torch.fx.GraphModule, inputs: Any, **arguments: Any) -> Any:
        plain = aot_graph.plain_arguments(arguments)
        take(capture.capture_inner(gm, inputs, plain, label="flags", into=Destination()))
        return compile_fx.compile_fx_inner(gm, inputs, **arguments)

    def backend(gm: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        take(capture.capture(gm, inputs, label="flags", into=Destination()))
        with compiler.local_kernels() as kernels:
            compiler.compile_request(CompileRequest.load(requests[0].dump()), kernels)
        serialized.update(flag_probes.noted)
        return compile_fx.compile_fx(gm, inputs, inner_compile=lower)

    torch._dynamo.reset()
    flag_probes.note("before")
    x = torch.randn(6, 7, requires_grad=True)
    with torch._inductor.config.patch(fx_graph_cache=False), torch._functorch.config.patch(enable_autograd_cache=False):
        torch.compile(flag_probes.program, backend=backend, dynamic=request.param)(x).sum().backward()
    flag_probes.note("after")
    stock = dict(flag_probes.noted)
    assert len(requests) == 3
    aot, *fx = map(in_worker, requests)
    return Seen(stock, {**serialized, "before": stock["before"], "after": stock["after"]}, aot, fx)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("point", POINTS)
def test_flags_are_as_in_the_programs_process(seen: Seen, point: str) -> None:
    stock = seen.stock[point]
    in_stock = torch_flags.held(stock, *ends(seen.stock))
    compared = [seen.serialized, seen.aot, *(one for one in seen.fx if point in one and "lowering" in point)]
    assert len(compared) == 2 + ("lowering" in point)
    excused = flag_decisions.DIFFERING | (flag_decisions.DIFFERING_LATER if point == LATER else {})
    for other in compared:
        held = in_stock.keys() | torch_flags.held(other[point], *ends(other)).keys()
        assert held, "something is always set"
        pairs = {name: (stock.get(name), other[point].get(name)) for name in held - excused.keys()}
        assert {name: pair for name, pair in pairs.items() if pair[0] != pair[1]} == {}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_torch_says_that_it_is_compiling_where_dynamo_does(seen: Seen) -> None:
    """Dynamo holds it since 2.13, but not when autograd calls for a backward's compile."""
    name = "torch.compiler._is_compiling_flag"
    assert seen.stock["before"][name] == seen.stock["after"][name] == "False"
    if hasattr(torch.compiler, "_compile_session_context"):
        assert {seen.aot[point][name] for point in POINTS[:-1]} == {"True"}
    assert seen.aot[LATER][name] == seen.stock[LATER][name]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_nothing_stays_set_in_a_worker(seen: Seen) -> None:
    for one in (seen.aot, *seen.fx):
        held = {name for point in POINTS for name in torch_flags.held(seen.stock[point], *ends(seen.stock))}
        before, after = ends(one)
        assert len(held & after.keys()) > 10
        held -= flag_decisions.DIFFERING.keys()
        pairs = {name: (_unset(before.get(name)), _unset(after.get(name))) for name in held}
        assert {name: pair for name, pair in pairs.items() if pair[0] != pair[1]} == {}


def _unset(value: str | None) -> str | None:
    """The same for each way in which torch says that nothing is set: a thread's first compile changes which it is."""
    return None if value in ("None", "NullHandler", "0", "False") else value
