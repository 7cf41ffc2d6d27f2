"""Training loops of computer vision: self-supervision, distillation, adversaries, iteration, generation, folds.

    python benchmarks/estimator/jobs/vision_loops.py dino

Networks are small; what varies is what a loop keeps, copies, accumulates and evaluates.
"""

from __future__ import annotations

import copy
import io
import sys
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn, optim
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

CLASSES = 100
GPU = "cuda"


def images(count: int, side: int, channels: int = 3, batch: int = 16) -> DataLoader[tuple[Tensor, ...]]:
    data = TensorDataset(torch.randn(count, channels, side, side), torch.randint(CLASSES, (count,)))
    return DataLoader(data, batch, shuffle=True, pin_memory=True)


def on_gpu(loader: DataLoader[tuple[Tensor, ...]]) -> Iterator[tuple[Tensor, Tensor]]:
    for pictures, labels in loader:
        yield pictures.to(GPU, non_blocking=True), labels.to(GPU, non_blocking=True)


def block(inputs: int, outputs: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)
    )


def backbone(width: int = 32, outputs: int | None = None) -> nn.Sequential:
    layers = [
        block(3, width, 2),
        block(width, 2 * width, 2),
        block(2 * width, 4 * width, 2),
        block(4 * width, 4 * width),
    ]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    last = [] if outputs is None else [nn.Linear(4 * width, outputs)]
    return nn.Sequential(*layers, *head, *last)


class UNet(nn.Module):
    """A U-Net of two levels, with a time if it is given."""

    def __init__(self, inputs: int, outputs: int, width: int = 32) -> None:
        super().__init__()
        self.first, self.second, self.middle = (
            block(inputs, width),
            block(width, 2 * width, 2),
            block(2 * width, 4 * width, 2),
        )
        self.up = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=False)
        self.third, self.fourth = block(6 * width, 2 * width), block(3 * width, width)
        self.last = nn.Conv2d(width, outputs, 1)
        self.time = nn.Sequential(nn.Linear(1, 64), nn.SiLU(), nn.Linear(64, 4 * width))

    def forward(self, pictures: Tensor, time: Tensor | None = None) -> Tensor:
        first = self.first(pictures)
        second = self.second(first)
        middle = self.middle(second)
        if time is not None:
            middle = middle + self.time(time[:, None])[:, :, None, None]
        third = self.third(torch.cat([self.up(middle), second], 1))
        return self.last(self.fourth(torch.cat([self.up(third), first], 1)))


@torch.no_grad()
def average(target: nn.Module, source: nn.Module, decay: float = 0.99) -> None:
    for old, new in zip(target.parameters(), source.parameters(), strict=True):
        old.mul_(decay).add_(new.detach(), alpha=1 - decay)


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


def sampled_diffusion() -> None:
    """Noise is predicted; after each epoch an average of the weights samples images in twenty steps."""
    model = UNet(3, 3).to(GPU)
    averaged = copy.deepcopy(model).eval().requires_grad_(requires_grad=False)
    optimizer = optim.AdamW(model.parameters())
    levels = torch.linspace(1e-4, 0.02, 1000, device=GPU)
    kept = torch.cumprod(1 - levels, 0)
    for _epoch in range(2):
        for pictures, _ in on_gpu(images(40, 64)):
            time = torch.randint(1000, (len(pictures),), device=GPU)
            noise = torch.randn_like(pictures)
            share = kept[time][:, None, None, None]
            loss = functional.mse_loss(model(share.sqrt() * pictures + (1 - share).sqrt() * noise, time / 1000), noise)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            average(averaged, model)
        with torch.no_grad():
            sample = torch.randn(64, 3, 64, 64, device=GPU)
            for step in reversed(range(0, 1000, 50)):
                time = torch.full((64,), step / 1000, device=GPU)
                both = averaged(torch.cat([sample, sample]), torch.cat([time, time]))
                guided, free = both.chunk(2)
                noise = free + 3.0 * (guided - free)
                clean = (sample - (1 - kept[step]).sqrt() * noise) / kept[step].sqrt()
                before = kept[max(step - 50, 0)]
                sample = before.sqrt() * clean + (1 - before).sqrt() * noise


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


