"""Trains small networks of one kind of layer: recurrent, 1-D to 3-D convolutions, embeddings or linear."""

from __future__ import annotations

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

KINDS = ("mlp", "lstm", "gru", "conv1d", "conv3d", "transposed", "embedding", "depthwise", "attention")


class LastOutput(nn.Module):
    """A recurrent layer; the loss uses the output of the last token."""

    def __init__(self, kind: str, width: int, layers: int) -> None:
        super().__init__()
        self.body = {"lstm": nn.LSTM, "gru": nn.GRU}[kind](width, width, layers, batch_first=True, dropout=0.1)

    def forward(self, sequence: torch.Tensor) -> torch.Tensor:
        outputs, _ = self.body(sequence)
        return outputs[:, -1]


class Mean(nn.Module):
    """The mean over all but the first two dimensions."""

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return values.flatten(2).mean(dim=2)


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", choices=KINDS, default="mlp")
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--length", type=int, default=128, help="sequence length; side of images and volumes")
    parser.add_argument("--vocabulary", type=int, default=200_000, help="size of the embedding")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--optimizer", default="Adam", help="a name in torch.optim")
    parser.add_argument("--batches", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--device", default="cuda")
    return parser.parse_args()


def build_model(args: argparse.Namespace) -> nn.Module:
    width = args.width
    if args.kind == "mlp":
        body = [layer for _ in range(args.layers) for layer in (nn.Linear(width, width), nn.ReLU())]
    elif args.kind in ("lstm", "gru"):
        body = [LastOutput(args.kind, width, args.layers)]
    elif args.kind == "conv1d":
        body = [nn.Conv1d(16, width, 9, padding=4)]
        body += [layer for _ in range(args.layers) for layer in (nn.Conv1d(width, width, 9, padding=4), nn.ReLU())]
        body.append(Mean())
    elif args.kind == "conv3d":
        body = [nn.Conv3d(4, width, 3, padding=1)]
        body += [layer for _ in range(args.layers) for layer in (nn.Conv3d(width, width, 3, padding=1), nn.ReLU())]
        body.append(Mean())
    elif args.kind == "transposed":
        body = [nn.Conv2d(3, width, 4, stride=4)]
        body += [
            layer
            for _ in range(args.layers)
            for layer in (nn.ConvTranspose2d(width, width, 4, stride=2, padding=1), nn.ReLU(), nn.MaxPool2d(2))
        ]
        body.append(Mean())
    elif args.kind == "depthwise":
        body = [nn.Conv2d(3, width, 3, padding=1)]
        for _ in range(args.layers):
            body += [nn.Conv2d(width, width, 3, padding=1, groups=width), nn.BatchNorm2d(width), nn.SiLU()]
            body += [nn.Conv2d(width, width, 1), nn.BatchNorm2d(width)]
        body.append(Mean())
    elif args.kind == "attention":
        layer = nn.TransformerEncoderLayer(width, 8, 4 * width, batch_first=True)
        body = [nn.TransformerEncoder(layer, args.layers), nn.Flatten(1), nn.Linear(width * args.length, width)]
    else:
        body = [nn.EmbeddingBag(args.vocabulary, width, mode="mean"), nn.Linear(width, width), nn.ReLU()]
    return nn.Sequential(*body, nn.Linear(width, 10))


def sample_shape(args: argparse.Namespace) -> tuple[int, ...]:
    side = args.length
    return {
        "mlp": (args.width,),
        "lstm": (side, args.width),
        "gru": (side, args.width),
        "attention": (side, args.width),
        "conv1d": (16, side),
        "conv3d": (4, side, side, side),
        "transposed": (3, side, side),
        "depthwise": (3, side, side),
        "embedding": (side,),
    }[args.kind]


def main() -> None:
    args = parse_args()
    device = torch.device(args.device)
    shape = sample_shape(args)
    count = args.batches * args.batch_size
    one = torch.randint(args.vocabulary, (1, *shape)) if args.kind == "embedding" else torch.randn(1, *shape)
    data = TensorDataset(one.expand(count, *shape), torch.arange(count) % 10)
    loader = DataLoader(data, batch_size=args.batch_size, shuffle=True)
    model = build_model(args).to(device)
    optimizer = getattr(torch.optim, args.optimizer)(model.parameters(), lr=1e-3)
    criterion = nn.CrossEntropyLoss()
    for epoch in range(args.epochs):
        for inputs, labels in loader:
            optimizer.zero_grad()
            loss = criterion(model(inputs.to(device)), labels.to(device))
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
