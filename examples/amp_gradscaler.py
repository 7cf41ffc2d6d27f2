"""A U-Net for segmentation in mixed precision: autocast to fp16, GradScaler, gradient clipping. Needs torch alone."""

from __future__ import annotations

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class RandomScenes(Dataset):
    """Random images with a random class for every pixel; sample N is the same in every run."""

    def __init__(self, count: int, size: int, classes: int) -> None:
        self.count = count
        self.size = size
        self.classes = classes

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if index >= self.count:
            raise IndexError(index)
        random = torch.Generator().manual_seed(index)
        image = torch.rand(3, self.size, self.size, generator=random)
        mask = torch.randint(self.classes, (self.size, self.size), generator=random)
        return image, mask


def double_conv(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
        nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
    )


class UNet(nn.Module):
    """Four levels down and up again, with skips."""

    def __init__(self, classes: int, width: int) -> None:
        super().__init__()
        widths = [width * 2**level for level in range(5)]
        self.down = nn.ModuleList([double_conv(i, o) for i, o in zip([3, *widths], widths, strict=False)])
        self.up = nn.ModuleList([nn.ConvTranspose2d(w, w // 2, 2, stride=2) for w in widths[:0:-1]])
        self.merge = nn.ModuleList([double_conv(w, w // 2) for w in widths[:0:-1]])
        self.pool = nn.MaxPool2d(2)
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Logits of every class for every pixel."""
        features, skips = images, []
        for level in self.down[:-1]:
            features = level(features)
            skips.append(features)
            features = self.pool(features)
        features = self.down[-1](features)
        for up, merge, skip in zip(self.up, self.merge, reversed(skips), strict=True):
            features = merge(torch.cat([skip, up(features)], dim=1))
        return self.head(features)


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--image-size", type=int, default=256, help="side of an image; a multiple of 16 pixels")
    parser.add_argument("--classes", type=int, default=21)
    parser.add_argument("--width", type=int, default=64, help="channels of the first level")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--images", type=int, default=1_600)
    parser.add_argument("--workers", type=int, default=2, help="processes of the data loader")
    parser.add_argument("--device", default="cuda")
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    device = torch.device(args.device)
    dataset = RandomScenes(args.images, args.image_size, args.classes)
    loader = DataLoader(
        dataset, batch_size=args.batch_size, shuffle=True, num_workers=args.workers, pin_memory=device.type == "cuda"
    )

    model = UNet(args.classes, args.width).to(device)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-4, momentum=0.9)
    scaler = torch.amp.GradScaler(device.type, enabled=device.type == "cuda")
    half = torch.float16 if device.type == "cuda" else torch.bfloat16

    for epoch in range(args.epochs):
        total_loss = 0.0
        for images, masks in loader:
            images = images.to(device, non_blocking=True)
            masks = masks.to(device, non_blocking=True)
            optimizer.zero_grad()
            with torch.autocast(device.type, dtype=half):
                loss = criterion(model(images), masks)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            total_loss += loss.item()
        print(f"epoch {epoch}: loss {total_loss / len(loader):.4f}", flush=True)


if __name__ == "__main__":
    main()
