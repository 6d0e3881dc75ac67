"""The backend: ``torch.compile(model, backend="fxpool")``.

Dynamo calls it for each graph. It looks the graph up and has it compiled on a miss. A graph that cannot be sent to a
worker as Dynamo made it falls back to the graphs that AOTAutograd makes of it, and then to an ordinary compile in this
process. Each fallback is counted under a reason; with ``strict`` it is an error instead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fxpool.errors import UnsupportedTorchError
from fxpool.lowering import torch_release

if TYPE_CHECKING:
    import torch

__all__ = ["fxpool_backend"]


def fxpool_backend(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """Compile one Dynamo graph; return the callable that Dynamo calls in its place.

    `mode` and `options` are those of ``torch.compile``; see `fxpool.lowering.core.options`.

    Raises:
        UnsupportedTorchError: torch, Python or the platform is outside the supported range.
        ConfigurationError: an unknown option or mode.
        NoCompilerError: there is no C++ compiler.
    """
    refusal = torch_release.current_refusal()
    if refusal is not None:
        raise UnsupportedTorchError(
            refusal, remedy='use backend="inductor", or install a version of torch in that range'
        )
    # Imported late: an unsupported torch may not have the names these need.
    if torch_release.is_untested():
        from fxpool.lowering import untested_torch  # as said above

        return untested_torch.compile_graph(gm, example_inputs, mode, options)
    from fxpool.lowering.compile_graph import compile_graph  # as said above

    return compile_graph(gm, example_inputs, mode, options)
