"""Convolutional networks with random weights: residual, depthwise, grouped, separable and dense networks, a U-Net.

torch is imported inside functions, because the runner imports this module too.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from fxpool.bench.case import Case

ModelAndInputs = tuple[Callable[..., Any], tuple[Any, ...]]


def _images(batch: int, size: int) -> tuple[Any, ...]:
    import torch

    return (torch.randn(batch, 3, size, size),)


def resnet(batch: int = 2, size: int = 64, width: int = 32, blocks: int = 2) -> ModelAndInputs:
    """Three stages of residual blocks with two convolutions and batch norms."""
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self, before: int, after: int, stride: int) -> None:
            super().__init__()
            self.inner = nn.Sequential(
                nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU(),
                nn.Conv2d(after, after, 3, 1, 1, bias=False), nn.BatchNorm2d(after),
            )  # fmt: skip
            same = before == after and stride == 1
            self.short = nn.Identity() if same else nn.Conv2d(before, after, 1, stride, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu(self.inner(x) + self.short(x))

    layers: list[nn.Module] = [nn.Conv2d(3, width, 3, 1, 1), nn.ReLU()]
    before = width
    for stage in range(3):
        for block in range(blocks):
            after = width << stage
            layers.append(Block(before, after, 2 if stage and not block else 1))
            before = after
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, 10)), _images(batch, size)


def mobilenet(batch: int = 2, size: int = 64, width: int = 24, blocks: int = 4) -> ModelAndInputs:
    """Inverted residuals: wide depthwise convolutions between narrow ones."""
    import torch
    from torch import nn

    class Inverted(nn.Module):
        def __init__(self, channels: int) -> None:
            super().__init__()
            wide = 4 * channels
            self.inner = nn.Sequential(
                nn.Conv2d(channels, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.Hardswish(),
                nn.Conv2d(wide, wide, 3, 1, 1, groups=wide, bias=False), nn.BatchNorm2d(wide), nn.Hardswish(),
                nn.Conv2d(wide, channels, 1, bias=False), nn.BatchNorm2d(channels),
            )  # fmt: skip

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.inner(x)

    layers = [nn.Conv2d(3, width, 3, 2, 1), *(Inverted(width) for _ in range(blocks))]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10)), _images(batch, size)


def convnext(batch: int = 2, size: int = 64, width: int = 48, blocks: int = 3) -> ModelAndInputs:
    """Large depthwise kernels, layer norms over channels, and products instead of narrow convolutions."""
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.depthwise = nn.Conv2d(width, width, 7, 1, 3, groups=width)
            self.norm = nn.LayerNorm(width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
            return x + self.down(torch.nn.functional.gelu(self.up(y))).permute(0, 3, 1, 2)

    layers = [nn.Conv2d(3, width, 4, 4), *(Block() for _ in range(blocks))]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10)), _images(batch, size)


def regnet(batch: int = 2, size: int = 64, width: int = 64, blocks: int = 3, groups: int = 8) -> ModelAndInputs:
    """Grouped convolutions, with a gate over channels."""
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Sequential(
                nn.Conv2d(width, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
                nn.Conv2d(width, width, 3, 1, 1, groups=groups, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            )  # fmt: skip
            self.gate = nn.Sequential(
                nn.AdaptiveAvgPool2d(1), nn.Conv2d(width, width // 4, 1), nn.ReLU(), nn.Conv2d(width // 4, width, 1)
            )

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.inner(x)
            return torch.relu(x + y * torch.sigmoid(self.gate(y)))

    layers = [nn.Conv2d(3, width, 3, 2, 1), *(Block() for _ in range(blocks))]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10)), _images(batch, size)


def densenet(batch: int = 2, size: int = 64, width: int = 24, growth: int = 12, layers: int = 5) -> ModelAndInputs:
    """Each layer receives the outputs of all earlier layers."""
    import torch
    from torch import nn

    class Dense(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            sizes = [width + number * growth for number in range(layers)]
            self.layers = nn.ModuleList(
                nn.Sequential(nn.BatchNorm2d(before), nn.ReLU(), nn.Conv2d(before, growth, 3, 1, 1, bias=False))
                for before in sizes
            )

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                x = torch.cat([x, layer(x)], 1)
            return x

    tail = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width + layers * growth, 10)]
    return nn.Sequential(nn.Conv2d(3, width, 3, 2, 1), Dense(), *tail), _images(batch, size)


def unet(batch: int = 1, size: int = 64, width: int = 16, depth: int = 2) -> ModelAndInputs:
    """An encoder and a decoder, with skip connections between them."""
    import torch
    from torch import nn

    def double(before: int, after: int) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(before, after, 3, 1, 1), nn.GroupNorm(4, after), nn.SiLU(),
            nn.Conv2d(after, after, 3, 1, 1), nn.GroupNorm(4, after), nn.SiLU(),
        )  # fmt: skip

    class UNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            sizes = [width << level for level in range(depth + 1)]
            self.first = double(3, width)
            self.downs = nn.ModuleList(double(a, b) for a, b in itertools.pairwise(sizes))
            self.ups = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, 2) for a, b in itertools.pairwise(sizes))
            self.joins = nn.ModuleList(double(2 * a, a) for a in sizes[:-1])
            self.last = nn.Conv2d(width, 3, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            before = [self.first(x)]
            for down in self.downs:
                before.append(down(nn.functional.max_pool2d(before[-1], 2)))
            y = before.pop()
            for up, join in zip(reversed(self.ups), reversed(self.joins), strict=True):
                y = join(torch.cat([before.pop(), up(y)], 1))
            return self.last(y)

    return UNet(), _images(batch, size)


# Batch norms of few values amplify rounding errors, so gradients of two correct programs differ more than usual.
CASES = [
    Case(make.__name__, make, modes=("inference", "training"), tolerance=0.05)
    for make in (resnet, mobilenet, convnext, regnet, densenet, unet)
]
