"""The light job: a CNN of two convolutions on synthetic images of MNIST's size. Runs on a CPU or a GPU.

Source: PMDLT (EuroMLSys 2023), section 3, "simple CNN on MNIST"; its network is that of PyTorch's MNIST example.
A program of its own: the study runs it by its path, in the jobs' Python.
"""

from __future__ import annotations

import argparse

import torch
from epoch_log import train
from torch import nn

MNIST_IMAGES = 60_000


def main() -> None:
    """Train for some epochs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--images", type=int, default=MNIST_IMAGES, help="images per epoch")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 32, 3),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(0.25),
        nn.Flatten(),
        nn.Linear(64 * 12 * 12, 128),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(128, 10),
    ).to(options.device)
    optimizer = torch.optim.Adadelta(model.parameters(), lr=1.0)
    images = torch.randn(options.images, 1, 28, 28)
    labels = torch.randint(0, 10, (options.images,))

    def step(batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        images, labels = (part.to(options.device) for part in batch)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        return loss

    size = options.batch_size
    train(options.epochs, lambda: zip(images.split(size), labels.split(size), strict=True), step)


if __name__ == "__main__":
    main()
