"""Training loops of applied vision: detection, point clouds, flow, volumes, few examples.

    python benchmarks/estimator/jobs/applied_vision_loops.py detector

Networks are small; each loop is written as papers of its field publish theirs.
"""

from __future__ import annotations

import copy
import itertools
import math
import sys
from collections.abc import Callable

import torch
from torch import Tensor, nn, optim
from torch.func import functional_call
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

GPU = torch.device("cuda")


def conv(inputs: int, outputs: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, stride, 1), nn.BatchNorm2d(outputs), nn.SiLU())


def perceptron(*widths: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def detector() -> None:
    """One-stage detector on three scales, in half precision, with warm-up, averaged weights and a validation."""

    class Detector(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Sequential(conv(3, 32, 2), conv(32, 64, 2), conv(64, 64))
            self.stages = nn.ModuleList([conv(64, 128, 2), conv(128, 256, 2), conv(256, 256, 2)])
            self.heads = nn.ModuleList([nn.Conv2d(width, 3 * 25, 1) for width in (128, 256, 256)])

        def forward(self, images: Tensor) -> list[Tensor]:
            found, x = [], self.stem(images)
            for stage, head in zip(self.stages, self.heads, strict=True):
                x = stage(x)
                batch, _, height, width = x.shape
                found.append(head(x).view(batch, 3, 25, height, width).permute(0, 1, 3, 4, 2).contiguous())
            return found

    model = Detector().to(GPU)
    average = copy.deepcopy(model).eval()
    biases = [value for name, value in model.named_parameters() if name.endswith("bias")]
    weights = [value for name, value in model.named_parameters() if not name.endswith("bias")]
    optimizer = optim.SGD(weights, lr=0.01, momentum=0.937, nesterov=True)
    optimizer.add_param_group({"params": biases})
    scaler = torch.amp.GradScaler("cuda")
    data = DataLoader(TensorDataset(torch.randint(255, (64, 3, 256, 256), dtype=torch.uint8)), 8, drop_last=True)
    for _epoch in range(2):
        model.train()
        for step, (images,) in enumerate(data):
            images = images.to(GPU, non_blocking=True).float() / 255
            boxes = torch.rand(40, 6).to(GPU)
            with torch.autocast("cuda"):
                loss = torch.zeros(1, device=GPU)
                for found in model(images):
                    rows = torch.arange(40, device=GPU) % images.shape[0]
                    cells = (boxes[:, 2:4] * found.shape[2]).long()
                    chosen = found[rows, rows % 3, cells[:, 1], cells[:, 0]]
                    wanted = torch.zeros_like(found[..., 0])
                    wanted[rows, rows % 3, cells[:, 1], cells[:, 0]] = 1
                    loss += functional.mse_loss(chosen[:, :4].sigmoid(), boxes[:, 2:])
                    loss += functional.binary_cross_entropy_with_logits(found[..., 4], wanted)
                    loss += functional.cross_entropy(chosen[:, 5:], boxes[:, 1].long())
            scaler.scale(loss).backward()
            if step % 2:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), 10.0)
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
                with torch.no_grad():
                    for old, new in zip(average.state_dict().values(), model.state_dict().values(), strict=True):
                        if old.dtype.is_floating_point:
                            old.mul_(0.99).add_(new.detach(), alpha=0.01)
        half = copy.deepcopy(average).half()
        with torch.no_grad():
            for (images,) in data:
                found = half(images.to(GPU).half() / 255)
                flat = torch.cat([scale.flatten(1, 3).sigmoid() for scale in found], 1)
                scores, _ = flat[..., 5:].max(-1)
                scores.topk(300, 1)


