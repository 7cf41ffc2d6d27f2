"""Trains a torchvision network for four steps in fp32 on CIFAR-10 images resized to 86x86, as xMem did.

Outputs, loss and predictions stay alive until the next step replaces them; `--zero-grad` sets where gradients are
dropped.
"""

from __future__ import annotations

import argparse

import torch
import torchvision
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="resnet101", help="name in torchvision.models")
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--batch-size", type=int, default=200)
    parser.add_argument("--optimizer", default="SGD", help="name in torch.optim")
    parser.add_argument("--zero-grad", choices=("start", "before-backward", "end"), default="start")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--device", default="cuda")
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    model = torchvision.models.get_model(args.model, weights=None, num_classes=args.classes)
    count = (args.steps + 1) * args.batch_size
    images = torch.empty(1, 3, 86, 86).expand(count, 3, 86, 86)
    loader = DataLoader(TensorDataset(images, torch.randint(10, (count,))), batch_size=args.batch_size, shuffle=True)

    device = torch.device(args.device)
    model.to(device)
    model.train()
    optimizer = getattr(torch.optim, args.optimizer)(params=model.parameters(), lr=1e-3)
    criterion = nn.CrossEntropyLoss()
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=7, gamma=0.1)
    for index, (inputs, labels) in enumerate(loader):
        if args.zero_grad == "start":
            optimizer.zero_grad()
        inputs, labels = inputs.to(device), labels.to(device)
        outputs = model(inputs)
        loss_value = criterion(outputs, labels)
        if args.zero_grad == "before-backward":
            optimizer.zero_grad()
        loss_value.backward()
        optimizer.step()
        _, preds = torch.max(outputs, 1)
        if args.zero_grad == "end":
            optimizer.zero_grad()
        scheduler.step()
        print(f"step {index}: {preds.shape[0]} predictions, learning rate {scheduler.get_last_lr()}")
        if index + 1 >= args.steps:
            break


if __name__ == "__main__":
    main()
