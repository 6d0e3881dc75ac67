"""Keys and requests of functions, without compiling them."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable
from typing import Any

import torch

from fxpool.lowering.core.attempt import Destination
from fxpool.lowering.request import capture
from fxpool.lowering.request.captured_graph import Captured
from fxpool.lowering.request.compile_request import CompileRequest


class _NotRunError(Exception):
    """Ends the call of a function whose first graph was captured."""


def captured(
    function: Callable[..., Any], *inputs: Any, dynamic: bool | None = None, run: bool = True
) -> list[Captured]:
    """Return the captures of all graphs when `function` is called on `inputs` (the call runs eagerly).

    Without `run`, only the first graph is captured, and nothing is computed.
    """
    found: list[Captured] = []

    def not_run(*_args: Any) -> Any:
        raise _NotRunError

    def backend(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        found.append(capture.capture(gm, example_inputs, label="test", into=Destination()))
        return gm.forward if run else not_run

    torch._dynamo.reset()
    with contextlib.suppress(_NotRunError):
        torch.compile(function, backend=backend, dynamic=dynamic)(*inputs)
    return found


def complete(captured: Captured, directory: str) -> CompileRequest:
    """The request of a graph that is to be compiled into the store of a directory, with a tool chain's facts there."""
    captured.complete()
    store, toolchain_dir = os.path.join(directory, "store"), os.path.join(directory, "store", "toolchain")
    return dataclasses.replace(captured.request, store=store, toolchain_dir=toolchain_dir)


def key_of(function: Callable[..., Any], *inputs: Any, dynamic: bool | None = None) -> str:
    """The key of the one graph of `function`."""
    (only,) = captured(function, *inputs, dynamic=dynamic)
    assert only.key is not None, only.bypass
    return only.key.digest


def components_of(function: Callable[..., Any], *inputs: Any, dynamic: bool | None = None) -> dict[str, str]:
    (only,) = captured(function, *inputs, dynamic=dynamic)
    assert only.key is not None, only.bypass
    return {component.name: component.digest for component in only.key.components}