def refinement() -> None:
    """Optical flow: a correlation of all pairs, looked up in eight iterations by a recurrent unit."""

    class Refine(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.features = nn.Sequential(block(3, 32, 2), block(32, 64, 2), nn.Conv2d(64, 64, 3, 2, 1))
            self.gates, self.state = nn.Conv2d(64 + 83, 128, 3, 1, 1), nn.Conv2d(64 + 83, 64, 3, 1, 1)
            self.flow = nn.Conv2d(64, 2, 3, 1, 1)

        def forward(self, first: Tensor, second: Tensor) -> list[Tensor]:
            one, two = self.features(first), self.features(second)
            batch, channels, height, width = one.shape
            pairs = torch.einsum("bchw,bcij->bhwij", one, two) / channels**0.5
            pairs = pairs.reshape(batch * height * width, 1, height, width)
            rows = torch.arange(height, device=one.device, dtype=torch.float)
            columns = torch.arange(width, device=one.device, dtype=torch.float)
            start = torch.stack(torch.meshgrid(columns, rows, indexing="xy")).expand(batch, -1, -1, -1)
            near = torch.arange(-4, 5, device=one.device, dtype=torch.float)
            window = torch.stack(torch.meshgrid(near, near, indexing="ij"), -1)
            now, hidden, found = start, torch.tanh(one), []
            for _turn in range(8):
                now = now.detach()
                middle = now.permute(0, 2, 3, 1).reshape(-1, 1, 1, 2)
                grid = 2 * (middle + window) / (width - 1) - 1
                looked = functional.grid_sample(pairs, grid, align_corners=True)
                looked = looked.view(batch, height, width, 81).permute(0, 3, 1, 2)
                inputs = torch.cat([looked, now - start], 1)
                reset, keep = torch.sigmoid(self.gates(torch.cat([hidden, inputs], 1))).chunk(2, 1)
                state = torch.tanh(self.state(torch.cat([reset * hidden, inputs], 1)))
                hidden = (1 - keep) * hidden + keep * state
                now = now + self.flow(hidden)
                found.append(functional.interpolate(8 * (now - start), scale_factor=8, mode="bilinear"))
            return found

    model = Refine().to(GPU)
    optimizer = optim.AdamW(model.parameters())
    for _step in range(4):
        first, second = torch.randn(2, 3, 128, 192).to(GPU), torch.randn(2, 3, 128, 192).to(GPU)
        wanted = torch.randn(2, 2, 128, 192).to(GPU)
        flows = model(first, second)
        loss = sum(0.8 ** (7 - turn) * (flow - wanted).abs().mean() for turn, flow in enumerate(flows))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
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


def made_filters() -> None:
    """A network makes the filters of each image, which a grouped convolution applies."""
    makes = nn.Sequential(backbone(16), nn.Linear(64, 32 * 3 * 9)).to(GPU)
    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, CLASSES)).to(GPU)
    optimizer = optim.Adam([*makes.parameters(), *head.parameters()])
    for _epoch in range(2):
        for pictures, labels in on_gpu(images(40, 64)):
            count = len(pictures)
            filters = makes(pictures).view(count * 32, 3, 3, 3)
            outputs = functional.conv2d(pictures.reshape(1, count * 3, 64, 64), filters, padding=1, groups=count)
            optimizer.zero_grad()
            functional.cross_entropy(head(outputs.view(count, 32, 64, 64)), labels).backward()
            optimizer.step()


