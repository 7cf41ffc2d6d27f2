"""Any network of timm, trained as timm's own script does: channels last, autocast, mixup, averaged weights, validation.

python examples/timm_train.py --model convnext_tiny --amp bfloat16 --channels-last --model-ema --opt adamw
python examples/timm_train.py --model resnet50 --tf32 --opt sgd
"""

from __future__ import annotations

import argparse
import contextlib

import timm
import torch
from timm.data import Mixup
from timm.loss import SoftTargetCrossEntropy
from timm.optim import create_optimizer_v2
from timm.utils import AverageMeter, ModelEmaV3, accuracy
from torch.utils.data import DataLoader, Dataset


class Noise(Dataset):
    """Random images of the network's size, made when they are asked for."""

    def __init__(self, count: int, shape: tuple[int, ...], classes: int) -> None:
        self.count, self.shape, self.classes = count, shape, classes

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.randn(self.shape), index % self.classes


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="convnext_tiny")
    parser.add_argument("-b", "--batch-size", type=int, default=64)
    parser.add_argument("-vb", "--validation-batch-size", type=int, default=128)
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--side", type=int, help="of the images; default: what the network was made for")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--opt", default="adamw", help="a name of timm: sgd, adamw, adafactor, lion, lamb, ...")
    parser.add_argument("--amp", choices=["float16", "bfloat16"])
    parser.add_argument("--channels-last", action="store_true")
    parser.add_argument("--model-ema", action="store_true")
    parser.add_argument("--tf32", action="store_true")
    parser.add_argument("--grad-checkpointing", action="store_true")
    parser.add_argument("--device", default="cuda")
    return parser.parse_args()


def train(model, ema, loader, optimizer, scaler, args) -> None:
    model.train()
    mixup = Mixup(mixup_alpha=0.8, cutmix_alpha=1.0, num_classes=args.classes)
    criterion = SoftTargetCrossEntropy()
    for images, labels in loader:
        images, labels = images.to(args.device, non_blocking=True), labels.to(args.device, non_blocking=True)
        if args.channels_last:
            images = images.contiguous(memory_format=torch.channels_last)
        if len(images) % 2 == 0:
            images, labels = mixup(images, labels)
        else:
            labels = torch.nn.functional.one_hot(labels, args.classes).float()
        with autocast(args):
            loss = criterion(model(images), labels)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        if ema is not None:
            ema.update(model)


def autocast(args):
    if args.amp is None:
        return contextlib.nullcontext()
    return torch.autocast(torch.device(args.device).type, getattr(torch, args.amp))


@torch.no_grad()
def validate(model, loader, args) -> float:
    model.eval()
    top1 = AverageMeter()
    for images, labels in loader:
        images, labels = images.to(args.device), labels.to(args.device)
        with autocast(args):
            scores = model(images)
        top1.update(accuracy(scores, labels, topk=(1, 5))[0].item(), len(images))
    return top1.avg


def main() -> None:
    args = parse_args()
    torch.backends.cudnn.benchmark = True
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = args.tf32
    model = timm.create_model(args.model, num_classes=args.classes, drop_path_rate=0.1)
    if args.grad_checkpointing:
        model.set_grad_checkpointing()
    shape = model.default_cfg["input_size"] if args.side is None else (3, args.side, args.side)
    model.to(args.device, memory_format=torch.channels_last if args.channels_last else torch.contiguous_format)
    ema = ModelEmaV3(model, decay=0.9998) if args.model_ema else None
    optimizer = create_optimizer_v2(model, opt=args.opt, lr=1e-3, weight_decay=0.05)
    scaler = torch.amp.GradScaler(torch.device(args.device).type, enabled=args.amp == "float16")
    loaders = [
        DataLoader(Noise(count, shape, args.classes), size, shuffle=shuffle, num_workers=4, pin_memory=True)
        for count, size, shuffle in ((5000, args.batch_size, True), (1000, args.validation_batch_size, False))
    ]
    for epoch in range(args.epochs):
        train(model, ema, loaders[0], optimizer, scaler, args)
        print(f"epoch {epoch}: top-1 {validate(ema or model, loaders[1], args):.2f} %", flush=True)


if __name__ == "__main__":
    main()
