"""The graph of an entry as Dynamo made it, for a process in which Dynamo makes none: see `fxpool.frames`.

Code that writes to its inputs was compiled for one layout of their memory. A call with another layout runs the graph
uncompiled, and an entry carries it for that.
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Callable
from typing import Any

import msgspec

from fxpool import notices
from fxpool.codecache.graph import graph_decoder
from fxpool.errors import CorruptEntryError
from fxpool.lowering.request.compile_request import CompileRequest
from fxpool.torch_compat.dynamo import tensors

__all__ = ["packed", "uncompiled"]

log = notices.logger(__name__)


def packed(request: CompileRequest) -> bytes:
    """Return the graph of a request from Dynamo as bytes; empty if it takes more than its inputs to run it.

    That is a graph with constants, with parameters as attributes, with process groups, or with sizes that are symbols
    in the arguments of a call.
    """
    if request.constants or request.group_sizes or not request.from_dynamo:
        return b""
    data = msgspec.msgpack.encode([request.graph, list(request.names)])
    try:
        _decoded(data)
    except Exception as error:  # of any kind: what is missing is not there to be asked
        log.info("%s is stored without its graph: %s: %s", request.label, type(error).__name__, error)
        return b""
    return zlib.compress(data)


def uncompiled(data: bytes) -> Callable[..., Any]:
    """Return a function that runs a graph of `packed`, which it decodes when it is first called.

    The function raises CorruptEntryError if the graph can't be decoded.
    """

    @functools.cache
    def graph() -> Callable[..., Any]:
        try:
            return _decoded(zlib.decompress(data))
        except Exception as error:
            raise CorruptEntryError(f"the graph of an entry cannot be decoded: {error}") from error

    return lambda *args: graph()(*args)


def _decoded(data: bytes) -> Callable[..., Any]:
    graph, names = msgspec.msgpack.decode(data)
    description = msgspec.msgpack.decode(graph)
    if any(row[0] == "call_function" and row[1][0] in ("attention", "kernel") for row in description[1]):
        raise ValueError("the implementation of a call depends on the worker")
    return graph_decoder.GraphDecoder(_NoTensors(), None, ()).decode(description, names)


class _NoTensors(tensors.Builder):
    """Refuses tensors that a graph names, apart from its inputs."""

    def __init__(self) -> None: ...

    def build(self, facts: tensors.TensorFacts) -> Any:
        raise ValueError("a tensor is among arguments or attributes")
