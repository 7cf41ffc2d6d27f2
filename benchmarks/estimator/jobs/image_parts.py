"""Small networks, images and averages of weights for the training loops of images.

A module of its own: two scripts import it.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

CLASSES = 100
GPU = "cuda"


def images(count: int, side: int, channels: int = 3, batch: int = 16) -> DataLoader[tuple[Tensor, ...]]:
    data = TensorDataset(torch.randn(count, channels, side, side), torch.randint(CLASSES, (count,)))
    return DataLoader(data, batch, shuffle=True, pin_memory=True)


def on_gpu(loader: DataLoader[tuple[Tensor, ...]]) -> Iterator[tuple[Tensor, Tensor]]:
    for pictures, labels in loader:
        yield pictures.to(GPU, non_blocking=True), labels.to(GPU, non_blocking=True)


def block(inputs: int, outputs: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)
    )


def backbone(width: int = 32, outputs: int | None = None) -> nn.Sequential:
    layers = [
        block(3, width, 2),
        block(width, 2 * width, 2),
        block(2 * width, 4 * width, 2),
        block(4 * width, 4 * width),
    ]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    last = [] if outputs is None else [nn.Linear(4 * width, outputs)]
    return nn.Sequential(*layers, *head, *last)


class UNet(nn.Module):
    """A U-Net of two levels, with a time if it is given."""

    def __init__(self, inputs: int, outputs: int, width: int = 32) -> None:
        super().__init__()
        self.first, self.second, self.middle = (
            block(inputs, width),
            block(width, 2 * width, 2),
            block(2 * width, 4 * width, 2),
        )
        self.up = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=False)
        self.third, self.fourth = block(6 * width, 2 * width), block(3 * width, width)
        self.last = nn.Conv2d(width, outputs, 1)
        self.time = nn.Sequential(nn.Linear(1, 64), nn.SiLU(), nn.Linear(64, 4 * width))

    def forward(self, pictures: Tensor, time: Tensor | None = None) -> Tensor:
        first = self.first(pictures)
        second = self.second(first)
        middle = self.middle(second)
        if time is not None:
            middle = middle + self.time(time[:, None])[:, :, None, None]
        third = self.third(torch.cat([self.up(middle), second], 1))
        return self.last(self.fourth(torch.cat([self.up(third), first], 1)))


@torch.no_grad()
def average(target: nn.Module, source: nn.Module, decay: float = 0.99) -> None:
    for old, new in zip(target.parameters(), source.parameters(), strict=True):
        old.mul_(decay).add_(new.detach(), alpha=1 - decay)
