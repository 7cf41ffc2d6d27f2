"""Training loops of image recognition: self-supervision, distillation, folds, adversaries, several tasks, windows.

    python benchmarks/estimator/jobs/vision_loops.py dino

Networks are small; what varies is what a loop keeps, copies, accumulates and evaluates.
"""

from __future__ import annotations

import copy
import io
import sys
from collections.abc import Callable

import torch
from image_parts import CLASSES, GPU, UNet, average, backbone, images, on_gpu
from torch import Tensor, nn, optim
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset


def dino() -> None:
    """A student of two large and six small crops follows a teacher of the large ones."""
    student = nn.Sequential(backbone(), nn.Linear(128, 512), nn.GELU(), nn.Linear(512, 4096)).to(GPU)
    teacher = copy.deepcopy(student).requires_grad_(requires_grad=False)
    optimizer = optim.AdamW(student.parameters(), 1e-4)
    scaler = torch.amp.GradScaler(GPU)
    center = torch.zeros(1, 4096, device=GPU)
    for _epoch in range(2):
        for pictures, _ in on_gpu(images(40, 128)):
            crops = [pictures, pictures.flip(3)] + [pictures[:, :, k : k + 48, k : k + 48] for k in range(0, 48, 8)]
            with torch.autocast(GPU, torch.float16):
                targets = teacher(torch.cat(crops[:2]))
                outputs = torch.cat([student(torch.cat(crops[:2])), student(torch.cat(crops[2:]))])
                wanted = functional.softmax((targets - center) / 0.04, dim=-1).chunk(2)
                losses = [
                    torch.sum(-want * functional.log_softmax(out / 0.1, dim=-1), dim=-1).mean()
                    for a, want in enumerate(wanted)
                    for b, out in enumerate(outputs.chunk(8))
                    if a != b
                ]
                loss = sum(losses) / len(losses)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(student.parameters(), 3.0)
            scaler.step(optimizer)
            scaler.update()
            average(teacher, student)
            center = center * 0.9 + targets.float().mean(0, keepdim=True) * 0.1


def simclr() -> None:
    """A contrastive loss over all pairs of two views, with a mask of the diagonal."""
    model = nn.Sequential(backbone(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 64)).to(GPU)
    optimizer = optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)
    for _epoch in range(2):
        for pictures, _ in on_gpu(images(600, 32, batch=256)):
            views = torch.cat([pictures, pictures + 0.1 * torch.randn_like(pictures)])
            vectors = functional.normalize(model(views), dim=1)
            similar = vectors @ vectors.T / 0.5
            similar = similar.masked_fill(torch.eye(len(similar), dtype=torch.bool, device=GPU), -1e9)
            labels = torch.arange(len(similar), device=GPU).roll(len(similar) // 2)
            loss = functional.cross_entropy(similar, labels)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()


def barlow() -> None:
    """A cross-correlation of two batches, off its diagonal by a view."""
    model = nn.Sequential(backbone(), nn.Linear(128, 1024), nn.BatchNorm1d(1024), nn.ReLU(), nn.Linear(1024, 1024)).to(
        GPU
    )
    normalize = nn.BatchNorm1d(1024, affine=False).to(GPU)
    optimizer = optim.Adam(model.parameters())
    for _epoch in range(2):
        for pictures, _ in on_gpu(images(320, 48, batch=128)):
            first, second = model(pictures), model(pictures.flip(3))
            matrix = normalize(first).T @ normalize(second)
            matrix.div_(len(pictures))
            on = torch.diagonal(matrix).add(-1).pow(2).sum()
            off = matrix.flatten()[:-1].view(1023, 1025)[:, 1:].flatten().pow(2).sum()
            optimizer.zero_grad()
            (on + 0.005 * off).backward()
            optimizer.step()


def mae() -> None:
    """A quarter of the patches through the encoder, all through the decoder."""

    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Conv2d(3, 192, 8, 8)
            self.encoder = nn.TransformerEncoder(
                nn.TransformerEncoderLayer(192, 4, 768, 0.0, "gelu", batch_first=True), 4
            )
            self.decoder = nn.TransformerEncoder(
                nn.TransformerEncoderLayer(192, 4, 768, 0.0, "gelu", batch_first=True), 2
            )
            self.mask = nn.Parameter(torch.zeros(1, 1, 192))
            self.place = nn.Parameter(torch.zeros(1, 256, 192))
            self.head = nn.Linear(192, 192)

        def forward(self, pictures: Tensor) -> Tensor:
            tokens = self.embed(pictures).flatten(2).transpose(1, 2) + self.place
            order = torch.rand(tokens.shape[:2], device=tokens.device).argsort(1)
            back = order.argsort(1)
            seen = torch.gather(tokens, 1, order[:, :64, None].expand(-1, -1, 192))
            seen = self.encoder(seen)
            every = torch.cat([seen, self.mask.expand(len(tokens), 192, -1)], 1)
            every = torch.gather(every, 1, back[:, :, None].expand(-1, -1, 192)) + self.place
            wanted = functional.unfold(pictures, 8, stride=8).transpose(1, 2)
            hidden = (back >= 64).float()
            return ((self.head(self.decoder(every)) - wanted).pow(2).mean(-1) * hidden).sum() / hidden.sum()

    model = Masked().to(GPU)
    optimizer = optim.AdamW(model.parameters(), betas=(0.9, 0.95))
    for _epoch in range(2):
        for pictures, _ in on_gpu(images(40, 128)):
            with torch.autocast(GPU, torch.bfloat16):
                loss = model(pictures)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()


def mixup() -> None:
    """Two permuted batches, soft labels, and a validation with a confusion matrix."""
    model = backbone(48, CLASSES).to(GPU)
    optimizer = optim.SGD(model.parameters(), 0.1, momentum=0.9, nesterov=True)
    schedule = optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=10)
    for _epoch in range(2):
        model.train()
        for pictures, labels in on_gpu(images(80, 96, batch=32)):
            share = float(torch.distributions.Beta(1.0, 1.0).sample())
            order = torch.randperm(len(pictures), device=GPU)
            mixed = share * pictures + (1 - share) * pictures[order]
            soft = functional.one_hot(labels, CLASSES).float()
            soft = share * soft + (1 - share) * soft[order]
            loss = functional.cross_entropy(model(mixed), soft, label_smoothing=0.1)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        model.eval()
        confusion = torch.zeros(CLASSES, CLASSES, device=GPU)
        with torch.inference_mode():
            for pictures, labels in on_gpu(images(120, 96, batch=64)):
                found = model(pictures).argmax(1)
                confusion.index_put_((labels, found), torch.ones_like(labels, dtype=torch.float), accumulate=True)


