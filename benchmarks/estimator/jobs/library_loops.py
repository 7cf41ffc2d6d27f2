"""Whole trainings through accelerate, Lightning, timm and torchvision, with what follows each epoch; one by its name:

    python benchmarks/estimator/jobs/library_loops.py accelerated

Networks are small, of random weights; the calls are those of the libraries' own guides.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

GPU = torch.device("cuda")


def pictures(count: int, size: int, classes: int = 10) -> TensorDataset:
    draw = torch.Generator().manual_seed(2)
    images = torch.randn(count, 3, size, size, generator=draw)
    return TensorDataset(images, torch.randint(classes, (count,), generator=draw))


def accelerated() -> None:
    """Accelerate with bfloat16, accumulation, clipping, a schedule and gathered predictions; a ViT."""
    from accelerate import Accelerator
    from transformers import ViTConfig, ViTForImageClassification, get_cosine_schedule_with_warmup

    accelerator = Accelerator(mixed_precision="bf16", gradient_accumulation_steps=2)
    config = ViTConfig(
        hidden_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=1024,
        image_size=96,
        num_labels=10,
    )
    model = ViTForImageClassification(config)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    schedule = get_cosine_schedule_with_warmup(optimizer, 2, 12)
    train, test = DataLoader(pictures(200, 96), 16, shuffle=True), DataLoader(pictures(90, 96), 32)
    model, optimizer, train, test, schedule = accelerator.prepare(model, optimizer, train, test, schedule)
    for _epoch in range(2):
        model.train()
        for images, labels in train:
            with accelerator.accumulate(model):
                loss = model(pixel_values=images, labels=labels).loss
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
        model.eval()
        right = 0
        for images, labels in test:
            with torch.no_grad():
                guesses = model(pixel_values=images).logits.argmax(-1)
            guesses, labels = accelerator.gather_for_metrics((guesses, labels))
            right += int((guesses == labels).sum())
        accelerator.print(right)


def lightning_classifier() -> None:
    """Lightning with float16, metrics of torchmetrics, averaged weights and a test; torchvision's ResNet-18."""
    import lightning
    import torchmetrics
    import torchvision
    from lightning.pytorch.callbacks import LearningRateMonitor, StochasticWeightAveraging
    from lightning.pytorch.loggers import CSVLogger

    class Classifier(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = torchvision.models.resnet18(num_classes=10)
            self.accuracy = torchmetrics.Accuracy("multiclass", num_classes=10)

        def training_step(self, batch: list[Tensor], _index: int) -> Tensor:
            loss = nn.functional.cross_entropy(self.net(batch[0]), batch[1])
            self.log("loss", loss, prog_bar=True)
            return loss

        def validation_step(self, batch: list[Tensor], _index: int) -> None:
            self.accuracy(self.net(batch[0]), batch[1])
            self.log("accuracy", self.accuracy, on_epoch=True)

        test_step = validation_step

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.SGD(self.parameters(), 0.1, momentum=0.9, weight_decay=5e-4)
            return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 3)]

    folder = tempfile.mkdtemp()
    trainer = lightning.Trainer(
        max_epochs=3,
        precision="16-mixed",
        logger=CSVLogger(folder),
        default_root_dir=folder,
        gradient_clip_val=1.0,
        callbacks=[StochasticWeightAveraging(1e-2, swa_epoch_start=1), LearningRateMonitor()],
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    model = Classifier()
    trainer.fit(model, DataLoader(pictures(200, 64), 32, shuffle=True), DataLoader(pictures(100, 64), 64))
    trainer.test(model, DataLoader(pictures(100, 64), 64))


def lightning_adversaries() -> None:
    """A generator and a critic with optimization by hand, and a grid of images after each epoch."""
    import lightning

    class Adversaries(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = False
            self.generator = nn.Sequential(
                nn.ConvTranspose2d(64, 128, 4),
                nn.BatchNorm2d(128),
                nn.ReLU(),
                nn.ConvTranspose2d(128, 64, 4, 2, 1),
                nn.BatchNorm2d(64),
                nn.ReLU(),
                nn.ConvTranspose2d(64, 32, 4, 2, 1),
                nn.BatchNorm2d(32),
                nn.ReLU(),
                nn.ConvTranspose2d(32, 3, 4, 2, 1),
                nn.Tanh(),
            )
            self.critic = nn.Sequential(
                nn.Conv2d(3, 64, 4, 2, 1),
                nn.LeakyReLU(0.2),
                nn.Conv2d(64, 128, 4, 2, 1),
                nn.LeakyReLU(0.2),
                nn.Conv2d(128, 256, 4, 2, 1),
                nn.LeakyReLU(0.2),
                nn.Conv2d(256, 1, 4),
            )

        def training_step(self, batch: list[Tensor], _index: int) -> None:
            first, second = self.optimizers()
            real = batch[0]
            noise = torch.randn(len(real), 64, 1, 1, device=self.device)
            self.toggle_optimizer(first)
            loss = -self.critic(self.generator(noise)).mean()
            self.manual_backward(loss)
            first.step()
            first.zero_grad()
            self.untoggle_optimizer(first)
            self.toggle_optimizer(second)
            loss = (1 - self.critic(real)).relu().mean() + (
                1 + self.critic(self.generator(noise).detach())
            ).relu().mean()
            self.manual_backward(loss)
            second.step()
            second.zero_grad()
            self.untoggle_optimizer(second)

        def on_train_epoch_end(self) -> None:
            with torch.no_grad():
                self.generator(torch.randn(256, 64, 1, 1, device=self.device)).mean().item()

        def configure_optimizers(self) -> Any:
            return (
                torch.optim.Adam(self.generator.parameters(), 2e-4, (0.5, 0.999)),
                torch.optim.Adam(self.critic.parameters(), 2e-4, (0.5, 0.999)),
            )

    trainer = lightning.Trainer(max_epochs=2, logger=False, enable_checkpointing=False, enable_progress_bar=False)
    trainer.fit(Adversaries(), DataLoader(pictures(400, 32), 64, shuffle=True, drop_last=True))


def timm_recipe() -> None:
    """A network of timm with mixed labels, an average of its weights, AMP and channels last."""
    import timm
    from timm.data import Mixup
    from timm.loss import SoftTargetCrossEntropy
    from timm.optim import create_optimizer_v2
    from timm.utils import ModelEmaV3, NativeScaler

    model = timm.create_model("efficientnet_b0", num_classes=10, drop_path_rate=0.1).to(GPU)
    model = model.to(memory_format=torch.channels_last)
    average, scaler = ModelEmaV3(model, decay=0.99), NativeScaler()
    optimizer = create_optimizer_v2(model, opt="lamb", lr=5e-3, weight_decay=0.02)
    mix, loss_of = Mixup(mixup_alpha=0.8, cutmix_alpha=1.0, num_classes=10), SoftTargetCrossEntropy()
    for epoch in range(2):
        model.train()
        for step, (images, labels) in enumerate(DataLoader(pictures(160, 96), 32, shuffle=True, drop_last=True)):
            images, labels = mix(images.to(GPU), labels.to(GPU))
            images = images.contiguous(memory_format=torch.channels_last)
            with torch.autocast("cuda"):
                loss = loss_of(model(images), labels)
            optimizer.zero_grad()
            scaler(loss, optimizer, clip_grad=1.0, parameters=model.parameters())
            average.update(model, step=4 * epoch + step)
        for network in (model, average.module):
            network.eval()
            with torch.no_grad(), torch.autocast("cuda"):
                for images, _labels in DataLoader(pictures(100, 96), 64):
                    network(images.to(GPU).contiguous(memory_format=torch.channels_last)).argmax(1).cpu()


def transfer() -> None:
    """A network of timm whose head is trained for one epoch, and all of it in a second; dropout at the head."""
    import timm

    model = timm.create_model("convnext_pico", num_classes=10, drop_rate=0.2).to(GPU)
    loss_of = nn.CrossEntropyLoss(label_smoothing=0.1)
    for frozen in (True, False):
        for parameter in model.parameters():
            parameter.requires_grad_(requires_grad=not frozen)
        for parameter in model.get_classifier().parameters():
            parameter.requires_grad_(requires_grad=True)
        wanted = [parameter for parameter in model.parameters() if parameter.requires_grad]
        optimizer = torch.optim.AdamW(wanted, 1e-3 if frozen else 1e-4)
        for _epoch in range(2):
            model.train()
            total = 0.0
            for images, labels in DataLoader(pictures(144, 96), 32, shuffle=True):
                optimizer.zero_grad(set_to_none=True)
                loss = loss_of(model(images.to(GPU)), labels.to(GPU))
                loss.backward()
                optimizer.step()
                total += loss.item()
            model.eval()
            with torch.inference_mode():
                for images, _labels in DataLoader(pictures(100, 96), 100):
                    model(images.to(GPU)).softmax(1).topk(5)


def torchvision_segmentation() -> None:
    """LR-ASPP with a loss at two heads' sizes and a matrix of confusion, as torchvision's reference script."""
    import torchvision

    model = torchvision.models.segmentation.deeplabv3_mobilenet_v3_large(
        weights=None, weights_backbone=None, num_classes=21, aux_loss=True
    ).to(GPU)
    optimizer = torch.optim.SGD(model.parameters(), 0.02, momentum=0.9, weight_decay=1e-4)
    scaler = torch.amp.GradScaler()
    for _epoch in range(2):
        model.train()
        for images, _labels in DataLoader(pictures(36, 128), 8, shuffle=True, drop_last=True):
            images, masks = images.to(GPU), torch.randint(21, (8, 128, 128)).to(GPU)
            with torch.autocast("cuda"):
                found = model(images)
                losses = {
                    key: nn.functional.cross_entropy(value, masks, ignore_index=255) for key, value in found.items()
                }
                loss = losses["out"] + 0.5 * losses["aux"]
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        model.eval()
        confusion = torch.zeros(21, 21, dtype=torch.int64, device=GPU)
        with torch.inference_mode():
            for images, _labels in DataLoader(pictures(10, 160), 1):
                masks = torch.randint(21, (1, 160, 160)).to(GPU)
                guesses = model(images.to(GPU))["out"].argmax(1).flatten()
                confusion += torch.bincount(21 * masks.flatten() + guesses, minlength=441).reshape(21, 21)


def lightning_autoencoder() -> None:
    """Lightning with accumulation, a validation every third epoch, early stopping and checkpoints."""
    import lightning
    from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint

    class Autoencoder(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = nn.Sequential(
                nn.Conv2d(3, 32, 3, 2, 1),
                nn.GELU(),
                nn.Conv2d(32, 64, 3, 2, 1),
                nn.GELU(),
                nn.Flatten(),
                nn.Linear(64 * 256, 128),
            )
            self.decoder = nn.Sequential(
                nn.Linear(128, 64 * 256),
                nn.Unflatten(1, (64, 16, 16)),
                nn.GELU(),
                nn.ConvTranspose2d(64, 32, 4, 2, 1),
                nn.GELU(),
                nn.ConvTranspose2d(32, 3, 4, 2, 1),
            )

        def training_step(self, batch: list[Tensor], _index: int) -> Tensor:
            return nn.functional.mse_loss(self.decoder(self.encoder(batch[0])), batch[0])

        def validation_step(self, batch: list[Tensor], _index: int) -> None:
            self.log("val_loss", self.training_step(batch, _index))

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.AdamW(self.parameters(), 1e-3)
            return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1)}

    folder = tempfile.mkdtemp()
    trainer = lightning.Trainer(
        max_epochs=3,
        accumulate_grad_batches=2,
        check_val_every_n_epoch=3,
        logger=False,
        default_root_dir=folder,
        callbacks=[EarlyStopping("val_loss"), ModelCheckpoint(folder, monitor="val_loss")],
        num_sanity_val_steps=0,
        enable_progress_bar=False,
    )
    rows = TensorDataset(torch.randn(160, 3, 64, 64))
    trainer.fit(Autoencoder(), DataLoader(rows, 16, shuffle=True), DataLoader(rows, 80))


LOOPS: tuple[Callable[[], None], ...] = (
    *(accelerated, lightning_classifier, lightning_adversaries, timm_recipe),
    *(transfer, torchvision_segmentation, lightning_autoencoder),
)

if __name__ == "__main__":
    torch.manual_seed(0)
    {loop.__name__: loop for loop in LOOPS}[sys.argv[1]]()
