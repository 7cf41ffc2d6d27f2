"""Trains a multilayer perceptron of GPUMemNet's generator on random vectors with Adam in fp32.

Unless `--no-softmax` is given, the network ends in a softmax, although the cross entropy has its own.
"""

from __future__ import annotations

import argparse
import functools

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from cotenant.learn.datasets.dataset_row import Layer
from cotenant.learn.networks.layer_list import build_network
from cotenant.learn.networks.torch_modules import ACTIVATIONS, TorchModules


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=1024)
    parser.add_argument("--hidden", type=int, nargs="+", default=[512, 256])
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--activation", choices=list(ACTIVATIONS), default="relu")
    parser.add_argument("--batch-norm", action="store_true")
    parser.add_argument("--dropout", type=float, help="probability; without it there is no such layer")
    parser.add_argument("--no-softmax", action="store_true", help="the network ends in a linear layer")
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--samples", type=int, default=4096)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--device", default="cuda")
    return parser.parse_args()


def build_model(args: argparse.Namespace) -> nn.Sequential:
    layers: list[Layer] = []
    width = args.inputs
    for hidden in args.hidden:
        layers.append(Layer(kind="linear", output_shape=(hidden,), parameters=hidden * (width + 1)))
        if args.batch_norm:
            layers.append(Layer(kind="batchnorm", output_shape=(hidden,), parameters=2 * hidden))
        layers.append(Layer(kind="activation", output_shape=(hidden,), parameters=0))
        if args.dropout is not None:
            layers.append(Layer(kind="dropout", output_shape=(hidden,), parameters=0))
        width = hidden
    layers.append(Layer(kind="linear", output_shape=(args.classes,), parameters=args.classes * (width + 1)))
    if not args.no_softmax and args.classes > 1:
        layers.append(Layer(kind="softmax", output_shape=(args.classes,), parameters=0))
    modules = TorchModules(dropout=args.dropout or 0.0)
    network = build_network(layers, (args.inputs,), modules, activation=args.activation)
    ends = [nn.Sigmoid()] if not args.no_softmax and args.classes == 1 else []
    return nn.Sequential(nn.Flatten(), *network, *ends)


def summarize(model: nn.Module, device: torch.device, inputs: int) -> dict[str, list[int]]:
    """Output shapes, seen by a forward pass of two samples, as torchsummary does before training."""
    shapes: dict[str, list[int]] = {}

    def note(name: str, _module: nn.Module, _inputs: object, output: torch.Tensor) -> None:
        shapes[name] = list(output.shape)

    hooks = [
        layer.register_forward_hook(functools.partial(note, f"{number}-{type(layer).__name__}"))
        for number, layer in enumerate(model)
    ]
    model(torch.rand(2, 1, inputs, device=device))
    for hook in hooks:
        hook.remove()
    return shapes


def main() -> None:
    args = parse_args()
    device = torch.device(args.device)
    vectors = torch.randn(args.samples, args.inputs)
    targets = torch.randint(max(args.classes, 2), (args.samples,))
    loader = DataLoader(TensorDataset(vectors, targets), batch_size=args.batch_size, shuffle=True)

    model = build_model(args).to(device)
    print(summarize(model, device, args.inputs))
    criterion = nn.CrossEntropyLoss() if args.classes > 1 else nn.BCEWithLogitsLoss()
    optimizer = torch.optim.Adam(model.parameters())

    for epoch in range(args.epochs):
        epoch_loss = 0.0
        for inputs, labels in loader:
            inputs, labels = inputs.to(device), labels.to(device)
            optimizer.zero_grad()
            outputs = model(inputs)
            if args.classes == 1:
                labels = labels.view(-1, 1).float()
            loss = criterion(outputs, labels)
            loss.backward()
            optimizer.step()
            epoch_loss += loss.item()
        print(f"epoch {epoch}: loss {epoch_loss / len(loader):.4f}", flush=True)


if __name__ == "__main__":
    main()
