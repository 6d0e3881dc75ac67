"""Builds a callable from the parts of a compiled graph, under the state and for the inputs of this call."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from fxpool import counters
from fxpool.errors import CannotReturnError, CorruptEntryError
from fxpool.lowering.artifact import eager_graph, portable_graph, side_effects
from fxpool.lowering.artifact.entry_content import Effects
from fxpool.lowering.artifact.entry_parts import Parts
from fxpool.lowering.request import overlapping_inputs
from fxpool.lowering.request.captured_graph import Captured
from fxpool.torch_compat.dynamo import torch_counters, tracing
from fxpool.torch_compat.inductor import aot, aot_graph, output_code

#: Plain data that says how to make the callable of a graph without the graph: its kind, and what that needs. The
#: callable has it as an attribute, `fxpool_recipe`.
Recipe = list[Any]
#: The kind of recipe of one entry: its key, its name, and the indices of CUDA devices.
ENTRY = "entry"


class GuardsDoNotHold(Exception):
    """The entry does not cover this call's sizes, or its guards cannot be replayed here."""


def load_aot(
    parts: Parts, captured: Captured, eager: Callable[..., Any], *, late: bool = False, boxed: bool = False
) -> Callable[..., Any]:
    """Return the callable for a Dynamo graph, to be called with the graph's inputs one by one.

    `eager` runs in place of the compiled code on inputs whose memory overlaps in another way. `late`: Dynamo has
    returned and accepts no more guards; the caller has to check guards on sizes, and the callable checks those on
    memory. `boxed`: the callable is for generated code instead of Dynamo, and takes the inputs in a list that it may
    empty.

    Raises:
        GuardsDoNotHold: the entry does not fit this call; nothing was changed.
        CorruptEntryError: a part is gone or cannot be loaded.
    """
    if late:
        if parts.effects.restart:
            raise GuardsDoNotHold("a pass requested that Dynamo trace this graph again")
    else:
        if not _add_guards(parts, captured):
            raise GuardsDoNotHold
        side_effects.replay(parts.effects, captured.context, captured.sources)
    parts.indices, parts.groups = captured.placement.indices, captured.groups
    with _loading():
        result = aot.load_result(parts.result())
        for graph in aot.graphs_of(result):
            output_code.put_into(graph, parts)
        of_list = aot.wrap(result, captured.fakes, captured.sources)
    call = _unboxed(of_list, captured.lifted)
    written: Sequence[int] = parts.effects.mutated_inputs
    if late and parts.effects.aot_guards:
        # Guards on inputs that are identical or overlap: the layout of every pair has to be unchanged.
        written = range(len(captured.sources))
    if written:
        call = _watch_overlap(call, eager, captured, written)
    if not boxed:
        if not late:
            torch_counters.compiled()
        function = tracing.never_traced(call)
        if not late:
            function.fxpool_recipe = recipe_of(parts, captured)
        return function
    return of_list if not (written or captured.lifted) else lambda inputs: call(*inputs)


@contextlib.contextmanager
def _loading(*more: type[Exception]) -> Iterator[None]:
    """Raise CorruptEntryError for errors of a damaged part in the ``with`` block: the usual ones, and `more`."""
    errors: tuple[type[Exception], ...] = (OSError, ImportError, EOFError, AttributeError, SyntaxError, *more)
    try:
        yield
    except output_code.ElsewhereError as error:
        raise CannotReturnError("device_index", str(error)) from error
    except errors as error:
        raise CorruptEntryError(f"the entry cannot be loaded: {type(error).__name__}: {error}") from error


def recipe_of(parts: Parts, captured: Captured) -> Recipe | None:
    """Return how to make the callable of an entry again without its graph (`load_without_graph`).

    None: it depends on more of this call than its devices.
    """
    effects = parts.effects
    is_alone = effects == Effects(mutated_inputs=effects.mutated_inputs) and not (captured.lifted or captured.groups)
    if parts.entry is None or not is_alone:
        return None
    indices = list(captured.placement.indices)
    if effects.mutated_inputs:
        # The graph that the entry has numbers its devices.
        is_numbered = indices == [*range(len(indices))]
        if parts.graph is None or not is_numbered or _expected(captured, effects.mutated_inputs):
            return None
    return [ENTRY, *parts.entry, indices]


