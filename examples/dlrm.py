"""DLRM on random clicks: 26 embedding tables with sparse gradients, dot products of all pairs, two perceptrons, SGD.

The tables have the rows of Criteo's categories, at most `--max-rows` of each.
"""

from __future__ import annotations

import argparse
from itertools import pairwise

import torch
from torch import nn

DENSE = 13
CATEGORIES = (
    *(45833188, 36746, 17245, 7413, 20243, 3, 7114, 1441, 62, 29275261, 1572176, 345138, 10),
    *(2209, 11267, 128, 4, 974, 14, 48937457, 11316796, 40094537, 452104, 12606, 104, 35),
)
"""Distinct values of the 26 categories of Criteo Terabyte."""


class Dlrm(nn.Module):
    """A score between 0 and 1 for each sample: clicked or not."""

    def __init__(self, width: int, max_rows: int, bottom: list[int], top: list[int]) -> None:
        super().__init__()
        rows = [min(count, max_rows) for count in CATEGORIES]
        self.tables = nn.ModuleList(nn.EmbeddingBag(count, width, mode="sum", sparse=True) for count in rows)
        vectors = len(rows) + 1
        self.register_buffer("pairs", torch.tril_indices(vectors, vectors, offset=-1))
        self.bottom = perceptron([DENSE, *bottom, width], nn.ReLU())
        self.top = perceptron([width + vectors * (vectors - 1) // 2, *top, 1], nn.Sigmoid())

    def forward(self, dense: torch.Tensor, categories: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        """`dense`: B x 13; `categories`: 26 x B; `offsets`: 26 x B, where the bag of each sample begins."""
        x = self.bottom(dense)
        found = [table(categories[i], offsets[i]) for i, table in enumerate(self.tables)]
        vectors = torch.cat([x, *found], dim=1).view(len(x), len(found) + 1, -1)
        products = torch.bmm(vectors, vectors.transpose(1, 2))
        flat = products[:, self.pairs[0], self.pairs[1]]
        return self.top(torch.cat([x, flat], dim=1)).squeeze(1)


def perceptron(widths: list[int], last: nn.Module) -> nn.Sequential:
    """Linear layers, with ReLU between and `last` behind."""
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers[:-1], last)


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch-size", type=int, default=32_768)
    parser.add_argument("--width", type=int, default=64, help="of an embedding")
    parser.add_argument("--max-rows", type=int, default=100_000, help="largest table")
    parser.add_argument("--bottom", type=int, nargs="+", default=[512, 256, 128])
    parser.add_argument("--top", type=int, nargs="+", default=[1024, 512, 256])
    parser.add_argument("--batches", type=int, default=10_000)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--device", default="cuda")
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    device = torch.device(args.device)
    model = Dlrm(args.width, args.max_rows, args.bottom, args.top).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    criterion = nn.BCELoss()
    offsets = torch.arange(args.batch_size).repeat(len(CATEGORIES), 1)
    for step in range(args.batches):
        dense = torch.rand(args.batch_size, DENSE)
        categories = torch.stack([torch.randint(len(table.weight), (args.batch_size,)) for table in model.tables])
        clicked = torch.randint(2, (args.batch_size,)).float()
        scores = model(dense.to(device), categories.to(device), offsets.to(device))
        loss = criterion(scores, clicked.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 100 == 0:
            print(f"batch {step}/{args.batches}: loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
