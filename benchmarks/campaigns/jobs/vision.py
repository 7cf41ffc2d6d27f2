"""Trains a torchvision or timm network on random images of any size.

Options: fp32, autocast or half precision; any optimizer of torch.
"""

from __future__ import annotations

import argparse
import contextlib

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

DTYPES = {"amp-bf16": torch.bfloat16, "amp-fp16": torch.float16}


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="resnet18", help="a name in torchvision.models, or `timm:NAME`")
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--optimizer", default="SGD", help="a name in torch.optim")
    parser.add_argument("--momentum", type=float, default=None)
    parser.add_argument("--precision", choices=("fp32", "bf16", *DTYPES), default="fp32")
    parser.add_argument("--channels-last", action="store_true")
    parser.add_argument("--accumulate", type=int, default=1, help="batches per optimizer step")
    parser.add_argument("--validate", action="store_true", help="a validation pass after each epoch")
    parser.add_argument("--batches", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--device", default="cuda")
    return parser.parse_args()


def build_model(args: argparse.Namespace) -> nn.Module:
    if args.model.startswith("timm:"):
        import timm

        return timm.create_model(args.model.removeprefix("timm:"), pretrained=False, num_classes=args.classes)
    from torchvision import models

    extra = {"init_weights": False} if args.model in ("inception_v3", "googlenet") else {}
    return models.get_model(args.model, weights=None, num_classes=args.classes, **extra)


def make_loader(args: argparse.Namespace) -> DataLoader:
    count = args.batches * args.batch_size
    images = torch.randn(1, 3, args.image_size, args.image_size).expand(count, -1, -1, -1)
    labels = torch.arange(count) % args.classes
    return DataLoader(TensorDataset(images, labels), batch_size=args.batch_size, shuffle=True)


def make_optimizer(args: argparse.Namespace, model: nn.Module) -> torch.optim.Optimizer:
    extra = {} if args.momentum is None else {"momentum": args.momentum}
    return getattr(torch.optim, args.optimizer)(model.parameters(), lr=1e-3, **extra)


def main() -> None:
    args = parse_args()
    device = torch.device(args.device)
    dtype = torch.bfloat16 if args.precision == "bf16" else torch.float32
    memory_format = torch.channels_last if args.channels_last else torch.contiguous_format
    model = build_model(args).to(device=device, dtype=dtype, memory_format=memory_format)
    loader = make_loader(args)
    optimizer = make_optimizer(args, model)
    criterion = nn.CrossEntropyLoss()
    autocast = contextlib.nullcontext()
    if args.precision in DTYPES:
        autocast = torch.autocast(device.type, DTYPES[args.precision])
    scaler = torch.amp.GradScaler(device.type, enabled=args.precision == "amp-fp16")

    for epoch in range(args.epochs):
        model.train()
        for index, (images, labels) in enumerate(loader):
            inputs = images.to(device=device, dtype=dtype, memory_format=memory_format)
            targets = labels.to(device)
            with autocast:
                outputs = model(inputs)
                outputs = outputs[0] if isinstance(outputs, tuple) else outputs
                loss = criterion(outputs, targets) / args.accumulate
            scaler.scale(loss).backward()
            if (index + 1) % args.accumulate == 0:
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
        print(f"epoch {epoch}: loss {loss.item():.4f}", flush=True)
        if args.validate:
            validate(model, loader, device, dtype)


@torch.no_grad()
def validate(model: nn.Module, loader: DataLoader, device: torch.device, dtype: torch.dtype) -> None:
    model.eval()
    correct = 0
    for images, labels in loader:
        outputs = model(images.to(device=device, dtype=dtype))
        correct += (outputs.argmax(dim=1).cpu() == labels).sum().item()
    print(f"{correct} correct", flush=True)


if __name__ == "__main__":
    main()
