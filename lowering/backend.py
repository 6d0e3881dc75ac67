"""The backend: ``torch.compile(model, backend="fxpool")``.

Called by Dynamo for each graph. Looks the graph up, has it compiled on a miss, and falls back where
a graph can't take the direct way: from the graph as Dynamo made it, to the graphs AOTAutograd makes
of it, to an ordinary compile in this process. Each step is counted under a reason; with ``strict``
it is an error instead.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fxpool.errors import UnsupportedTorchError
from fxpool.lowering.core import options as call_options
from fxpool.lowering.core.attempt import Attempt, Outcome
from fxpool.torch_compat import versions
from fxpool.watch import configured

if TYPE_CHECKING:
    import torch

__all__ = ["fxpool_backend"]

_numbers = itertools.count()


def fxpool_backend(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """Compile one Dynamo graph; returns what Dynamo calls in its place.

    `mode` and `options` are those of ``torch.compile``; see `fxpool.lowering.core.options`.

    Raises:
        UnsupportedTorchError: torch, Python or the platform is outside the supported range.
        ConfigurationError: an unknown option or mode.
        NoCompilerError: there is no C++ compiler.
    """
    refusal = versions.current_refusal()
    if refusal is not None:
        raise UnsupportedTorchError(refusal, remedy='use backend="inductor", or a version of torch in that range')
    # Imported late: an unsupported torch may not have the names these need.
    from fxpool.lowering.core.runtime import runtime
    from fxpool.lowering.fallback import chain
    from fxpool.torch_compat.operators import inductor_registrations

    inductor_registrations.watch()

    parsed = call_options.parse(mode, options)
    if parsed.mode != "subprocess":
        runtime.end_start_ahead()
    configured.attach()
    attempt = Attempt(_label(), parsed)
    try:
        with attempt.timed("total"), chain.options_in_force(parsed):
            return chain.compile_with_fallback(gm, example_inputs, attempt)
    finally:
        attempt.record()
        if attempt.outcome is not Outcome.ASYNC:  # its thread tells
            attempt.report()


def _label() -> str:
    from fxpool.torch_compat.dynamo import tracing  # as in `fxpool_backend`

    number = next(_numbers)
    compile_id = tracing.compile_label()
    return f"graph {number} [{compile_id}]" if compile_id else f"graph {number}"