def distill() -> None:
    """A small network learns the softened outputs and a layer of a large one."""
    teacher, student = backbone(64, CLASSES).to(GPU).eval(), backbone(16, CLASSES).to(GPU)
    connector = nn.Conv2d(32, 128, 1).to(GPU)
    optimizer = optim.Adam([*student.parameters(), *connector.parameters()])
    for _epoch in range(2):
        for pictures, labels in on_gpu(images(80, 96, batch=32)):
            with torch.no_grad():
                early = teacher[:2](pictures)
                wanted = teacher[2:](early)
            hidden = student[:2](pictures)
            outputs = student[2:](hidden)
            soft = functional.kl_div(
                functional.log_softmax(outputs / 4, 1), functional.softmax(wanted / 4, 1), reduction="batchmean"
            )
            hint = functional.mse_loss(connector(hidden), early)
            loss = functional.cross_entropy(outputs, labels) + 16 * soft + hint
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def growing_images() -> None:
    """Each epoch has larger images and a smaller batch."""
    model = backbone(32, CLASSES).to(GPU)
    optimizer = optim.AdamW(model.parameters())
    for side, batch in ((64, 48), (96, 32), (160, 24)):
        for pictures, labels in on_gpu(images(3 * batch - 8, side, batch=batch)):
            optimizer.zero_grad()
            functional.cross_entropy(model(pictures), labels).backward()
            optimizer.step()


def folds() -> None:
    """Three folds, each with a model of its own and the best one's weights copied."""
    best: dict[str, Tensor] = {}
    for _fold in range(3):
        model = backbone(48, CLASSES).to(GPU)
        optimizer = optim.Adam(model.parameters())
        least = float("inf")
        for _epoch in range(2):
            model.train()
            for pictures, labels in on_gpu(images(80, 64, batch=32)):
                optimizer.zero_grad()
                functional.cross_entropy(model(pictures), labels).backward()
                optimizer.step()
            model.eval()
            total = 0.0
            with torch.no_grad():
                for pictures, labels in on_gpu(images(40, 64, batch=32)):
                    total += functional.cross_entropy(model(pictures), labels).item()
            if total <= least:
                least = total
                best = copy.deepcopy(model.state_dict())
        model.load_state_dict(best)


