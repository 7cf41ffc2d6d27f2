"""Trains a transformer encoder of GPUMemNet's generator to classify random tokens, with Adam in fp32.

Before it creates the optimizer it runs two forward passes of a whole batch in training mode, as the published script
does for a shape check and a model summary.
"""

from __future__ import annotations

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class RandomTokens(Dataset):
    """Sequences generated on access."""

    def __init__(self, samples: int, vocabulary: int, length: int, classes: int) -> None:
        self.samples, self.vocabulary, self.length, self.classes = samples, vocabulary, length, classes

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.randint(0, self.vocabulary, (self.length,)), int(torch.randint(0, self.classes, (1,)).item())


class Classifier(nn.Module):
    """Embedding, learned positions, encoder, mean over the sequence, linear layer."""

    def __init__(self, args: argparse.Namespace) -> None:
        super().__init__()
        self.embedding = nn.Embedding(args.vocabulary, args.width)
        self.positions = nn.Parameter(torch.zeros(1, args.length, args.width))
        layer = nn.TransformerEncoderLayer(args.width, args.heads, args.feedforward, args.dropout, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, args.layers)
        self.head = nn.Linear(args.width, args.classes)

    def forward(self, tokens_BL: torch.Tensor) -> torch.Tensor:  # noqa: N803 - the shape is in the name
        x = self.embedding(tokens_BL) + self.positions
        x = self.encoder(x)
        x = x.mean(dim=1)
        return self.head(x)


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vocabulary", type=int, default=50_000)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--feedforward", type=int, default=1024)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--samples", type=int, default=1000)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--device", default="cuda")
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    model = Classifier(args)
    device = torch.device(args.device)
    model.to(device)
    example = torch.randint(0, args.vocabulary, (args.batch_size, args.length)).to(device)
    model(example)
    model(example)

    data = RandomTokens(args.samples, args.vocabulary, args.length, args.classes)
    loader = DataLoader(data, batch_size=args.batch_size, shuffle=True, num_workers=2, pin_memory=True)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    model.train()
    for epoch in range(args.epochs):
        total_loss, correct, seen = 0.0, 0, 0
        for inputs, labels in loader:
            inputs, labels = inputs.to(device), labels.to(device)
            optimizer.zero_grad()
            outputs = model(inputs)
            loss = criterion(outputs, labels)
            loss.backward()
            optimizer.step()
            total_loss += loss.item()
            _, predicted = torch.max(outputs, 1)
            correct += (predicted == labels).sum().item()
            seen += labels.size(0)
        print(f"epoch {epoch}: loss {total_loss / len(loader):.4f}, accuracy {correct / seen:.2%}", flush=True)


if __name__ == "__main__":
    main()
