"""`precompile` gives Dynamo what it writes into a file: ``aot_compile`` and ``caching_precompile``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch._functorch import config as functorch_config

from fxpool.torch_compat import versions
from fxpool.torch_compat.dynamo import standalone


def doubled(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@pytest.fixture
def recorded() -> Iterator[Any]:
    from torch._dynamo.precompile_context import PrecompileContext

    PrecompileContext.clear()
    yield PrecompileContext
    PrecompileContext.clear()


def test_dynamo_asks_for_a_form_that_pickles_ahead_of_time() -> None:
    assert not standalone.is_ahead_of_time() and not standalone.is_bundle_requested()
    with standalone.saveable():
        assert standalone.is_ahead_of_time() and standalone.is_bundle_requested()
    with functorch_config.patch(force_autograd_cache=True):  # not enough by itself
        assert not standalone.is_ahead_of_time()
    with torch._dynamo.config.patch(caching_precompile=True):
        assert standalone.is_bundle_requested() and not standalone.is_ahead_of_time()


@pytest.mark.skipif(versions.parse(torch.__version__) < (2, 12), reason="torch.compile has no aot_compile")
def test_aot_compile_compiles_under_the_switches_that_are_looked_for() -> None:
    """torch's own function sets them around the back end."""
    seen = []

    def backend(gm: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        seen.append(standalone.is_ahead_of_time())
        raise ZeroDivisionError

    torch._dynamo.reset()
    with pytest.raises((ZeroDivisionError, torch._dynamo.exc.BackendCompilerFailed)):
        torch.compile(doubled, backend=backend, fullgraph=True).aot_compile(((torch.ones(2),), {}))
    assert seen == [True]
    torch._dynamo.reset()


def test_a_compiled_graph_gets_what_dynamo_looks_for(recorded: Any) -> None:
    made = []

    def bundle() -> str:
        made.append(1)
        return "bundle"

    gm = torch.fx.symbolic_trace(doubled)
    call = standalone.give_precompile_bundle(gm, lambda x: [x + 1], bundle)
    assert torch.equal(call(torch.ones(2))[0], torch.full((2,), 2.0))
    assert made == [] and call.serialize() == "bundle"  # type: ignore[attr-defined]
    assert recorded.serialize_artifact_by_key("compat_backend") is None


def test_a_graph_of_caching_precompile_is_recorded_under_its_number(recorded: Any) -> None:
    gm = torch.fx.symbolic_trace(doubled)
    gm._backend_id = "compat_backend"
    with torch._dynamo.config.patch(caching_precompile=True):
        standalone.give_precompile_bundle(gm, doubled, lambda: "bundle")
    artifact = recorded.serialize_artifact_by_key("compat_backend")
    assert (artifact.key, artifact.content) == ("compat_backend", "bundle")
