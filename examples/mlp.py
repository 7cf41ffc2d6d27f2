"""A multilayer perceptron on random vectors: Adam, fp32. Needs torch alone."""

from __future__ import annotations

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=3072)
    parser.add_argument("--hidden", type=int, nargs="+", default=[4096, 4096, 2048])
    parser.add_argument("--classes", type=int, default=100)
    parser.add_argument("--batch-norm", action="store_true")
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--samples", type=int, default=4096)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--device", default="cuda")
    return parser.parse_args()


def build_model(args: argparse.Namespace) -> nn.Sequential:
    layers: list[nn.Module] = []
    width = args.inputs
    for hidden in args.hidden:
        layers.append(nn.Linear(width, hidden))
        if args.batch_norm:
            layers.append(nn.BatchNorm1d(hidden))
        layers.append(nn.ReLU())
        if args.dropout:
            layers.append(nn.Dropout(args.dropout))
        width = hidden
    layers.append(nn.Linear(width, args.classes))
    return nn.Sequential(*layers)


def main() -> None:
    args = parse_args()
    torch.manual_seed(0)
    device = torch.device(args.device)
    vectors = torch.randn(args.samples, args.inputs)
    labels = torch.randint(args.classes, (args.samples,))
    loader = DataLoader(TensorDataset(vectors, labels), batch_size=args.batch_size, shuffle=True)

    model = build_model(args).to(device)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters())

    for epoch in range(args.epochs):
        total_loss = 0.0
        for inputs, targets in loader:
            inputs, targets = inputs.to(device), targets.to(device)
            optimizer.zero_grad()
            loss = criterion(model(inputs), targets)
            loss.backward()
            optimizer.step()
            total_loss += loss.item()
        print(f"epoch {epoch}: loss {total_loss / len(loader):.4f}", flush=True)


if __name__ == "__main__":
    main()
