"""Compiles graphs without Dynamo: ``fxpool.standalone_compile``.

For back ends that split a graph themselves and compile it piece by piece, as inference servers do. Each piece is looked
up when it is handed in. On a miss, the pool is already compiling it when the call returns, so pieces compile side by
side.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

import torch

from fxpool import config, forks, interruptions
from fxpool.lowering.artifact import load, portable_graph
from fxpool.lowering.artifact.entry_parts import Parts
from fxpool.lowering.compiling.graph_compile import GraphCompile, Pending
from fxpool.lowering.core import options as call_options
from fxpool.lowering.core.attempt import Attempt
from fxpool.lowering.fallback import chain
from fxpool.lowering.request import capture
from fxpool.lowering.request.captured_graph import Captured
from fxpool.torch_compat.dynamo import standalone, tracing
from fxpool.torch_compat.inductor import aot, graph_forms
from fxpool.torch_compat.operators import operator_tables
from fxpool.watch import configured_watchers

__all__ = ["StandaloneGraph", "standalone_compile"]

Shapes = Literal["from_graph", "from_tracing_context", "from_example_inputs"]
_numbers = itertools.count()


class StandaloneGraph:
    """A compiled graph, or one that a worker is still compiling: calling and saving wait for the worker.

    Call it with the graph's inputs one by one; it returns the graph's outputs.
    """

    def __init__(
        self,
        gm: torch.fx.GraphModule,
        inputs: Sequence[Any],
        restored: graph_forms.Restore,
        attempt: Attempt,
        context: Any,
    ) -> None:
        self._gm, self._inputs, self._restored = gm, inputs, restored
        self._attempt, self._context = attempt, context
        # `_flat` returns flat outputs as the worker's graph does, and is saved; `_call` returns this graph's structure.
        self._flat: Callable[..., Any] | None = None
        self._call: Callable[..., Any] | None = None
        self._captured: Captured | None = None
        self._pending: Pending | None = None
        self._error: BaseException | None = None
        self._finishing = forks.lock(self, "_finishing")

    def begin(self) -> None:
        """Look the graph up, or start to compile it in a worker. `wait` reports why a worker could not compile it."""
        attempt = self._attempt
        try:
            with self._in_force():
                with attempt.timed("capture"):
                    captured = capture.capture(self._gm, self._inputs, label=attempt.label, into=attempt.destination)
                graph = GraphCompile(captured, attempt, lambda parts: self._load(captured, parts))
                served = graph.look_up_or_prepare()
                if served is not None:
                    self._take(served)
                    attempt.record()
                    attempt.report()
                    return
                self._captured = captured
        except Exception as error:
            interruptions.pass_on(error)
            self._error = error
            return
        # Loaded by the thread that waits.
        self._pending = dataclasses.replace(graph, load=lambda parts: parts).start()

    @contextlib.contextmanager
    def _in_force(self) -> Iterator[None]:
        with (
            interruptions.held_back(),
            self._attempt.options.in_force(),
            standalone.saveable(),
            tracing.reentered(self._context),
        ):
            yield

    def _load(self, captured: Captured, parts: Parts) -> Callable[..., Any]:
        with self._attempt.timed("load"):
            call = load.load_aot(parts, captured, self._gm.forward)
        if captured.lifted:  # the graph has its own parameters, which cannot be saved in a file
            return call
        return standalone.give_bundle(call, lambda: portable_graph.bundle(parts, captured))

    def _take(self, call: Callable[..., Any]) -> None:
        self._flat, self._call = call, self._restored(call)

    def _begun(self) -> Callable[..., Any]:
        if self._error is not None:
            raise self._error
        assert self._captured is not None and self._pending is not None
        return self._load(self._captured, self._pending.result())

    def wait(self) -> Callable[..., Any]:
        """Return the compiled callable, compiled in this process if no worker could.

        Raises what compiling in this process raises.
        """
        if self._pending is not None:
            self._pending.join()
        with self._finishing:
            if self._call is None:
                try:
                    with self._in_force():
                        gm = aot.copy_of(self._gm)  # Inductor changes it
                        self._take(chain.compile_with_fallback(gm, self._inputs, self._attempt, self._begun))
                finally:
                    self._attempt.record()
                    self._attempt.report()
            assert self._call is not None
            return self._call

    def __call__(self, *inputs: Any) -> Any:
        call = self._call
        return (call if call is not None else self.wait())(*inputs)

    def save(self, *, path: str, format: str = "binary") -> None:
        """Write the compiled graph into a file that ``torch._inductor.CompiledArtifact.load`` reads.

        Raises:
            ValueError: another format than ``binary``, or a graph with its own parameters, which cannot be saved.
        """
        if format != "binary":
            raise ValueError(f"format {format!r} is not supported, only 'binary'; to see the code of a graph, use "
                             "`fxpool cache show`")  # fmt: skip
        self.wait()
        assert self._flat is not None
        standalone.save(self._flat, path, self._attempt.label)


def standalone_compile(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    dynamic_shapes: Shapes = "from_graph",
    options: Mapping[str, Any] | None = None,
) -> StandaloneGraph:
    """Implement `fxpool.standalone_compile`."""
    operator_tables.watch()
    configured_watchers.attach()
    settings = config.current()
    attempt = Attempt(f"standalone {next(_numbers)}", call_options.parse(None, options, settings), settings)
    context, inputs = standalone.context_and_inputs(gm, example_inputs, dynamic_shapes)
    made = StandaloneGraph(*graph_forms.as_from_dynamo(gm, inputs), attempt, context)
    made.begin()
    return made