def rate_finder() -> None:
    """Learning rates are tried from saved states, which are loaded again before the training."""
    model = backbone(48, CLASSES).to(GPU)
    optimizer = optim.Adam(model.parameters(), 1e-7)
    saved = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, saved)
    losses = []
    for place, (pictures, labels) in enumerate(on_gpu(images(96, 64, batch=32))):
        loss = functional.cross_entropy(model(pictures), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
        for group in optimizer.param_groups:
            group["lr"] = 1e-7 * 10**place
    saved.seek(0)
    states = torch.load(saved, map_location=GPU, weights_only=True)
    model.load_state_dict(states["model"])
    optimizer.load_state_dict(states["optimizer"])
    for _epoch in range(2):
        for pictures, labels in on_gpu(images(80, 64, batch=32)):
            loss = functional.cross_entropy(model(pictures), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def adversarial() -> None:
    """Seven steps of projected gradients on the images before each step."""
    model = backbone(32, CLASSES).to(GPU)
    optimizer = optim.SGD(model.parameters(), 0.1, momentum=0.9)
    for _epoch in range(2):
        for pictures, labels in on_gpu(images(80, 64, batch=32)):
            model.eval()
            attacked = pictures.detach() + 0.001 * torch.randn_like(pictures)
            for _step in range(7):
                attacked.requires_grad_()
                with torch.enable_grad():
                    loss = functional.cross_entropy(model(attacked), labels)
                gradient = torch.autograd.grad(loss, [attacked])[0]
                attacked = attacked.detach() + 0.007 * torch.sign(gradient.detach())
                attacked = torch.min(torch.max(attacked, pictures - 0.031), pictures + 0.031).clamp(0.0, 1.0)
            model.train()
            optimizer.zero_grad()
            functional.cross_entropy(model(attacked.detach()), labels).backward()
            optimizer.step()


def sliding_windows() -> None:
    """A segmentation with a Dice loss; validation adds windows of a large image up on the GPU."""
    model = UNet(1, 4).to(GPU)
    optimizer = optim.Adam(model.parameters())
    for _epoch in range(2):
        model.train()
        for _step in range(3):
            pictures, masks = torch.randn(8, 1, 96, 96).to(GPU), torch.randint(4, (8, 96, 96)).to(GPU)
            outputs = model(pictures)
            shares = outputs.softmax(1)
            wanted = functional.one_hot(masks, 4).permute(0, 3, 1, 2).float()
            both = (shares * wanted).sum((0, 2, 3))
            dice = 1 - (2 * both + 1) / (shares.sum((0, 2, 3)) + wanted.sum((0, 2, 3)) + 1)
            loss = functional.cross_entropy(outputs, masks) + dice.mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            large = torch.randn(1, 1, 768, 768).to(GPU)
            total, counts = torch.zeros(1, 4, 768, 768, device=GPU), torch.zeros(1, 1, 768, 768, device=GPU)
            places = [(top, left) for top in range(0, 673, 48) for left in range(0, 673, 48)]
            for start in range(0, len(places), 16):
                part = places[start : start + 16]
                windows = torch.cat([large[:, :, top : top + 96, left : left + 96] for top, left in part])
                for (top, left), window in zip(part, model(windows).softmax(1), strict=True):
                    total[0, :, top : top + 96, left : left + 96] += window
                    counts[0, :, top : top + 96, left : left + 96] += 1
            (total / counts).argmax(1).cpu()


def balanced_tasks() -> None:
    """GradNorm: gradients of gradients of a shared layer weigh three tasks."""
    shared = backbone(32, 256).to(GPU)
    heads = nn.ModuleList(nn.Linear(256, 10) for _ in range(3)).to(GPU)
    weights = nn.Parameter(torch.ones(3, device=GPU))
    optimizer = optim.Adam([*shared.parameters(), *heads.parameters()])
    weighing = optim.Adam([weights], 0.025)
    for _epoch in range(2):
        for pictures, labels in on_gpu(images(80, 64, batch=32)):
            hidden = shared(pictures)
            losses = torch.stack([functional.cross_entropy(head(hidden), labels % 10) for head in heads])
            optimizer.zero_grad()
            (weights * losses).sum().backward(retain_graph=True)
            weights.grad = torch.zeros_like(weights)
            norms = torch.stack(
                [
                    torch.autograd.grad(weight * loss, shared[-1].weight, retain_graph=True, create_graph=True)[
                        0
                    ].norm()
                    for weight, loss in zip(weights, losses, strict=True)
                ]
            )
            unfair = (norms - norms.mean().detach()).abs().sum()
            weights.grad = torch.autograd.grad(unfair, weights)[0]
            weighing.step()
            optimizer.step()


def hard_examples() -> None:
    """Only the largest losses of pixels count, and images are drawn by weights."""
    model = UNet(3, 19).to(GPU)
    optimizer = optim.SGD(model.parameters(), 0.01, momentum=0.9)
    data = TensorDataset(torch.randn(40, 3, 128, 128), torch.randint(19, (40, 128, 128)))
    drawn = torch.utils.data.WeightedRandomSampler(torch.rand(40).tolist(), 40)
    for _epoch in range(2):
        for pictures, masks in DataLoader(data, 8, sampler=drawn, drop_last=True):
            losses = functional.cross_entropy(model(pictures.to(GPU)), masks.to(GPU), reduction="none").flatten()
            largest, _ = losses.topk(losses.numel() // 4)
            optimizer.zero_grad()
            largest.mean().backward()
            optimizer.step()


LOOPS: tuple[Callable[[], None], ...] = (
    *(dino, simclr, barlow, mae, mixup, distill, growing_images, folds, rate_finder, adversarial),
    *(sliding_windows, balanced_tasks, hard_examples),
)  # fmt: skip

if __name__ == "__main__":
    torch.manual_seed(0)
    {loop.__name__: loop for loop in LOOPS}[sys.argv[1]]()
