"""A recommender like DLRM on synthetic clicks: embedding tables, two perceptrons, products of all pairs of features.

Source: Naumov et al., "Deep Learning Recommendation Model for Personalization and Recommendation Systems" (2019),
section 2. With `--rows 2000000` the 26 tables of width 64 take 12.4 GiB.
"""

from __future__ import annotations

import argparse

import torch
from epoch_log import train
from torch import Tensor, nn

DENSE_FEATURES, SPARSE_FEATURES = 13, 26  # those of the Criteo data sets


class Recommender(nn.Module):
    """(N, 13) numbers and (N, 26) indices -> (N,) logits."""

    def __init__(self, rows: int, width: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(rows, width, sparse=True) for _ in range(SPARSE_FEATURES))
        self.bottom = nn.Sequential(
            nn.Linear(DENSE_FEATURES, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, width), nn.ReLU()
        )
        features = SPARSE_FEATURES + 1
        self.top = nn.Sequential(
            nn.Linear(width + features * (features - 1) // 2, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(),
            nn.Linear(256, 1),
        )  # fmt: skip
        first, second = torch.tril_indices(features, features, offset=-1)
        self.register_buffer("first", first)
        self.register_buffer("second", second)

    def forward(self, dense: Tensor, sparse: Tensor) -> Tensor:
        """The logits."""
        below = self.bottom(dense)
        features = torch.stack([below, *(table(sparse[:, i]) for i, table in enumerate(self.tables))], dim=1)
        products = torch.bmm(features, features.transpose(1, 2))[:, self.first, self.second]
        return self.top(torch.cat([below, products], dim=1)).squeeze(1)


def main() -> None:
    """Train for some epochs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=200_000, help="rows of each embedding table")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=2048)
    parser.add_argument("--batches", type=int, default=10_000, help="batches per epoch")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    model = Recommender(options.rows, options.width).to(options.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    clicks = torch.randint(0, 2, (options.batch_size,)).float()

    def step(_: int) -> Tensor:
        dense = torch.rand(options.batch_size, DENSE_FEATURES).to(options.device)
        sparse = torch.randint(0, options.rows, (options.batch_size, SPARSE_FEATURES)).to(options.device)
        optimizer.zero_grad()
        loss = nn.functional.binary_cross_entropy_with_logits(model(dense, sparse), clicks.to(options.device))
        loss.backward()
        optimizer.step()
        return loss

    train(options.epochs, lambda: range(options.batches), step)


if __name__ == "__main__":
    main()
