"""A model of timm on made-up images, for the collocation study: EfficientNetV2-S, CaiT-XXS24 and others."""

from __future__ import annotations

import argparse
import time

import timm
import torch
from epoch_log import record_epoch


def main() -> None:
    """Train for some epochs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--batches", type=int, default=40_000, help="batches per epoch")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    sized = {"img_size": options.image_size} if options.model.startswith(("cait", "vit", "deit")) else {}
    model = timm.create_model(options.model, num_classes=options.classes, **sized).to(options.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    images = torch.randn(options.batch_size, 3, options.image_size, options.image_size)
    labels = torch.randint(0, options.classes, (options.batch_size,))
    for _ in range(options.epochs):
        began_s = time.time()
        loss = torch.zeros(())
        for _ in range(options.batches):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(images.to(options.device)), labels.to(options.device))
            loss.backward()
            optimizer.step()
        record_epoch(began_s, loss=loss.item())


if __name__ == "__main__":
    main()