def point_cloud() -> None:
    """PointNet++: farthest points, balls around them, and shared perceptrons."""

    def distances(a: Tensor, b: Tensor) -> Tensor:
        return (a.unsqueeze(2) - b.unsqueeze(1)).pow(2).sum(-1)

    def farthest(points: Tensor, count: int) -> Tensor:
        batch, size, _ = points.shape
        chosen = torch.zeros(batch, count, dtype=torch.long, device=points.device)
        distance = torch.full((batch, size), 1e10, device=points.device)
        newest = torch.randint(0, size, (batch,), device=points.device)
        rows = torch.arange(batch, device=points.device)
        for index in range(count):
            chosen[:, index] = newest
            center = points[rows, newest].view(batch, 1, 3)
            distance = torch.min(distance, (points - center).pow(2).sum(-1))
            newest = distance.max(-1).indices
        return chosen

    def gather(values: Tensor, index: Tensor) -> Tensor:
        rows = torch.arange(values.shape[0], device=values.device).view(-1, *[1] * (index.dim() - 1))
        return values[rows.expand_as(index), index]

    first, second = (
        nn.Sequential(nn.Conv2d(3, 64, 1), nn.BatchNorm2d(64), nn.ReLU(), nn.Conv2d(64, 128, 1)).to(GPU),
        nn.Sequential(nn.Conv2d(131, 128, 1), nn.BatchNorm2d(128), nn.ReLU(), nn.Conv2d(128, 256, 1)).to(GPU),
    )
    head = perceptron(256, 128, 40).to(GPU)
    networks = nn.ModuleList([first, second, head])
    optimizer = optim.Adam(networks.parameters(), 1e-3, weight_decay=1e-4)
    schedule = optim.lr_scheduler.StepLR(optimizer, 2, 0.7)
    loader = DataLoader(TensorDataset(torch.randn(40, 1024, 3), torch.randint(40, (40,))), 8, shuffle=True)
    for _epoch in range(2):
        for points, labels in loader:
            points, labels = points.to(GPU), labels.to(GPU)
            features: Tensor | None = None
            for network, count, around in ((first, 128, 32), (second, 32, 16)):
                centers = gather(points, farthest(points, count))
                nearest = distances(centers, points).sort(-1)[1][:, :, :around]
                local = gather(points, nearest) - centers.unsqueeze(2)
                grouped = local if features is None else torch.cat([local, gather(features, nearest)], -1)
                features = network(grouped.permute(0, 3, 2, 1)).max(2)[0].transpose(1, 2)
                points = centers
            assert features is not None
            loss = functional.cross_entropy(head(features.max(1)[0]), labels, label_smoothing=0.2)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        schedule.step()


