"""Videos by three-dimensional convolutions: grouped and depthwise ones, channels last, SGD with averaged weights.

python examples/video.py --frames 16 --side 112
"""

from __future__ import annotations

import argparse
import itertools

import torch
from torch import nn
from torch.optim.swa_utils import SWALR, AveragedModel, update_bn


class Block(nn.Module):
    """Space by a depthwise convolution, time by a grouped one, channels by 1x1x1."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.way = nn.Sequential(
            nn.Conv3d(inside, inside, (1, 3, 3), (1, stride, stride), (0, 1, 1), groups=inside, bias=False),
            nn.BatchNorm3d(inside),
            nn.ReLU(inplace=True),
            nn.Conv3d(inside, inside, (3, 1, 1), (stride, 1, 1), (1, 0, 0), groups=4, bias=False),
            nn.BatchNorm3d(inside),
            nn.ReLU(inplace=True),
            nn.Conv3d(inside, outside, 1, bias=False),
            nn.BatchNorm3d(outside),
        )
        self.shortcut = nn.Conv3d(inside, outside, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.way(x) + self.shortcut(x))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--frames", type=int, default=16)
    parser.add_argument("--side", type=int, default=112)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()
    widths = [args.width << level for level in range(4)]
    blocks = [Block(a, b, 2) for a, b in itertools.pairwise(widths)]
    stem = nn.Conv3d(3, args.width, (3, 7, 7), (1, 2, 2), (1, 3, 3), bias=False)
    model = nn.Sequential(stem, *blocks, nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(widths[-1], 400))
    model = model.to(args.device, memory_format=torch.channels_last_3d)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    average, schedule = AveragedModel(model), SWALR(optimizer, swa_lr=0.01)
    videos = torch.randn(args.batch_size, 3, args.frames, args.side, args.side)
    for step in range(10):
        batch = videos.to(args.device, memory_format=torch.channels_last_3d)
        labels = torch.randint(0, 400, (args.batch_size,), device=args.device)
        loss = nn.functional.cross_entropy(model(batch), labels, label_smoothing=0.1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        average.update_parameters(model)
        schedule.step()
        print(f"step {step}: {loss.item():.3f}", flush=True)
    update_bn([videos], average, device=torch.device(args.device))


if __name__ == "__main__":
    main()
