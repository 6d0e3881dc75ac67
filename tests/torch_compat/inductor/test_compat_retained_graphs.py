"""`retained_graphs` runs a backward on copies of the tensors that it overwrites, if its graph is retained."""

from __future__ import annotations

import copy
import pickle
import types
from typing import Any

import pytest
import torch

from fxpool.torch_compat.inductor import retained_graphs

LAYOUTS = {
    "contiguous": torch.arange(12.0).view(3, 4),
    "transposed": torch.arange(12.0).view(3, 4).t(),
    "a part": torch.arange(12.0).view(3, 4)[:, 1:3],
    "expanded": torch.arange(3.0)[:, None].expand(3, 4),
    "empty": torch.empty(0, 4)[:, 1:2],
    "scalar": torch.tensor(3.0),
    "channels last": torch.arange(24.0).view(1, 2, 3, 4).to(memory_format=torch.channels_last),
    "half": torch.arange(12.0).view(3, 4).half(),
    "complex": torch.arange(12.0).view(3, 4).to(torch.complex64).t(),
}


class Overwriting(torch.autograd.Function):
    """Has compiled code for its backward, which overwrites the first of two tensors that it saved."""

    seen: list[torch.Tensor]
    call: Any

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, saved: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(saved, x)
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        Overwriting.seen = list(ctx.saved_tensors)
        return Overwriting.call([*ctx.saved_tensors, gradient])[0], None


class Loadable:
    """A backward of a bundled result."""

    result, backward_state_indices, num_symints_saved_for_bw_ = "graph", [0], 0

    def load(self, inputs: Any) -> Any:
        return self.result

    def post_compile(self, result: Any, fx_config: Any) -> Any:
        def overwrite(inputs: list[Any]) -> Any:
            self.inputs = list(inputs)
            saved, _, gradient = inputs
            inputs.clear()
            made = gradient * saved.real.sum()
            if saved.numel() and 0 not in saved.stride():
                saved.zero_()
            return [made]

        return torch._dynamo.disable(overwrite)


def result(donated: list[int] | None) -> Any:
    return types.SimpleNamespace(
        compiled_bw=Loadable(), runtime_metadata=types.SimpleNamespace(bw_donated_idxs=donated)
    )


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_retained_graph_keeps_its_tensors(layout: str) -> None:
    made, saved = result([0]), copy.deepcopy(LAYOUTS[layout])
    retained_graphs.allow(made)
    Overwriting.call = made.compiled_bw.post_compile(made.compiled_bw.load(()), {})
    assert made.runtime_metadata.bw_donated_idxs == [], "torch's check would refuse"
    x = torch.ones(3, requires_grad=True)
    loss = Overwriting.apply(x, saved).sum()
    expected = saved.real.sum() * torch.ones(3)
    code = made.compiled_bw._backward
    for _ in range(2):
        (found,) = torch.autograd.grad(loss, x, retain_graph=True)
        torch.testing.assert_close(found, expected.to(found.dtype))
        assert code.inputs[0].stride() == saved.stride() and code.inputs[0] is not Overwriting.seen[0]
        assert code.inputs[1] is Overwriting.seen[1], "only tensors that are overwritten are copied"
    torch.autograd.grad(loss, x)
    assert code.inputs[0] is Overwriting.seen[0], "a backward that runs once has no copies"


def test_copies_for_cuda_graphs_stay_where_they_are() -> None:
    class InPlace(Loadable):
        def post_compile(self, result: Any, fx_config: Any) -> Any:
            def overwrite(inputs: list[Any]) -> Any:
                self.inputs = list(inputs)
                return [inputs[0].mul_(inputs[2].sum())[:, 0], None]

            return torch._dynamo.disable(overwrite)

    made = result([0])
    made.compiled_bw = code = InPlace()
    retained_graphs.allow(made)
    Overwriting.call = made.compiled_bw.post_compile("graph", {"cudagraphs": True})
    x, saved = torch.ones(3, requires_grad=True), torch.arange(1.0, 13.0).view(4, 3).t()
    first = Overwriting.apply(x, saved).sum()
    gradients, inputs = [], []
    for factor in (1.0, 2.0, 3.0):
        gradients += torch.autograd.grad(first, x, torch.tensor(factor), retain_graph=True)
        inputs.append(code.inputs[0])
    assert inputs[0] is inputs[1] is inputs[2] and inputs[0].stride() == saved.stride()
    for factor, gradient in zip((1.0, 2.0, 3.0), gradients, strict=True):
        torch.testing.assert_close(gradient, gradients[0] * factor)
    (last,) = torch.autograd.grad(first, x)
    torch.testing.assert_close(last, gradients[0])
    assert code.inputs[0] is Overwriting.seen[0]


def test_cuda_graphs_that_know_one_address_are_refused_by_torch() -> None:
    made = result([0])
    retained_graphs.allow(made)
    with torch._inductor.config.patch({"triton.cudagraph_trees": False}):
        made.compiled_bw.post_compile("graph", {"cudagraphs": True})
    assert made.runtime_metadata.bw_donated_idxs == [0]


@pytest.mark.parametrize("donated", [None, []])
def test_a_backward_that_overwrites_nothing_is_called_directly(donated: list[int] | None) -> None:
    made = result(donated)
    retained_graphs.allow(made)
    call = made.compiled_bw.post_compile("graph", {})
    assert call.__wrapped__.__name__ == "overwrite" and made.runtime_metadata.bw_donated_idxs == []


def test_a_result_without_a_backward() -> None:
    made = types.SimpleNamespace(compiled_bw=None, runtime_metadata=None)
    retained_graphs.allow(made)
    assert made.compiled_bw is None


def test_a_result_that_is_pickled_remembers_what_is_overwritten() -> None:
    made = result([0])
    retained_graphs.allow(made)
    again = pickle.loads(pickle.dumps(made))
    again.compiled_bw.post_compile("graph", {})
    assert again.runtime_metadata.bw_donated_idxs == [] and made.runtime_metadata.bw_donated_idxs == [0]
