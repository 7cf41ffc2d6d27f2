"""Trains a convolutional network of GPUMemNet's generator on random images with Adam in fp32.

`--layers` lists the layers in order, e.g. `conv3x3:64x112;bn;act;dropout;gap:64x1;linear:10x1;softmax`. The
numbers after a colon are output channels and side; layers without them preserve the shape.
"""

from __future__ import annotations

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from cotenant.estimators.layer_kinds import LayerKind
from cotenant.learn.datasets.dataset_row import Layer
from cotenant.learn.networks.layer_list import build_network
from cotenant.learn.networks.torch_modules import ACTIVATIONS, TorchModules

KINDS: dict[str, LayerKind] = {
    "conv3x3": "conv",
    "bn": "batchnorm",
    "act": "activation",
    "dropout": "dropout",
    "gap": "pool",
    "linear": "linear",
    "softmax": "softmax",
    "sigmoid": "softmax",  # needs the same memory
}


class RandomImages(Dataset):
    """Images generated on access."""

    def __init__(self, samples: int, channels: int, size: int, classes: int) -> None:
        self.samples, self.shape, self.classes = samples, (channels, size, size), classes

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.randn(*self.shape), int(torch.randint(0, self.classes, (1,)).item())


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", default="conv3x3:32x64;bn;act;gap:32x1;linear:10x1;softmax")
    parser.add_argument("--channels", type=int, default=3)
    parser.add_argument("--image-size", type=int, default=64)
    parser.add_argument("--activation", choices=list(ACTIVATIONS), default="relu")
    parser.add_argument("--dropout", type=float, default=0.5)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--summary-batch", type=int, default=2, help="samples of the forward pass before training")
    parser.add_argument("--samples", type=int, default=4096)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--device", default="cuda")
    return parser.parse_args()


def build_model(args: argparse.Namespace) -> nn.Sequential:
    layers: list[Layer] = []
    channels, side = args.channels, args.image_size
    for word in args.layers.split(";"):
        kind, _, shape = word.partition(":")
        if kind not in KINDS:
            raise SystemExit(f"no layer `{kind}`")
        width = int(shape.split("x")[0]) if shape else channels
        parameters = {"conv3x3": width * (9 * channels + 1), "linear": width * (channels + 1)}.get(kind, 0)
        side = 1 if kind in ("gap", "linear") else side
        output_shape = (width,) if kind == "linear" else (width, side, side)
        layers.append(Layer(kind=KINDS[kind], output_shape=output_shape, parameters=parameters, name=kind))
        channels = width
    input_shape = (args.channels, args.image_size, args.image_size)
    return build_network(layers, input_shape, TorchModules(args.dropout), activation=args.activation)


def main() -> None:
    args = parse_args()
    device = torch.device(args.device)
    model = build_model(args).to(device)
    classes = next(layer.out_features for layer in model.modules() if isinstance(layer, nn.Linear))
    model(torch.rand(args.summary_batch, args.channels, args.image_size, args.image_size, device=device))

    data = RandomImages(args.samples, args.channels, args.image_size, classes)
    loader = DataLoader(data, batch_size=args.batch_size, shuffle=True, num_workers=2, pin_memory=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    criterion = nn.CrossEntropyLoss()
    model.train()
    for epoch in range(args.epochs):
        epoch_loss = 0.0
        for inputs, labels in loader:
            inputs, labels = inputs.to(device), labels.to(device)
            optimizer.zero_grad()
            outputs = model(inputs)
            loss = criterion(outputs, labels)
            loss.backward()
            optimizer.step()
            epoch_loss += loss.item()
        print(f"epoch {epoch}: loss {epoch_loss / len(loader):.4f}", flush=True)


if __name__ == "__main__":
    main()
