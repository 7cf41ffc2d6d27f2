"""Convolutional networks. Needs torch."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

from cotenant.learn.data_collection.configs import CnnConfig
from cotenant.learn.data_collection.widths import channel_widths, halvings
from cotenant.learn.networks.torch_modules import activation

_MAX_GROUPS = 8


def build_cnn(config: CnnConfig) -> nn.Module:
    """Convolutions of `kernel` x `kernel` by the shape; then the mean over the image, and a linear layer."""
    builders = {"residual": _residual, "dense": _dense}
    layers, channels = builders.get(config.shape, _plain)(config)
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, config.classes))


def _plain(config: CnnConfig) -> tuple[list[nn.Module], int]:
    layers: list[nn.Module] = []
    channels = config.channels
    for i, width in enumerate(channel_widths(config)):
        halves = i in halvings(config.depth)
        layers += _convolution(config, channels, width, stride=2 if halves and config.pooling == "stride" else 1)
        if halves and config.pooling == "maxpool":
            layers.append(nn.MaxPool2d(2, ceil_mode=True))
        channels = width
    return layers, channels


def _convolution(
    config: CnnConfig, channels: int, width: int, *, stride: int = 1, size: int | None = None
) -> list[nn.Module]:
    """A convolution with its normalization, activation and dropout; `size`: of its kernel if not `config.kernel`."""
    size = config.kernel if size is None else size
    parts: list[nn.Module] = [
        nn.Conv2d(channels, width, size, stride=stride, padding=size // 2),
        *_norm(config, width),
        activation(config.activation),
    ]
    if config.dropout:
        parts.append(nn.Dropout(config.dropout / 1000))
    return parts


def _norm(config: CnnConfig, width: int) -> Iterator[nn.Module]:
    if config.norm == "batchnorm":
        yield nn.BatchNorm2d(width)
    elif config.norm == "groupnorm":
        yield nn.GroupNorm(next(groups for groups in range(_MAX_GROUPS, 0, -1) if width % groups == 0), width)


class ResidualBlock(nn.Module):
    """Two convolutions whose result is added to the input, which is projected if its shape differs."""

    def __init__(self, config: CnnConfig, channels: int, width: int, *, stride: int) -> None:
        super().__init__()
        self.first = nn.Sequential(*_convolution(config, channels, width, stride=stride))
        self.second = nn.Sequential(
            nn.Conv2d(width, width, config.kernel, padding=config.kernel // 2), *_norm(config, width)
        )
        same = channels == width and stride == 1
        self.shortcut = nn.Identity() if same else nn.Conv2d(channels, width, 1, stride=stride)
        self.last = activation(config.activation)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """B x C x H x W to B x width x H' x W'."""
        added: torch.Tensor = self.last(self.shortcut(x) + self.second(self.first(x)))
        return added


def _residual(config: CnnConfig) -> tuple[list[nn.Module], int]:
    """A first convolution, then `depth` blocks."""
    layers = _convolution(config, config.channels, config.filters)
    channels = config.filters
    for i, width in enumerate(channel_widths(config)):
        halves = i in halvings(config.depth)
        layers.append(ResidualBlock(config, channels, width, stride=2 if halves and config.pooling == "stride" else 1))
        if halves and config.pooling == "maxpool":
            layers.append(nn.MaxPool2d(2, ceil_mode=True))
        channels = width
    return layers, channels


class DenseLayer(nn.Module):
    """A convolution whose result is concatenated to its input along the channels."""

    def __init__(self, config: CnnConfig, channels: int, growth: int) -> None:
        super().__init__()
        self.added = nn.Sequential(*_convolution(config, channels, growth))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """B x C x H x W to B x (C + growth) x H x W."""
        return torch.cat((x, self.added(x)), dim=1)


def _dense(config: CnnConfig) -> tuple[list[nn.Module], int]:
    """A first convolution, then `depth` layers; at each halving a transition to half of the channels."""
    layers = _convolution(config, config.channels, config.filters)
    channels = config.filters
    for i, growth in enumerate(channel_widths(config)):
        layers.append(DenseLayer(config, channels, growth))
        channels += growth
        if i in halvings(config.depth):
            half = max(1, channels // 2)
            layers += _convolution(config, channels, half, size=1, stride=2 if config.pooling == "stride" else 1)
            if config.pooling == "maxpool":
                layers.append(nn.MaxPool2d(2, ceil_mode=True))
            channels = half
    return layers, channels