def _add_guards(parts: Parts, captured: Captured) -> bool:
    return not parts.guards or (captured.env is not None and side_effects.add_guards(captured.env, parts.guards))


def _unboxed(of_list: Callable[[list[Any]], Any], lifted: Sequence[Any]) -> Callable[..., Any]:
    """Wrap a callable that empties a list: take inputs one by one, and put the parameters before them."""
    if lifted:
        leading = list(lifted)

        def with_parameters(*args: Any) -> Any:
            return of_list([*leading, *args])

        return with_parameters

    def plain(*args: Any) -> Any:
        return of_list(list(args))

    return plain


def _watch_overlap(
    call: Callable[..., Any], eager: Callable[..., Any], captured: Captured, written: Sequence[int]
) -> Callable[..., Any]:
    """Run `eager` if memory overlaps in another way. `written` and the captured layout include lifted parameters."""
    shift = len(captured.lifted)
    inputs = [position - shift for position in written if position >= shift]
    return _checked(call, eager, inputs, _expected(captured, written)) if inputs else call


def _expected(captured: Captured, written: Sequence[int]) -> overlapping_inputs.Layout:
    """Return the layout of memory in this call, as far as written inputs are concerned, without lifted parameters."""
    shift = len(captured.lifted)
    return tuple(
        (first - shift, second - shift, distance, offset, other)
        for first, second, distance, offset, other in captured.layout
        if (first in written or second in written) and first >= shift and second >= shift
    )


def _checked(
    call: Callable[..., Any], eager: Callable[..., Any], written: Sequence[int], expected: overlapping_inputs.Layout
) -> Callable[..., Any]:
    def run_eagerly(*args: Any) -> Any:
        counters.count("eager_calls", "overlap")
        return eager(*args)

    return overlapping_inputs.Checked(call, run_eagerly, written, expected)


def load_inner(parts: Parts, captured: Captured, arguments: dict[str, Any]) -> Any:
    """Return Inductor's output for a graph that AOTAutograd made, ready to be called. Errors as `load_aot`."""
    if not _add_guards(parts, captured):
        raise GuardsDoNotHold
    parts.indices, parts.groups = captured.placement.indices, captured.groups
    with _loading(RuntimeError):
        graph = aot_graph.load(parts.result())
        output_code.put_into(graph, parts)
        return aot_graph.finish(graph, captured.fakes, arguments, captured.request.constants)


def load_for_torch(parts: Parts, captured: Captured, arguments: dict[str, Any]) -> Any:
    """Return Inductor's output as `load_inner` does, as if Inductor had just made it in this process.

    torch runs the post-compile steps, and may save it in its caches and artifacts: it carries its parts. Errors as
    `load_aot`.
    """
    if not _add_guards(parts, captured):
        raise GuardsDoNotHold
    with _loading(RuntimeError):
        graph = aot_graph.load(parts.result())
        output_code.put_into(graph, portable_graph.carried(parts, captured))
        output_code.make_storable(graph, captured.request.constants)
        return aot_graph.as_made_here(graph, arguments)


def load_without_graph(parts: Parts, indices: Sequence[int], *, boxed: bool = False) -> Callable[..., Any]:
    """Return the callable of an entry for these CUDA devices. `boxed` and errors as in `load_aot`."""
    parts.indices = indices
    with _loading(), tracing.without_program():
        result = aot.load_result(parts.result())
        for graph in aot.graphs_of(result):
            output_code.put_into(graph, parts)
        of_list = aot.wrap(result, (), None)
    call = _unboxed(of_list, ())
    if parts.effects.mutated_inputs:
        if parts.graph is None:
            raise CorruptEntryError("the entry lacks the graph that other layouts of its inputs need")
        call = _checked(call, eager_graph.uncompiled(parts.graph()), parts.effects.mutated_inputs, ())
    if boxed:
        return of_list if not parts.effects.mutated_inputs else lambda inputs: call(*inputs)
    return tracing.never_traced(call)
