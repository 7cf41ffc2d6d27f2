"""A U-Net with the stages of ResNet-34 as its encoder, on random images and masks of PASCAL VOC's classes: AdamW, fp32.

The decoder is that of segmentation_models_pytorch: nearest upsampling, two convolutions, 256 to 16 channels. Dice loss.
"""

from __future__ import annotations

import argparse

import torch
import torchvision
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

CLASSES = 21
ENCODED = (64, 64, 128, 256, 512)
DECODED = (256, 128, 64, 32, 16)


class RandomMasks(Dataset):
    """Images of noise, with a class for every pixel."""

    def __init__(self, count: int, side: int) -> None:
        self.count = count
        self.side = side

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if index >= self.count:
            raise IndexError(index)
        random = torch.Generator().manual_seed(index)
        image = torch.rand(3, self.side, self.side, generator=random)
        return image, torch.randint(CLASSES, (self.side, self.side), generator=random)


def convolution(channels: int, width: int) -> nn.Sequential:
    norm = nn.BatchNorm2d(width)
    return nn.Sequential(nn.Conv2d(channels, width, 3, padding=1, bias=False), norm, nn.ReLU(inplace=True))


class Unet(nn.Module):
    """A score of each class for every pixel."""

    def __init__(self) -> None:
        super().__init__()
        resnet = torchvision.models.resnet34(weights=None)
        self.stem = nn.Sequential(resnet.conv1, resnet.bn1, resnet.relu)
        self.stages = nn.ModuleList(
            [nn.Sequential(resnet.maxpool, resnet.layer1), resnet.layer2, resnet.layer3, resnet.layer4]
        )
        skipped = [*reversed(ENCODED[:-1]), 0]
        before = [ENCODED[-1], *DECODED[:-1]]
        self.blocks = nn.ModuleList(
            nn.Sequential(convolution(channels + skip, width), convolution(width, width))
            for channels, skip, width in zip(before, skipped, DECODED, strict=True)
        )
        self.head = nn.Conv2d(DECODED[-1], CLASSES, 3, padding=1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """B x 3 x H x W to B x classes x H x W."""
        found = [self.stem(images)]
        for stage in self.stages:
            found.append(stage(found[-1]))
        x = found.pop()
        for block in self.blocks:
            x = functional.interpolate(x, scale_factor=2.0, mode="nearest")
            x = block(torch.cat([x, found.pop()], dim=1) if found else x)
        return self.head(x)


def dice_loss(scores: torch.Tensor, masks: torch.Tensor) -> torch.Tensor:
    """One minus twice the overlap over the sum, in the mean over classes."""
    shares = scores.log_softmax(dim=1).exp().flatten(2)
    wanted = functional.one_hot(masks.flatten(1), CLASSES).permute(0, 2, 1).type_as(shares)
    overlap = (shares * wanted).sum(dim=(0, 2))
    total = (shares + wanted).sum(dim=(0, 2))
    return (1 - 2 * overlap / total.clamp_min(1e-7)).mean()


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--image-size", type=int, default=512)
    parser.add_argument("--images", type=int, default=1_464)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument(
        "--validate-with-graph",
        action="store_true",
        help="validate without `torch.no_grad()`: the graph of a batch lives until the next one has its own",
    )
    parser.add_argument("--device", default="cuda")
    return parser.parse_args()


def validate(model, loader, device, *, has_graph: bool) -> None:
    model.eval()
    with torch.set_grad_enabled(has_graph):
        for images, masks in loader:
            scores = model(images.to(device, non_blocking=True))
            loss = dice_loss(scores, masks.to(device, non_blocking=True))
    print(f"validation: loss {loss.item():.4f}", flush=True)


def main() -> None:
    args = parse_args()
    device = torch.device(args.device)
    dataset = RandomMasks(args.images, args.image_size)
    settings = {"batch_size": args.batch_size, "num_workers": args.workers, "pin_memory": device.type == "cuda"}
    train_loader = DataLoader(dataset, shuffle=True, **settings)
    val_loader = DataLoader(RandomMasks(args.images, args.image_size), **settings)
    model = Unet().to(device)
    model(torch.rand(args.batch_size, 3, args.image_size, args.image_size, device=device))  # as a printed summary does
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for epoch in range(args.epochs):
        model.train()
        for images, masks in train_loader:
            images, masks = images.to(device, non_blocking=True), masks.to(device, non_blocking=True)
            optimizer.zero_grad(set_to_none=True)
            loss = dice_loss(model(images), masks)
            loss.backward()
            optimizer.step()
        validate(model, val_loader, device, has_graph=args.validate_with_graph)
        print(f"epoch {epoch}: loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
