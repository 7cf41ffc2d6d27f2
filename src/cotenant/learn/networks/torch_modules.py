"""torch's modules for `layer_list.build_network`: the published networks, to be trained or traced. Needs torch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import nn

ACTIVATIONS: Mapping[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "leaky_relu": nn.LeakyReLU,
    "prelu": nn.PReLU,
    "elu": nn.ELU,
    "selu": nn.SELU,
    "gelu": nn.GELU,
    "tanh": nn.Tanh,
    "swish": nn.SiLU,
    "softplus": nn.Softplus,
    "mish": nn.Mish,
    "identity": nn.Identity,
    "leakyrelu": nn.LeakyReLU,
    "silu": nn.SiLU,
}
"""By their names in the published sets and, where they differ, in configurations."""


def activation(name: str) -> nn.Module:
    """A new layer of that activation."""
    return ACTIVATIONS[name]()


class Residual(nn.Module):
    """`activation(shortcut(x) + body(x))`."""

    def __init__(self, shortcut: nn.Module | None, body: nn.Module, activation: nn.Module) -> None:
        super().__init__()
        self.shortcut = nn.Identity() if shortcut is None else shortcut
        self.body = body
        self.activation = activation

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """B x C x H x W to B x C' x H' x W'."""
        branch = self.shortcut(x)
        result: torch.Tensor = self.activation(self.body(x) + branch)
        return result


class Dense(nn.Module):
    """`x` and `body(x)`, concatenated along the channels."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """B x C x H x W to B x C' x H x W."""
        return torch.cat((x, self.body(x)), dim=1)


class TorchModules:
    """The `ModuleFactory` of torch; `dropout` is the probability of all dropout layers."""

    def __init__(self, dropout: float = 0.5) -> None:
        self._dropout = dropout

    def linear(self, input_shape: tuple[int, ...], features: int) -> nn.Module:
        layer = nn.Linear(math.prod(input_shape), features)
        return layer if len(input_shape) == 1 else nn.Sequential(nn.Flatten(), layer)

    def conv2d(self, input_shape: tuple[int, ...], channels: int, *, kernel: int, stride: int) -> nn.Module:
        return nn.Conv2d(input_shape[0], channels, kernel, stride=stride, padding=kernel // 2)

    def batch_norm(self, input_shape: tuple[int, ...]) -> nn.Module:
        return nn.BatchNorm1d(input_shape[0]) if len(input_shape) == 1 else nn.BatchNorm2d(input_shape[0])

    def activation(self, name: str) -> nn.Module:
        return activation(name)

    def softmax(self) -> nn.Module:
        return nn.Softmax(dim=1)

    def dropout(self) -> nn.Module:
        return nn.Dropout(self._dropout)

    def global_mean(self, input_shape: tuple[int, ...]) -> nn.Module:  # noqa: ARG002 - of any shape
        return nn.AdaptiveAvgPool2d((1, 1))

    def average_pool(self, input_shape: tuple[int, ...], side: int) -> nn.Module:  # noqa: ARG002
        return nn.AdaptiveAvgPool2d((side, side))

    def sequential(self, modules: Sequence[nn.Module]) -> nn.Module:
        return nn.Sequential(*modules)

    def residual(self, shortcut: nn.Module | None, body: nn.Module, activation: nn.Module) -> nn.Module:
        return Residual(shortcut, body, activation)

    def dense(self, body: nn.Module) -> nn.Module:
        return Dense(body)

    def head(self, body: nn.Module) -> nn.Module:
        return body
