"""Trains an image classifier on synthetic images, for the jobs of `cotenant study`: their options and their steps.

A module of its own: `timm_model` and `resnet` are programs that import it from their folder.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
from epoch_log import train
from torch import nn


def image_options(description: str) -> argparse.ArgumentParser:
    """Options that the jobs share."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--batches", type=int, default=40_000, help="batches per epoch")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    return parser


def train_on_images(
    model: nn.Module,
    optimizer_of: Callable[[nn.Module], torch.optim.Optimizer],
    options: argparse.Namespace,
) -> None:
    """Train on the same batch again and again; it is copied to the GPU for each step, as a data loader's is."""
    model.to(options.device)
    optimizer = optimizer_of(model)
    images = torch.randn(options.batch_size, 3, options.image_size, options.image_size)
    labels = torch.randint(0, options.classes, (options.batch_size,))

    def step(_: int) -> torch.Tensor:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images.to(options.device)), labels.to(options.device))
        loss.backward()
        optimizer.step()
        return loss

    train(options.epochs, lambda: range(options.batches), step)