def optical_flow() -> None:
    """RAFT: a correlation of all pairs, a pyramid of it, and a recurrent update that looks up windows."""
    features = nn.Sequential(conv(3, 64, 2), conv(64, 96, 2), nn.Conv2d(96, 128, 3, 2, 1)).to(GPU)
    context = nn.Sequential(conv(3, 64, 2), conv(64, 96, 2), nn.Conv2d(96, 192, 3, 2, 1)).to(GPU)
    motion = nn.Sequential(nn.Conv2d(2 * 49 + 2, 96, 1), nn.ReLU(), nn.Conv2d(96, 94, 3, 1, 1)).to(GPU)
    gates = nn.Conv2d(96 + 96 + 96, 192, 3, 1, 1).to(GPU)
    candidate = nn.Conv2d(96 + 96 + 96, 96, 3, 1, 1).to(GPU)
    flow_head = nn.Conv2d(96, 2, 3, 1, 1).to(GPU)
    parts = nn.ModuleList([features, context, motion, gates, candidate, flow_head])
    optimizer = optim.AdamW(parts.parameters(), 4e-4, weight_decay=1e-5)
    schedule = optim.lr_scheduler.OneCycleLR(optimizer, 4e-4, 110)
    window = torch.stack(torch.meshgrid(torch.arange(-3, 4), torch.arange(-3, 4), indexing="ij"), -1).float().to(GPU)
    for _step in range(6):
        one, two = torch.rand(2, 3, 192, 256).to(GPU), torch.rand(2, 3, 192, 256).to(GPU)
        wanted = torch.rand(2, 2, 192, 256).to(GPU)
        a, b = features(torch.cat([one, two])).chunk(2)
        batch, width, rows, columns = a.shape
        volume = torch.einsum("bcn,bcm->bnm", a.flatten(2), b.flatten(2)) / math.sqrt(width)
        levels = [volume.view(batch * rows * columns, 1, rows, columns)]
        levels.append(functional.avg_pool2d(levels[0], 2))
        hidden, inputs = context(one).split(96, 1)
        hidden, inputs = hidden.tanh(), inputs.relu()
        y, x = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
        start = torch.stack([x, y]).float().to(GPU).expand(batch, -1, -1, -1)
        place, loss = start.clone(), torch.zeros((), device=GPU)
        for turn in range(6):
            place = place.detach()
            found = []
            for level, scale in zip(levels, (1, 2), strict=True):
                center = place.permute(0, 2, 3, 1).reshape(-1, 1, 1, 2) / scale
                spots = center + window
                size = torch.tensor([level.shape[3] - 1, level.shape[2] - 1], device=GPU)
                looked = functional.grid_sample(level, 2 * spots / size - 1, align_corners=True)
                found.append(looked.view(batch, rows, columns, 49))
            looked_up = torch.cat(found, -1).permute(0, 3, 1, 2)
            moved = torch.cat([motion(torch.cat([looked_up, place - start], 1)), place - start], 1)
            update, reset = gates(torch.cat([hidden, inputs, moved], 1)).sigmoid().chunk(2, 1)
            new = candidate(torch.cat([reset * hidden, inputs, moved], 1)).tanh()
            hidden = (1 - update) * hidden + update * new
            place = place + flow_head(hidden)
            full = 8 * functional.interpolate(place - start, scale_factor=8, mode="bilinear", align_corners=True)
            loss = loss + 0.8 ** (5 - turn) * (full - wanted).abs().mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(parts.parameters(), 1.0)
        optimizer.step()
        schedule.step()


def super_resolution() -> None:
    """A generator with pixel shuffles against a discriminator, a frozen network's features, fp16 for both."""
    generator = nn.Sequential(conv(3, 64), *(conv(64, 64) for _ in range(6)), nn.Conv2d(64, 256, 3, 1, 1),
                              nn.PixelShuffle(2), nn.PReLU(), nn.Conv2d(64, 256, 3, 1, 1), nn.PixelShuffle(2),
                              nn.PReLU(), nn.Conv2d(64, 3, 9, 1, 4)).to(GPU)  # fmt: skip
    judge = nn.Sequential(conv(3, 64, 2), conv(64, 128, 2), conv(128, 256, 2), nn.AdaptiveAvgPool2d(4), nn.Flatten(),
                          nn.Linear(4096, 512), nn.LeakyReLU(0.2), nn.Linear(512, 1)).to(GPU)  # fmt: skip
    features = nn.Sequential(conv(3, 64), nn.MaxPool2d(2), conv(64, 128), nn.MaxPool2d(2), conv(128, 256)).to(GPU)
    features.eval().requires_grad_(requires_grad=False)
    makes, judges = optim.Adam(generator.parameters(), 1e-4), optim.Adam(judge.parameters(), 1e-4)
    scale_one, scale_two = torch.amp.GradScaler("cuda"), torch.amp.GradScaler("cuda")
    loader = DataLoader(TensorDataset(torch.rand(24, 3, 96, 96)), 8, shuffle=True, pin_memory=True)
    for epoch in range(2):
        for (sharp,) in loader:
            sharp = sharp.to(GPU, non_blocking=True)
            coarse = functional.interpolate(sharp, scale_factor=0.25, mode="bicubic")
            judges.zero_grad(set_to_none=True)
            with torch.autocast("cuda", dtype=torch.float16):
                made = generator(coarse)
                real, fake = judge(sharp), judge(made.detach())
                loss = functional.binary_cross_entropy_with_logits(real, torch.ones_like(real))
                loss = loss + functional.binary_cross_entropy_with_logits(fake, torch.zeros_like(fake))
            scale_two.scale(loss).backward()
            scale_two.step(judges)
            scale_two.update()
            makes.zero_grad(set_to_none=True)
            with torch.autocast("cuda", dtype=torch.float16):
                score = judge(made)
                loss = functional.l1_loss(features(made), features(sharp).detach())
                loss = loss + 1e-3 * functional.binary_cross_entropy_with_logits(score, torch.ones_like(score))
            scale_one.scale(loss).backward()
            scale_one.step(makes)
            scale_one.update()
        generator.eval()
        with torch.inference_mode():
            for _picture in range(2):
                wide = generator(torch.rand(1, 3, 80, 120).to(GPU)).clamp(0, 1)
                print(epoch, functional.mse_loss(wide, torch.rand_like(wide)).item())
        generator.train()


