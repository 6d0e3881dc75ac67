"""Side effects of a compile: recorded by the worker, replayed by the process that loads the graph.

    shape guards      sympy expressions, in the entry's `guards` field; evaluated, then added to the ShapeEnv
    AOTAutograd's     DuplicateInputs and StorageOverlap, with input positions in place of sources
    restarts          a pass asked Dynamo to trace again with some inputs specialized
    mutated inputs    the inputs that the code writes to; their overlap is checked at every call

Output strides are not recorded: torch's own post-compile sets them from the result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fxpool.codecache.guards import guards
from fxpool.errors import CannotReturnError
from fxpool.lowering.artifact.entry_content import Effects
from fxpool.torch_compat.dynamo import shape_env, tracing
from fxpool.torch_compat.dynamo.shape_env import ShapeEnv
from fxpool.torch_compat.dynamo.tracing import TracingContext


def record(context: TracingContext | None, sources: Sequence[Any], mutated: Sequence[int]) -> Effects:
    """Return the effects of a finished compile; `mutated` are the positions of inputs that its code writes to.

    Raises:
        CannotReturnError: an effect cannot be replayed in another process.
    """
    try:
        aot = tracing.describe_aot_guards(tracing.aot_guards(context), sources)
    except KeyError as error:
        raise CannotReturnError("guard", f"AOTAutograd guards on {error}") from error
    return Effects(aot_guards=aot, mutated_inputs=list(mutated))


def encoded_guards(env: ShapeEnv, names: set[str]) -> list[Any]:
    """Return the shape guards over the inputs' symbols, encoded.

    Raises:
        CannotReturnError: a guard cannot be encoded.
    """
    try:
        return [guards.encode(expr) for expr in shape_env.guards_over(env, names)]
    except guards.UnknownGuardError as error:
        raise CannotReturnError("guard", str(error)) from error


def guards_hold(encoded: Sequence[Any], values: Mapping[str, Any]) -> bool:
    """Return whether every guard holds for these values; a guard that cannot be evaluated does not hold."""
    try:
        return all(guards.evaluate(guard, values) for guard in encoded)
    except guards.UnknownGuardError:
        return False


def add_guards(env: ShapeEnv, encoded: Sequence[Any]) -> bool:
    """Add an entry's guards to this call's ShapeEnv. Return False if a guard cannot be replayed there."""
    symbols = shape_env.symbols(env)
    try:
        return all(shape_env.add_guard(env, guards.decode(guard, symbols)) for guard in encoded)
    except Exception:  # the ShapeEnv raises many types; any of them means that the entry does not fit this call
        return False


def replay(effects: Effects, context: TracingContext | None, sources: Sequence[Any]) -> None:
    """Replay all effects but shape guards. Raises Dynamo's restart if the compile asked for one."""
    if effects.restart:
        tracing.request_restart(effects.restart)
    if context is not None and effects.aot_guards:
        tracing.replay_aot_guards(context, effects.aot_guards, sources)
