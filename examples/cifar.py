"""Small networks of timm on random images of CIFAR-100's shape: AdamW, cosine schedule, fp32."""

from __future__ import annotations

import argparse

import timm
import torch
from torch import nn
from torch.utils.data import DataLoader
from torchvision import datasets, transforms

MEAN, STD = (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)
CLASSES = 100


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="resnet18", help="a timm model, e.g. resnet34 or mobilenetv3_small_100")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--workers", type=int, default=4, help="processes of each data loader")
    parser.add_argument("--train-images", type=int, default=50_000)
    parser.add_argument("--val-images", type=int, default=10_000)
    parser.add_argument("--device", default="cuda")
    return parser.parse_args()


def make_loaders(args: argparse.Namespace) -> tuple[DataLoader, DataLoader]:
    normalize = transforms.Normalize(MEAN, STD)
    for_training = transforms.Compose(
        [transforms.RandomCrop(32, padding=4), transforms.RandomHorizontalFlip(), transforms.ToTensor(), normalize]
    )
    for_validation = transforms.Compose([transforms.ToTensor(), normalize])
    shape = (3, 32, 32)
    train_set = datasets.FakeData(args.train_images, shape, CLASSES, transform=for_training)
    val_set = datasets.FakeData(args.val_images, shape, CLASSES, transform=for_validation, random_offset=10**6)
    train_loader = DataLoader(train_set, batch_size=args.batch_size, shuffle=True, num_workers=args.workers)
    val_loader = DataLoader(val_set, batch_size=args.batch_size, num_workers=args.workers)
    return train_loader, val_loader


def train(model, loader, criterion, optimizer, device) -> float:
    model.train()
    total_loss = 0.0
    for images, labels in loader:
        images, labels = images.to(device), labels.to(device)
        optimizer.zero_grad()
        outputs = model(images)
        loss = criterion(outputs, labels)
        loss.backward()
        optimizer.step()
        total_loss += loss.item()
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


def main() -> None:
    args = parse_args()
    device = torch.device(args.device)
    train_loader, val_loader = make_loaders(args)

    model = timm.create_model(args.model, pretrained=False, num_classes=CLASSES).to(device)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=args.epochs)

    for epoch in range(args.epochs):
        loss = train(model, train_loader, criterion, optimizer, device)
        accuracy = validate(model, val_loader, device)
        scheduler.step()
        print(f"epoch {epoch}: loss {loss:.4f}, validation accuracy {accuracy:.2%}", flush=True)


if __name__ == "__main__":
    main()
