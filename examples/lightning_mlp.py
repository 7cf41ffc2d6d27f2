"""A module of Lightning: 16-bit training, accumulation, validation with early stopping, checkpoints.

python examples/lightning_mlp.py --precision bf16-mixed
"""

from __future__ import annotations

import argparse

import lightning
import torch
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split


class Digits(lightning.LightningModule):
    """Two layers over pictures of digits."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(784, width), nn.ReLU(), nn.Linear(width, 10))

    def training_step(self, batch):
        loss = nn.functional.cross_entropy(self.layers(batch[0]), batch[1])
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch) -> None:
        self.log("val_loss", nn.functional.cross_entropy(self.layers(batch[0]), batch[1]))

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters())
        return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--width", type=int, default=4096)
    parser.add_argument("--precision", default="16-mixed")
    parser.add_argument("--accelerator", default="gpu")
    args = parser.parse_args()
    data = TensorDataset(torch.randn(5000, 1, 28, 28), torch.randint(0, 10, (5000,)))
    train, val = random_split(data, [4500, 500])
    trainer = lightning.Trainer(
        accelerator=args.accelerator,
        devices=1,
        max_epochs=3,
        precision=args.precision,
        accumulate_grad_batches=2,
        gradient_clip_val=1.0,
        callbacks=[ModelCheckpoint(monitor="val_loss"), EarlyStopping("val_loss")],
    )
    trainer.fit(
        Digits(args.width),
        DataLoader(train, args.batch_size, shuffle=True, num_workers=2),
        DataLoader(val, args.batch_size, num_workers=2),
    )


if __name__ == "__main__":
    main()
