"""Compiled functions that outlive their process: ``torch.compile(...).aot_compile`` and ``caching_precompile``.

Dynamo writes its guards and bytecode, and asks the back end for a form of each compiled graph that pickles: the result
that AOTAutograd bundles for its own cache. Torch loads it without a back end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from fxpool.torch_compat.dynamo import standalone

__all__ = ["asked", "give_bundle", "is_ahead_of_time"]


def is_ahead_of_time() -> bool:
    """Return whether the current graph is compiled for ``aot_compile``, which writes it to its own file."""
    from torch._functorch import config

    return bool(getattr(config, "force_autograd_cache", False) and getattr(config, "bypass_autograd_cache_key", False))


def asked() -> bool:
    """Return whether Dynamo will request a picklable form of the current graph."""
    return is_ahead_of_time() or bool(getattr(torch._dynamo.config, "caching_precompile", False))


def give_bundle(gm: torch.fx.GraphModule, call: Callable[..., Any], bundle: Callable[[], Any]) -> Callable[..., Any]:
    """Return `call` with the attributes that Dynamo looks for; `bundle` makes a new bundled result on each call."""
    backend_id = getattr(gm, "_backend_id", None)
    if torch._dynamo.config.caching_precompile and backend_id is not None:
        from torch._dynamo.precompile_context import PrecompileContext
        from torch._functorch._aot_autograd.aot_autograd_result import BundledAOTAutogradCacheArtifact

        PrecompileContext.record_artifact(BundledAOTAutogradCacheArtifact(backend_id, bundle()))

    compiled = standalone.give_bundle(call, bundle)
    made: Callable[..., Any] = torch._dynamo.disable(compiled, reason="fxpool's compiled graph")
    made.serialize = bundle  # type: ignore[attr-defined]
    return made
