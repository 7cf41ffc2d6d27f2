"""Trains a timm model on random images, by default of its own size and number of classes.

The script of GPUMemNet's measurements was not published, so its optimizer is unknown and an option here. `--bf16` and
`--checkpointing` are those of torchao's benchmark of its optimizers: weights, gradients and states in bf16.
"""

from __future__ import annotations

import argparse

import timm
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    "sgd-momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "sgd-momentum-decay": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=1e-4),
    "adam-loop": lambda parameters: torch.optim.Adam(parameters, lr=1e-3, foreach=False),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=1e-3),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
    "adamw-fused": lambda parameters: torch.optim.AdamW(parameters, lr=1e-3, fused=True),
}


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--optimizer", choices=list(OPTIMIZERS), default="sgd-momentum-decay")
    parser.add_argument("--image-size", type=int, help="by default that of the model")
    parser.add_argument("--classes", type=int, help="by default those of the model")
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--checkpointing", action="store_true", help="of each block's activations")
    parser.add_argument("--batches", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--device", default="cuda")
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    device = torch.device(args.device)
    changed = {"img_size": args.image_size, "num_classes": args.classes}
    model = timm.create_model(args.model, pretrained=False, **{key: value for key, value in changed.items() if value})
    dtype = torch.bfloat16 if args.bf16 else torch.float32
    model.set_grad_checkpointing(args.checkpointing)
    model.to(dtype).to(device)
    shape = model.pretrained_cfg.get("input_size", (3, 224, 224))
    shape = (3, args.image_size, args.image_size) if args.image_size else shape
    count = args.batches * args.batch_size
    images = torch.empty(1, *shape).expand(count, *shape)
    data = TensorDataset(images, torch.zeros(count, dtype=torch.int64))
    loader = DataLoader(data, batch_size=args.batch_size, shuffle=True, num_workers=4)
    criterion = nn.CrossEntropyLoss()
    optimizer = OPTIMIZERS[args.optimizer](model.parameters())
    model.train()
    for epoch in range(args.epochs):
        total_loss = 0.0
        for inputs, labels in loader:
            inputs, labels = inputs.to(dtype).to(device), labels.to(device)
            optimizer.zero_grad()
            outputs = model(inputs)
            if isinstance(outputs, (tuple, list)):  # distilled models answer twice
                outputs = outputs[0]
            loss = criterion(outputs, labels)
            loss.backward()
            optimizer.step()
            total_loss += loss.item()
        print(f"epoch {epoch}: loss {total_loss / len(loader):.4f}", flush=True)


if __name__ == "__main__":
    main()
