"""Modules, and the ways in which models are put together."""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from .registry import Compile, program, script


@program("mlp")
def mlp() -> Any:
    return nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 4)), (torch.randn(8, 16),)


@program("convolution")
def convolution() -> Any:
    module = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 4, 1))
    return module, (torch.randn(2, 3, 8, 8),)


@program("convolutions_of_other_kinds")
def convolutions_of_other_kinds() -> Any:
    module = nn.Sequential(nn.ConvTranspose1d(4, 6, 3, stride=2), nn.Conv1d(6, 6, 3, groups=3, dilation=2), nn.SiLU())
    return module, (torch.randn(2, 4, 10),)


@program("batchnorm_train")
def batchnorm_train() -> Iterator[Any]:
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
    for _ in range(2):
        yield module, (torch.randn(4, 3, 6, 6),)


@program("batchnorm_eval")
def batchnorm_eval() -> Any:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).eval(), (torch.randn(4, 3, 6, 6),)


@program("other_norms")
def other_norms() -> Any:
    module = nn.Sequential(nn.GroupNorm(2, 4), nn.InstanceNorm1d(4), nn.RMSNorm(8), nn.Softmax(-1))
    return module, (torch.randn(2, 4, 8),)


@program("attention")
def attention() -> Any:
    q = torch.randn(2, 4, 8, 16, requires_grad=True)
    return lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), (q, q.detach() + 1, q.detach())


@program("multihead_attention")
def multihead_attention() -> Any:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(16, 4, batch_first=True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.attention(x, x, x, need_weights=False)[0] + x

    return Block(), (torch.randn(2, 5, 16),)


@program("transformer_layer", options={"fallback_random": True})
def transformer_layer() -> Any:
    return nn.TransformerEncoderLayer(16, 4, 32, dropout=0.1, batch_first=True), (torch.randn(2, 5, 16),)


@program("embedding")
def embedding() -> Any:
    module = nn.Sequential(nn.Embedding(20, 8, padding_idx=0), nn.Linear(8, 4))
    return module, (torch.tensor([[0, 1, 5], [19, 3, 0]]),)


@program("embedding_bag")
def embedding_bag() -> Any:
    return nn.EmbeddingBag(20, 8, mode="mean"), (torch.tensor([1, 2, 4, 5]), torch.tensor([0, 2]))


@program("rnn_cells")
def rnn_cells() -> Any:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gru, self.lstm = nn.GRUCell(6, 8), nn.LSTMCell(8, 4)

        def forward(self, xs: torch.Tensor, h: torch.Tensor, s: tuple[torch.Tensor, torch.Tensor]) -> Any:
            for x in xs:
                h = self.gru(x, h)
                s = self.lstm(h, s)
            return h, s

    return Net(), (torch.randn(3, 2, 6), torch.zeros(2, 8), (torch.zeros(2, 4), torch.zeros(2, 4)))


@program("lstm")
def lstm() -> Any:
    return nn.LSTM(4, 6, num_layers=2, batch_first=True), (torch.randn(2, 5, 4),)


@program("dropout", options={"fallback_random": True})
def dropout() -> Any:
    return nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 2)), (torch.randn(4, 8),)


@program("losses")
def losses() -> Any:
    def f(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (
            F.cross_entropy(x, y, label_smoothing=0.1),
            F.mse_loss(x, z),
            F.smooth_l1_loss(x, z),
            F.kl_div(x.log_softmax(-1), z.softmax(-1), reduction="batchmean"),
        )

    return f, (torch.randn(6, 4, requires_grad=True), torch.tensor([0, 1, 2, 3, 0, 1]), torch.randn(6, 4))


@program("forward_hooks")
def forward_hooks() -> Any:
    module = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    module[0].register_forward_hook(lambda m, args, out: out * 2)
    module[1].register_forward_pre_hook(lambda m, args: (args[0] + 1,))
    return module, (torch.randn(3, 4),)


@program("backward_hooks")
def backward_hooks() -> Any:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 2)
            self.second.register_full_backward_hook(lambda module, into, out: (into[0] * 2,))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.second(self.first(x).tanh())

    return Net(), (torch.randn(3, 4, requires_grad=True),)