def one_image() -> None:
    """A deep image prior: the same input in each step, and the best output is copied."""
    model = UNet(32, 3, 48).to(GPU)
    source, wanted = torch.rand(1, 32, 256, 256, device=GPU), torch.rand(1, 3, 256, 256).to(GPU)
    optimizer = optim.Adam(model.parameters(), 0.01)
    best, least = None, torch.tensor(float("inf"), device=GPU)
    for step in range(30):
        output = model(source + torch.randn_like(source) / 30)
        loss = functional.mse_loss(output, wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            best, least = output.detach().clone(), torch.minimum(least, loss.detach())
    if best is not None:
        best.cpu()


def flow_of_images() -> None:
    """Coupling layers with a determinant, and samples by their inverse after each epoch."""

    class Coupling(nn.Module):
        def __init__(self, channels: int) -> None:
            super().__init__()
            half = channels // 2
            self.net = nn.Sequential(block(half, 128), block(128, 128), nn.Conv2d(128, channels, 3, 1, 1))
            self.turn = nn.Parameter(torch.linalg.qr(torch.randn(channels, channels))[0])

        def forward(self, values: Tensor) -> tuple[Tensor, Tensor]:
            values = functional.conv2d(values, self.turn[:, :, None, None])
            first, second = values.chunk(2, 1)
            shift, scale = self.net(first).chunk(2, 1)
            scale = torch.sigmoid(scale + 2)
            return torch.cat([first, (second + shift) * scale], 1), scale.log().flatten(1).sum(1)

        def inverse(self, values: Tensor) -> Tensor:
            first, second = values.chunk(2, 1)
            shift, scale = self.net(first).chunk(2, 1)
            values = torch.cat([first, second / torch.sigmoid(scale + 2) - shift], 1)
            return functional.conv2d(values, self.turn.T[:, :, None, None])

    model = nn.ModuleList(Coupling(12) for _ in range(8)).to(GPU)
    optimizer = optim.Adamax(model.parameters())
    for _epoch in range(2):
        for pictures, _ in on_gpu(images(40, 64)):
            values, total = functional.pixel_unshuffle(pictures, 2), torch.zeros(len(pictures), device=GPU)
            for layer in model:
                values, determinant = layer(values)
                total = total + determinant
            loss = (0.5 * values.pow(2).flatten(1).sum(1) - total).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            values = torch.randn(64, 12, 32, 32, device=GPU)
            for layer in reversed(model):
                values = layer.inverse(values)


def langevin() -> None:
    """An energy of images; samples from a buffer on the host walk by its gradient before each step."""
    model = backbone(32, 1).to(GPU)
    optimizer = optim.Adam(model.parameters(), betas=(0.0, 0.999))
    buffer = torch.rand(256, 3, 48, 48)
    for _epoch in range(2):
        for pictures, _ in on_gpu(images(80, 48, batch=32)):
            places = torch.randint(256, (len(pictures),))
            samples = buffer[places].to(GPU)
            for _step in range(20):
                samples = samples.detach().add_(0.005 * torch.randn_like(samples)).requires_grad_()
                (gradient,) = torch.autograd.grad(model(samples).sum(), samples)
                samples = (samples - 10 * gradient.clamp(-0.03, 0.03)).clamp(0, 1)
            samples = samples.detach()
            buffer[places] = samples.cpu()
            real, made = model(pictures), model(samples)
            loss = (real - made).mean() + 0.1 * (real.pow(2) + made.pow(2)).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def critics() -> None:
    """A critic with spectral normalization and a gradient penalty steps five times for each of the generator."""
    critic = nn.Sequential(
        *(nn.utils.spectral_norm(nn.Conv2d(a, b, 4, 2, 1)) for a, b in ((3, 64), (64, 128), (128, 256))),
        nn.Flatten(),
        nn.Linear(256 * 64, 1),
    ).to(GPU)
    generator = nn.Sequential(
        nn.Linear(128, 256 * 64),
        nn.Unflatten(1, (256, 8, 8)),
        *(
            nn.Sequential(nn.ConvTranspose2d(a, b, 4, 2, 1), nn.BatchNorm2d(b), nn.ReLU())
            for a, b in ((256, 128), (128, 64), (64, 32))
        ),
        nn.Conv2d(32, 3, 3, 1, 1),
        nn.Tanh(),
    ).to(GPU)
    first, second = (
        optim.Adam(critic.parameters(), betas=(0.0, 0.9)),
        optim.Adam(generator.parameters(), betas=(0.0, 0.9)),
    )
    for _epoch in range(2):
        for place, (pictures, _) in enumerate(on_gpu(images(320, 64, batch=32))):
            fake = generator(torch.randn(len(pictures), 128, device=GPU)).detach()
            share = torch.rand(len(pictures), 1, 1, 1, device=GPU)
            between = (share * pictures + (1 - share) * fake).requires_grad_()
            scores = critic(between)
            (gradient,) = torch.autograd.grad(scores, between, torch.ones_like(scores), create_graph=True)
            penalty = (gradient.flatten(1).norm(2, 1) - 1).pow(2).mean()
            first.zero_grad()
            (critic(fake).mean() - critic(pictures).mean() + 10 * penalty).backward()
            first.step()
            if place % 5 == 4:
                second.zero_grad()
                (-critic(generator(torch.randn(len(pictures), 128, device=GPU))).mean()).backward()
                second.step()


def style() -> None:
    """L-BFGS on the pixels of one image by the Gram matrices of four layers."""
    layers = backbone(64).to(GPU).eval().requires_grad_(requires_grad=False)[:4]
    content, painting = torch.rand(1, 3, 256, 256).to(GPU), torch.rand(1, 3, 256, 256).to(GPU)

    def features(picture: Tensor) -> list[Tensor]:
        found = []
        for layer in layers:
            picture = layer(picture)
            found.append(picture)
        return found

    def gram(values: Tensor) -> Tensor:
        flat = values.flatten(2)[0]
        return flat @ flat.T / flat.numel()

    wanted, grams = features(content)[2].detach(), [gram(values).detach() for values in features(painting)]
    canvas = content.clone().requires_grad_()
    optimizer = optim.LBFGS([canvas])

    def closure() -> Tensor:
        with torch.no_grad():
            canvas.clamp_(0, 1)
        optimizer.zero_grad()
        found = features(canvas)
        loss = functional.mse_loss(found[2], wanted)
        for values, target in zip(found, grams, strict=True):
            loss = loss + 1e6 * functional.mse_loss(gram(values), target)
        loss.backward()
        return loss

    for _step in range(3):
        optimizer.step(closure)


LOOPS: tuple[Callable[[], None], ...] = (
    *(dino, simclr, barlow, mae, mixup, distill, growing_images, folds, rate_finder, adversarial, sampled_diffusion),
    *(sliding_windows, balanced_tasks, refinement, hard_examples, made_filters, one_image, flow_of_images, langevin),
    *(critics, style),
)

if __name__ == "__main__":
    torch.manual_seed(0)
    {loop.__name__: loop for loop in LOOPS}[sys.argv[1]]()