def segmentation_3d() -> None:
    """A 3-D U-Net with deep supervision, Dice and cross-entropy, SGD with Nesterov, windows over a volume."""

    def pair(inputs: int, outputs: int) -> nn.Sequential:
        return nn.Sequential(
            nn.Conv3d(inputs, outputs, 3, padding=1), nn.InstanceNorm3d(outputs, affine=True),
            nn.LeakyReLU(0.01, inplace=True),
            nn.Conv3d(outputs, outputs, 3, padding=1), nn.InstanceNorm3d(outputs, affine=True),
            nn.LeakyReLU(0.01, inplace=True),
        )  # fmt: skip

    class Volumes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two, self.three = pair(1, 16), pair(16, 32), pair(32, 64)
            self.up_two, self.up_one = nn.ConvTranspose3d(64, 32, 2, 2), nn.ConvTranspose3d(32, 16, 2, 2)
            self.back_two, self.back_one = pair(64, 32), pair(32, 16)
            self.heads = nn.ModuleList([nn.Conv3d(16, 4, 1), nn.Conv3d(32, 4, 1)])

        def forward(self, x: Tensor) -> list[Tensor]:
            one = self.one(x)
            two = self.two(functional.max_pool3d(one, 2))
            three = self.three(functional.max_pool3d(two, 2))
            two = self.back_two(torch.cat([self.up_two(three), two], 1))
            one = self.back_one(torch.cat([self.up_one(two), one], 1))
            return [head(part) for head, part in zip(self.heads, (one, two), strict=True)]

    model = Volumes().to(GPU)
    optimizer = optim.SGD(model.parameters(), 0.01, momentum=0.99, nesterov=True, weight_decay=3e-5)
    schedule = optim.lr_scheduler.PolynomialLR(optimizer, 10)
    for _epoch in range(2):
        model.train()
        for _step in range(4):
            volume, labels = torch.randn(2, 1, 48, 48, 48).to(GPU), torch.randint(4, (2, 48, 48, 48)).to(GPU)
            loss = torch.zeros((), device=GPU)
            for weight, out in zip((1.0, 0.5), model(volume), strict=True):
                wanted = labels if out.shape[-1] == 48 else labels[:, ::2, ::2, ::2]
                chances, hot = out.softmax(1), functional.one_hot(wanted, 4).movedim(-1, 1).float()
                axes = (2, 3, 4)
                dice = (2 * (chances * hot).sum(axes) + 1e-5) / (chances.sum(axes) + hot.sum(axes) + 1e-5)
                loss = loss + weight * (functional.cross_entropy(out, wanted) - dice.mean())
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 12)
            optimizer.step()
        schedule.step()
        model.eval()
        with torch.no_grad():
            whole = torch.randn(1, 1, 96, 96, 96).to(GPU)
            total, count = torch.zeros(1, 4, 96, 96, 96, device=GPU), torch.zeros(1, 1, 96, 96, 96, device=GPU)
            for x in (0, 24, 48):
                for y in (0, 24, 48):
                    for z in (0, 24, 48):
                        window = (slice(None), slice(None), slice(x, x + 48), slice(y, y + 48), slice(z, z + 48))
                        total[window] += model(whole[window])[0].softmax(1)
                        count[window] += 1
            (total / count).argmax(1).to(torch.uint8).cpu()


