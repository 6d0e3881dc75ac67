"""Attention: torch's function with masks and shared heads, and common handwritten variants.

torch is imported inside functions, because the runner imports this module too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fxpool.bench.case import MODES, Case

ModelAndInputs = tuple[Callable[..., Any], tuple[Any, ...]]


def _module(heads: int, shared: int, width: int, attend: Callable[..., Any]) -> Any:
    """Return a layer that projects, attends and projects back. `shared` is the number of key and value heads."""
    import torch
    from torch import nn

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.queries = nn.Linear(heads * width, heads * width, bias=False)
            self.keys = nn.Linear(heads * width, shared * width, bias=False)
            self.values = nn.Linear(heads * width, shared * width, bias=False)
            self.back = nn.Linear(heads * width, heads * width, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            batch, length, _ = x.shape
            q = self.queries(x).view(batch, length, heads, width).transpose(1, 2)
            k = self.keys(x).view(batch, length, shared, width).transpose(1, 2)
            v = self.values(x).view(batch, length, shared, width).transpose(1, 2)
            return self.back(attend(q, k, v).transpose(1, 2).reshape(batch, length, heads * width))

    return Attention()


def _made(attend: Callable[..., Any], shared: int = 8) -> ModelAndInputs:
    import torch

    return _module(8, shared, 32, attend), (torch.randn(2, 128, 256),)


def full() -> ModelAndInputs:
    import torch

    return _made(torch.nn.functional.scaled_dot_product_attention)


def causal() -> ModelAndInputs:
    import torch

    return _made(lambda q, k, v: torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True))


def grouped() -> ModelAndInputs:
    """Grouped queries: eight query heads share two key and value heads."""
    import torch

    function = torch.nn.functional.scaled_dot_product_attention
    return _made(lambda q, k, v: function(q, k, v, is_causal=True, enable_gqa=True), shared=2)


def window(size: int = 32) -> ModelAndInputs:
    """Each position attends to the last `size` positions."""
    import torch

    def attend(q: Any, k: Any, v: Any) -> Any:
        places = torch.arange(q.shape[-2], device=q.device)
        apart = places[:, None] - places[None, :]
        mask = (apart >= 0) & (apart < size)
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    return _made(attend)


def biased() -> ModelAndInputs:
    """Scores that decrease with the distance, handwritten."""
    import torch

    def attend(q: Any, k: Any, v: Any) -> Any:
        places = torch.arange(q.shape[-2], device=q.device)
        slopes = 2.0 ** -torch.arange(1, q.shape[1] + 1, device=q.device)
        bias = -(places[:, None] - places[None, :]).abs() * slopes[:, None, None]
        return ((q @ k.transpose(-1, -2)) * q.shape[-1] ** -0.5 + bias).softmax(-1) @ v

    return _made(attend)


def rotary() -> ModelAndInputs:
    """Queries and keys rotated by their position, then causal attention."""
    import torch

    def turned(x: Any) -> Any:
        half = x.shape[-1] // 2
        places = torch.arange(x.shape[-2], device=x.device)[:, None]
        angles = places * 10000.0 ** (-torch.arange(half, device=x.device) / half)
        a, b = x[..., :half], x[..., half:]
        return torch.cat([a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos()], -1)

    def attend(q: Any, k: Any, v: Any) -> Any:
        return torch.nn.functional.scaled_dot_product_attention(turned(q), turned(k), v, is_causal=True)

    return _made(attend)


CASES = [Case(make.__name__, make, modes=MODES) for make in (full, causal, grouped, window, biased, rotary)]