@program("parametrization")
def parametrization() -> Any:
    class Symmetric(nn.Module):
        def forward(self, w: torch.Tensor) -> torch.Tensor:
            return w.triu() + w.triu(1).t()

    module = nn.Linear(4, 4)
    nn.utils.parametrize.register_parametrization(module, "weight", Symmetric())
    return module, (torch.randn(3, 4),)


@program("weight_norm")
def weight_norm() -> Any:
    return nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)), (torch.randn(3, 4),)


@program("tied_weights")
def tied_weights() -> Any:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.head = nn.Embedding(10, 6), nn.Linear(6, 10, bias=False)
            self.head.weight = self.embedding.weight

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.head(self.embedding(ids))

    return Tied(), (torch.tensor([[1, 2], [3, 9]]),)


class _Counting(nn.Module):
    """Buffers of both kinds, written by forward."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("scale", torch.full((4,), 2.0), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.scale.mul_(0.5)
        return x * self.scale + self.calls

    def method(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.scale


@program("buffers_written")
def buffers_written() -> Iterator[Any]:
    module = _Counting()
    for _ in range(3):
        yield module, (torch.randn(4),)


@program("bound_method")
def bound_method() -> Any:
    return _Counting().method, (torch.randn(4, requires_grad=True),)


@script("module_compile_in_place")
def module_compile_in_place(compiling: Compile) -> Any:
    module = _Counting()
    arguments = getattr(compiling, "keywords", None)
    if arguments is not None:  # with a back end
        module.compile(**arguments)
    return module(torch.ones(4)), module(torch.ones(4)), list(module.state_dict())


@program("closures")
def closures() -> Any:
    tensor, number, module = torch.randn(4), 3, nn.Linear(4, 4)

    def f(x: torch.Tensor) -> torch.Tensor:
        return module(x) * number + tensor

    return f, (torch.randn(2, 4),)


@program("partial")
def partial() -> Any:
    def f(scale: float, x: torch.Tensor, *, shift: int) -> torch.Tensor:
        return x * scale + shift

    return functools.partial(f, 2.5, shift=3), (torch.randn(4),)


@program("decorated_function")
def decorated_function() -> Any:
    def twice(f: Any) -> Any:
        @functools.wraps(f)
        def wrapped(*args: Any) -> Any:
            return f(f(*args))

        return wrapped

    @twice
    def f(x: torch.Tensor) -> torch.Tensor:
        return x.sin() + 1

    return f, (torch.randn(4),)


@program("static_and_class_methods")
def static_and_class_methods() -> Any:
    class Numbers:
        factor = 3

        @staticmethod
        def shift(x: torch.Tensor) -> torch.Tensor:
            return x + 1

        @classmethod
        def scale(cls, x: torch.Tensor) -> torch.Tensor:
            return cls.shift(x) * cls.factor

    return Numbers.scale, (torch.randn(4),)


@program("module_containers")
def module_containers() -> Any:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
            self.heads = nn.ModuleDict({"a": nn.Linear(4, 2), "b": nn.Linear(4, 3)})
            self.scale = nn.ParameterList([torch.ones(4), torch.full((4,), 2.0)])

        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            for layer, scale in zip(self.layers, [*self.scale, 1.0], strict=True):
                x = layer(x).relu() * scale
            return {name: head(x) for name, head in self.heads.items()}

    return Net(), (torch.randn(3, 4),)


@script("copied_after_compiling")
def copied_after_compiling(compiling: Compile) -> Any:
    module = compiling(nn.Linear(4, 4))
    first = module(torch.ones(2, 4))
    return first, copy.deepcopy(module)(torch.ones(2, 4) * 2), list(module.state_dict().values())


@program("frozen_parameters")
def frozen_parameters() -> Any:
    module = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    module[0].requires_grad_(False)
    return module, (torch.randn(3, 4, requires_grad=True),)
