"""Training loops that make images: diffusion, flows, energies, critics, one image alone; refinement in iterations.

    python benchmarks/estimator/jobs/synthesis_loops.py langevin

Networks are small; what varies is what a loop keeps, copies, accumulates and evaluates.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable

import torch
from image_parts import CLASSES, GPU, UNet, average, backbone, block, images, on_gpu
from torch import Tensor, nn, optim
from torch.nn import functional


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
    *(sampled_diffusion, refinement, made_filters, one_image, flow_of_images, langevin, critics),
    *(style,),
)  # fmt: skip

if __name__ == "__main__":
    torch.manual_seed(0)
    {loop.__name__: loop for loop in LOOPS}[sys.argv[1]]()
