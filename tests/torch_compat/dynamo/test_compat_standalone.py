"""`standalone` has the shapes of graphs compiled without Dynamo, and files of the kind of torch's own artifacts."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch._functorch import config as functorch_config
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from fxpool.torch_compat.dynamo import standalone, tracing


def doubled(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def symbolic_graph() -> torch.fx.GraphModule:
    return make_fx(doubled, tracing_mode="symbolic")(torch.ones(3, 5))


def test_results_can_be_saved_meanwhile() -> None:
    names = [
        "bundled_autograd_cache",
        "force_autograd_cache",
        "bypass_autograd_cache_key",
        "force_non_lazy_backward_lowering",
    ]
    before = [getattr(functorch_config, name) for name in names]
    with standalone.saveable():
        assert [getattr(functorch_config, name) for name in names] == [True] * 4
    assert [getattr(functorch_config, name) for name in names] == before


def test_sizes_of_example_inputs_are_fixed() -> None:
    gm = symbolic_graph()
    context, (fake, number) = standalone.context_and_inputs(gm, [torch.ones(3, 5), 7], "from_example_inputs")
    assert isinstance(fake, FakeTensor) and fake.fake_mode is context.fake_mode and number == 7
    assert list(map(type, fake.shape)) == [int, int] and fake.shape == (3, 5)


def test_sizes_of_the_graph_are_symbols() -> None:
    gm = symbolic_graph()
    placeholders = gm.graph.find_nodes(op="placeholder")
    inputs = [1] * (len(placeholders) - 1) + [torch.ones(3, 5)]
    context, made = standalone.context_and_inputs(gm, inputs, "from_graph")
    assert made == [node.meta["val"] for node in placeholders]
    assert any(isinstance(size, torch.SymInt) for size in made[-1].shape)
    assert context.fake_mode is made[-1].fake_mode


def test_a_graph_without_shapes_has_those_of_its_inputs() -> None:
    gm = torch.fx.symbolic_trace(doubled)
    context, (fake,) = standalone.context_and_inputs(gm, [torch.ones(3)], "from_graph")
    assert isinstance(fake, FakeTensor) and fake.fake_mode is context.fake_mode and type(fake.shape[0]) is int


def test_sizes_of_a_compile_under_way_are_its_own() -> None:
    gm, inputs = symbolic_graph(), [torch.ones(3, 5)]
    with pytest.raises(ValueError, match="only valid in a back end"):
        standalone.context_and_inputs(gm, inputs, "from_tracing_context")
    with tracing.worker_context(FakeTensorMode(), None) as context:
        assert standalone.context_and_inputs(gm, inputs, "from_tracing_context") == (context, inputs)


def test_other_words_for_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match="got 'always'"):
        standalone.context_and_inputs(symbolic_graph(), [], "always")


def test_a_compiled_graph_is_written_as_torch_s_own_artifacts_are(tmp_path: Path) -> None:
    from torch._inductor.standalone_compile import AOTCompiledArtifact

    path = tmp_path / "graph.bin"
    call = standalone.give_bundle(doubled, lambda: b"the bundled result")
    assert torch.equal(call(torch.ones(2)), torch.full((2,), 2.0))
    assert call.serialize() == b"the bundled result"  # type: ignore[attr-defined]
    standalone.save(call, str(path), "graph")
    data = path.read_bytes()
    assert AOTCompiledArtifact.AOT_HEADER in data and b"the bundled result" in data


def test_a_graph_without_a_form_outside_its_process_is_not_saved(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="graph 3 cannot be saved"):
        standalone.save(doubled, str(tmp_path / "graph.bin"), "graph 3")
    assert list(tmp_path.glob("*.bin")) == []
