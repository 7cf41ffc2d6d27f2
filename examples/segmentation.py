"""DeepLabV3 as in torchvision's reference scripts: a second loss, learning rates by group, a confusion matrix.

python examples/segmentation.py --amp --batch-size 8
"""

from __future__ import annotations

import argparse

import torch
import torchvision
from torch import nn
from torch.utils.data import DataLoader, Dataset

IGNORED = 255


class Scenes(Dataset):
    """Random images with a class for each pixel, some of them unknown."""

    def __init__(self, count: int, side: int, classes: int) -> None:
        self.count, self.side, self.classes = count, side, classes

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        target = torch.randint(0, self.classes, (self.side, self.side))
        target[:4] = IGNORED
        return torch.rand(3, self.side, self.side), target


class ConfusionMatrix:
    """How often each class was taken for each."""

    def __init__(self, classes: int, device: torch.device) -> None:
        self.classes = classes
        self.counts = torch.zeros(classes, classes, dtype=torch.int64, device=device)

    def update(self, truth: torch.Tensor, found: torch.Tensor) -> None:
        known = (truth >= 0) & (truth < self.classes)
        pairs = self.classes * truth[known] + found[known]
        self.counts += torch.bincount(pairs, minlength=self.classes**2).reshape(self.classes, self.classes)

    def mean_iou(self) -> float:
        counts = self.counts.float()
        return (counts.diag() / (counts.sum(0) + counts.sum(1) - counts.diag())).mean().item()


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="deeplabv3_resnet50", help="a segmentation network of torchvision")
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--side", type=int, default=480)
    parser.add_argument("--classes", type=int, default=21)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--amp", action="store_true")
    parser.add_argument("--device", default="cuda")
    return parser.parse_args()


def criterion(outputs, target: torch.Tensor) -> torch.Tensor:
    losses = {name: nn.functional.cross_entropy(x, target, ignore_index=IGNORED) for name, x in outputs.items()}
    return losses["out"] + 0.5 * losses["aux"] if "aux" in losses else losses["out"]


def train(model, loader, optimizer, scheduler, scaler, args) -> None:
    model.train()
    for images, target in loader:
        images, target = images.to(args.device), target.to(args.device)
        with torch.autocast(torch.device(args.device).type, enabled=args.amp):
            loss = criterion(model(images), target)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()


def validate(model, loader, args) -> float:
    model.eval()
    matrix = ConfusionMatrix(args.classes, torch.device(args.device))
    with torch.inference_mode():
        for images, target in loader:
            found = model(images.to(args.device))["out"].argmax(1)
            matrix.update(target.to(args.device).flatten(), found.flatten())
    return matrix.mean_iou()


def main() -> None:
    args = parse_args()
    options = {} if args.model.startswith("lraspp") else {"aux_loss": True}
    model = torchvision.models.get_model(
        args.model, weights=None, weights_backbone=None, num_classes=args.classes, **options
    ).to(args.device)
    groups = [{"params": model.backbone.parameters()}, {"params": model.classifier.parameters()}]
    if options:
        groups.append({"params": model.aux_classifier.parameters(), "lr": 0.1})
    optimizer = torch.optim.SGD(groups, lr=0.01, momentum=0.9, weight_decay=1e-4)
    train_loader = DataLoader(Scenes(400, args.side, args.classes), args.batch_size, shuffle=True, drop_last=True)
    val_loader = DataLoader(Scenes(40, args.side, args.classes), 1)
    scheduler = torch.optim.lr_scheduler.PolynomialLR(optimizer, args.epochs * len(train_loader), power=0.9)
    scaler = torch.amp.GradScaler(torch.device(args.device).type, enabled=args.amp)
    for epoch in range(args.epochs):
        train(model, train_loader, optimizer, scheduler, scaler, args)
        print(f"epoch {epoch}: mean IoU {validate(model, val_loader, args):.3f}", flush=True)


if __name__ == "__main__":
    main()
