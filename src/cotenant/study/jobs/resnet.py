"""Residual networks of bottleneck blocks on synthetic images: the heavy job, and the ResNets of the collocation study.

Sources: He et al., "Deep Residual Learning" (CVPR 2016), table 1, for 50, 101 and 152 layers; 26 layers are one block
of two in each stage as timm's `resnet26`. Images below 64 pixels get a first convolution of stride 1 without pooling.
"""

from __future__ import annotations

import torch
from image_classifier import image_options, train_on_images
from torch import Tensor, nn

BLOCKS = {26: (2, 2, 2, 2), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}
EXPANSION = 4


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions beside a shortcut.

    (N, channels, H, W) -> (N, 4 * width, H / stride, W / stride).
    """

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        out = EXPANSION * width
        self.body = nn.Sequential(
            nn.Conv2d(channels, width, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, stride, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, out, 1, bias=False),
            nn.BatchNorm2d(out),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels != out:
            self.shortcut = nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x: Tensor) -> Tensor:
        """The block's output."""
        return nn.functional.relu(self.body(x) + self.shortcut(x), inplace=True)


def resnet(depth: int, image_size: int, classes: int) -> nn.Sequential:
    """(N, 3, image_size, image_size) -> (N, classes)."""
    small = image_size < 64
    first = nn.Conv2d(3, 64, 3, 1, 1, bias=False) if small else nn.Conv2d(3, 64, 7, 2, 3, bias=False)
    layers: list[nn.Module] = [first, nn.BatchNorm2d(64), nn.ReLU(inplace=True)]
    if not small:
        layers.append(nn.MaxPool2d(3, 2, 1))
    channels = 64
    for stage, count in enumerate(BLOCKS[depth]):
        width = 64 * 2**stage
        for block in range(count):
            layers.append(Bottleneck(channels, width, 2 if stage and not block else 1))
            channels = EXPANSION * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))


def main() -> None:
    """Train for some epochs."""
    parser = image_options(__doc__ or "")
    parser.add_argument("--depth", type=int, choices=sorted(BLOCKS), default=50)
    options = parser.parse_args()
    torch.manual_seed(0)
    train_on_images(
        resnet(options.depth, options.image_size, options.classes),
        lambda model: torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4),
        options,
    )


if __name__ == "__main__":
    main()
