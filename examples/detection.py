"""Faster R-CNN or another detector of torchvision on random boxes: SGD, and a validation pass after each epoch."""

from __future__ import annotations

import argparse
import math
import sys

import torch
import torchvision
from torch.utils.data import DataLoader, Dataset


class Boxes(Dataset):
    """Images of noise with one to four boxes each, and their masks if `has_masks`; every second image is turned."""

    def __init__(self, images: int, side: int, other_side: int, *, has_masks: bool) -> None:
        self.images = images
        self.sides = (side, other_side)
        self.has_masks = has_masks

    def __len__(self) -> int:
        return self.images

    def __getitem__(self, index: int):
        height, width = self.sides if index % 2 else reversed(self.sides)
        side = min(self.sides)
        corners = torch.rand(1 + index % 4, 2) * side / 2
        boxes = torch.cat([corners, corners + side / 4], dim=1)
        target = {"boxes": boxes, "labels": torch.ones(len(boxes), dtype=torch.int64)}
        if self.has_masks:
            target["masks"] = torch.randint(2, (len(boxes), height, width), dtype=torch.uint8)
        return torch.rand(3, height, width), target


def collate(samples):
    return tuple(zip(*samples, strict=True))


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="fasterrcnn_resnet50_fpn", help="a detector of torchvision")
    parser.add_argument("--batch-size", type=int, default=2)
    parser.add_argument("--side", type=int, default=480)
    parser.add_argument("--other-side", type=int, help="of images that are no squares")
    parser.add_argument("--classes", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--device", default="cuda")
    return parser.parse_args()


def train(model, loader, optimizer, device) -> None:
    model.train()
    for images, targets in loader:
        images = [image.to(device) for image in images]
        targets = [{name: value.to(device) for name, value in target.items()} for target in targets]
        losses = model(images, targets)
        loss = sum(losses.values())
        if not math.isfinite(loss.item()):
            sys.exit(f"the loss is {loss.item()}: {losses}")
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 10.0)
        optimizer.step()


@torch.inference_mode()
def validate(model, loader, device) -> int:
    model.eval()
    found = 0
    for images, _ in loader:
        outputs = model([image.to(device) for image in images])
        found += sum(len(output["boxes"].cpu()) for output in outputs)
    return found


def main() -> None:
    args = parse_args()
    device = torch.device(args.device)
    model = torchvision.models.get_model(args.model, weights=None, weights_backbone=None, num_classes=args.classes)
    model = model.to(device)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=0.005, momentum=0.9, weight_decay=5e-4)
    shape = (args.side, args.other_side or args.side)
    has_masks = "mask" in args.model
    train_set, val_set = (Boxes(count, *shape, has_masks=has_masks) for count in (200, 50))
    train_loader = DataLoader(train_set, args.batch_size, shuffle=True, num_workers=2, collate_fn=collate)
    val_loader = DataLoader(val_set, args.batch_size, num_workers=2, collate_fn=collate)
    for epoch in range(args.epochs):
        train(model, train_loader, optimizer, device)
        print(f"epoch {epoch}: {validate(model, val_loader, device)} boxes found", flush=True)


if __name__ == "__main__":
    main()
