"""Compiles and loads a graph with the adaptor classes of an installed engine, under fxpool; prints a line of JSON.

    serving_adaptors.py vllm|sglang DIRECTORY

A second run with the same directory loads what the first has saved.
"""

from __future__ import annotations

import copy
import json
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from fxpool.bench.witness import counting
from fxpool.lowering.inductor import engine_plugin

#: Calls of an adaptor: a name, the adaptor, arguments of `compile` and `load` besides graph and inputs, and the rows.
Calls = Iterator[tuple[str, Any, tuple[Any, ...], tuple[Any, ...], int]]


def of_vllm(directory: Path) -> Calls:
    from vllm.compilation.compiler_interface import InductorAdaptor, InductorStandaloneAdaptor
    from vllm.config.utils import Range

    adaptors = {
        "binary": InductorStandaloneAdaptor("binary", use_aot_compile=True),
        "unpacked": InductorStandaloneAdaptor("unpacked", use_aot_compile=True),
        "inductor": InductorAdaptor(use_aot_compile=True),
    }
    for name, adaptor in adaptors.items():
        (directory / name).mkdir(exist_ok=True)
        adaptor.initialize_cache(str(directory / name))
        for sizes, rows in ((Range(1, 8192), 5), (Range(16, 16), 16)):
            yield f"{name}{rows}", adaptor, ({}, sizes, f"of{rows}"), (0, sizes), rows


def of_sglang(directory: Path) -> Calls:
    from sglang.srt.compilation.compiler_interface import InductorAdaptor

    adaptor = InductorAdaptor()
    (directory / "sglang").mkdir(exist_ok=True)
    adaptor.initialize_cache(str(directory / "sglang"))
    yield "sglang", adaptor, ({}, None), (0, None), 5


def inputs_for(gm: Any, rows: int) -> list[Any]:
    from serving_pieces import fakes_of, with_rows

    return with_rows(fakes_of(gm), rows) if rows == 16 else fakes_of(gm)


def main(engine: str, directory: Path) -> None:
    lowerings = counting()
    warnings.simplefilter("ignore")
    engine_plugin.install()
    import torch
    from torch._dynamo.utils import dynamo_timed, get_metrics_context

    import fxpool

    found: list[Any] = []
    weight = torch.linspace(-1, 1, 64).reshape(8, 8)
    x = torch.randn(4, 8)
    torch._dynamo.mark_dynamic(x, 0)

    def keep(gm: Any, inputs: Sequence[Any]) -> Callable[..., Any]:
        found.append(gm)
        return gm.forward

    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (x @ w).relu() + 1

    torch.set_grad_enabled(False)
    torch.compile(function, backend=keep, fullgraph=True)(x, weight)
    (gm,) = found
    states: dict[str, str] = {}
    for name, adaptor, to_compile, to_load, rows in (of_vllm if engine == "vllm" else of_sglang)(directory):
        handle = directory / f"{name}.handle"
        inputs = inputs_for(gm, rows)
        if handle.exists():
            with get_metrics_context(), dynamo_timed("load", log_pt2_compile_event=True):  # as within Dynamo
                call = adaptor.load(tuple(json.loads(handle.read_text())), gm, inputs, *to_load)
            states[name] = "loaded"
        else:
            call, answer = adaptor.compile(copy.deepcopy(gm), inputs, *to_compile)
            handle.write_text(json.dumps(answer))
            states[name] = "compiled"
        x = torch.randn(rows, 8)
        symbols = sum(isinstance(one, (int, torch.SymInt)) for one in inputs)
        result = call(*[rows] * symbols, x, weight)
        result = result[0] if isinstance(result, (tuple, list)) else result
        torch.testing.assert_close(result, function(x, weight))
    stats: Any = fxpool.stats()
    report = {name: stats[name] for name in ("hits", "misses", "compiles", "fallbacks", "bypasses")}
    print(json.dumps({"states": states, "lowerings": lowerings.count, **report}))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
