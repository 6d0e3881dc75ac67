"""Compiles graphs under a torch newer than the tested releases (``FXPOOL_UNTESTED_TORCH=1``).

A private name that moved shows as an ImportError, an AttributeError or a TypeError anywhere in fxpool. Inductor then
compiles the graph as if fxpool were not used, and the fallback is counted as ``untested_torch:<error>``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fxpool import config, counters, interruptions, notices
from fxpool.errors import ConfigurationError, NoCompilerError
from fxpool.torch_compat.inductor import aot_graph

if TYPE_CHECKING:
    import torch

__all__ = ["attempted", "compile_graph"]

log = notices.logger(__name__)


def compile_graph(
    gm: torch.fx.GraphModule, inputs: Sequence[Any], mode: str | None, options: Mapping[str, Any] | None
) -> Callable[..., Any]:
    """Return the callable that fxpool makes of a graph, or Inductor's where fxpool fails.

    Raises what Inductor raises, ConfigurationError and NoCompilerError; under ``strict`` fxpool's own failure.
    """
    try:
        from fxpool.lowering import compile_graph as tested  # late: torch may lack names that it needs

        return tested.compile_graph(gm, inputs, mode, options)
    except (ConfigurationError, NoCompilerError):
        raise
    except Exception as error:
        interruptions.pass_on(error)
        if (options or {}).get("strict", config.current().strict):
            raise
        _count(error)
        return aot_graph.compile_stock(gm, inputs, mode, options)


def attempted(step: Callable[[], object]) -> bool:
    """Run an optional step; return whether it works with this torch. A failure is counted and logged."""
    try:
        step()
    except ConfigurationError:
        raise
    except Exception as error:
        interruptions.pass_on(error)
        _count(error)
        return False
    return True


def _count(error: Exception) -> None:
    counters.count("fallbacks", f"untested_torch:{type(error).__name__}")
    log.warning(
        "unsupported torch: it lacks something that fxpool needs: %s: %s", type(error).__name__, error, exc_info=error
    )
