"""Trains an image classifier as on ImageNet; resnet50.py and its neighbors choose the model.

The images are random (`torchvision.datasets.FakeData`), so nothing is downloaded; the transforms, the loaders
and the sizes are those of ImageNet-1k.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
from torch import nn
from torch.utils.data import DataLoader
from torchvision import datasets, transforms

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
CLASSES = 1000


def parse_args(title: str, image_size: int) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=title)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--image-size", type=int, default=image_size, help="side of the square crop, in pixels")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--workers", type=int, default=4, help="processes of each data loader")
    parser.add_argument("--train-images", type=int, default=12_815, help="as of ImageNet, no whole number of batches")
    parser.add_argument("--val-images", type=int, default=2_000)
    parser.add_argument("--device", default="cuda")
    return parser.parse_args()


def make_loaders(args: argparse.Namespace) -> tuple[DataLoader, DataLoader]:
    source_size = args.image_size * 8 // 7  # 256 pixels for a crop of 224
    normalize = transforms.Normalize(MEAN, STD)
    for_training = transforms.Compose(
        [
            transforms.RandomResizedCrop(args.image_size),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            normalize,
        ]
    )
    for_validation = transforms.Compose(
        [
            transforms.Resize(source_size),
            transforms.CenterCrop(args.image_size),
            transforms.ToTensor(),
            normalize,
        ]
    )
    shape = (3, source_size, source_size)
    train_set = datasets.FakeData(args.train_images, shape, CLASSES, transform=for_training)
    val_set = datasets.FakeData(args.val_images, shape, CLASSES, transform=for_validation, random_offset=10**6)
    train_loader = DataLoader(train_set, batch_size=args.batch_size, shuffle=True, num_workers=args.workers)
    val_loader = DataLoader(val_set, batch_size=args.batch_size, num_workers=args.workers)
    return train_loader, val_loader


def train(model, loader, criterion, optimizer, device) -> float:
    model.train()
    total_loss = 0.0
    for step, (images, labels) in enumerate(loader):
        images, labels = images.to(device), labels.to(device)
        optimizer.zero_grad()
        outputs = model(images)
        loss = criterion(outputs, labels)
        loss.backward()
        optimizer.step()
        total_loss += loss.item()
        if step % 50 == 0:
            print(f"  step {step:5d}/{len(loader)}  loss {loss.item():.4f}", flush=True)
    return total_loss / len(loader)


def validate(model, loader, device) -> float:
    model.eval()
    correct = seen = 0
    with torch.no_grad():
        for images, labels in loader:
            images, labels = images.to(device), labels.to(device)
            outputs = model(images)
            correct += (outputs.argmax(dim=1) == labels).sum().item()
            seen += labels.size(0)
    return correct / seen


def main(title: str, build_model: Callable[[], nn.Module], image_size: int = 224) -> None:
    args = parse_args(title, image_size)
    device = torch.device(args.device)
    train_loader, val_loader = make_loaders(args)

    model = build_model().to(device)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)

    for epoch in range(args.epochs):
        loss = train(model, train_loader, criterion, optimizer, device)
        accuracy = validate(model, val_loader, device)
        print(f"epoch {epoch}: loss {loss:.4f}, validation accuracy {accuracy:.2%}", flush=True)