def few_shots() -> None:
    """MAML of second order: adapted weights by `functional_call`, tasks accumulated, more steps at the test."""
    model = nn.Sequential(conv(1, 32, 2), conv(32, 32, 2), nn.Flatten(), nn.Linear(32 * 49, 5)).to(GPU)
    for part in model.modules():
        if isinstance(part, nn.BatchNorm2d):
            part.track_running_stats, part.running_mean, part.running_var = False, None, None
    outer = optim.Adam(model.parameters(), 1e-3)

    def adapt(images: Tensor, labels: Tensor, steps: int, *, differentiable: bool) -> dict[str, Tensor]:
        weights = dict(model.named_parameters())
        for _ in range(steps):
            loss = functional.cross_entropy(functional_call(model, weights, (images,)), labels)
            slopes = torch.autograd.grad(loss, list(weights.values()), create_graph=differentiable)
            weights = {name: value - 0.4 * slope for (name, value), slope in zip(weights.items(), slopes, strict=True)}
        return weights

    for step in range(4):
        outer.zero_grad()
        for _task in range(4):
            images, labels = torch.randn(25, 1, 28, 28).to(GPU), torch.randint(5, (25,)).to(GPU)
            weights = adapt(images, labels, 3, differentiable=True)
            queries, wanted = torch.randn(75, 1, 28, 28).to(GPU), torch.randint(5, (75,)).to(GPU)
            (functional.cross_entropy(functional_call(model, weights, (queries,)), wanted) / 4).backward()
        outer.step()
        if step % 2:
            for _task in range(2):
                images, labels = torch.randn(25, 1, 28, 28).to(GPU), torch.randint(5, (25,)).to(GPU)
                weights = adapt(images, labels, 10, differentiable=False)
                with torch.no_grad():
                    functional_call(model, weights, (torch.randn(75, 1, 28, 28).to(GPU),)).argmax(1).cpu()


def sharp_minima() -> None:
    """Sharpness-aware minimization: two passes a step, with the old weights restored, and label smoothing."""
    model = nn.Sequential(conv(3, 64), conv(64, 128, 2), conv(128, 256, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
                          nn.Linear(256, 100)).to(GPU)  # fmt: skip
    optimizer = optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=5e-4)
    saved: dict[Tensor, Tensor] = {}
    loader = DataLoader(TensorDataset(torch.randn(100, 3, 32, 32), torch.randint(100, (100,))), 32, shuffle=True)
    for _epoch in range(2):
        for images, labels in loader:
            images, labels = images.to(GPU), labels.to(GPU)
            functional.cross_entropy(model(images), labels, label_smoothing=0.1).backward()
            norms = [value.grad.norm() for value in model.parameters() if value.grad is not None]
            scale = 0.05 / (torch.stack(norms).norm() + 1e-12)
            with torch.no_grad():
                for value in model.parameters():
                    if value.grad is not None:
                        saved[value] = value.clone()
                        value.add_(value.grad * scale)
            optimizer.zero_grad()
            functional.cross_entropy(model(images), labels, label_smoothing=0.1).backward()
            with torch.no_grad():
                for value in model.parameters():
                    value.data = saved[value]
            optimizer.step()
            optimizer.zero_grad()


LOOPS: tuple[Callable[[], None], ...] = (
    detector,
    point_cloud,
    optical_flow,
    super_resolution,
    segmentation_3d,
    few_shots,
    sharp_minima,
)

if __name__ == "__main__":
    torch.manual_seed(0)
    {loop.__name__: loop for loop in LOOPS}[sys.argv[1]]()
