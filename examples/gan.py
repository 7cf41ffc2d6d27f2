"""A generator against a critic: transposed convolutions, spectral norm, gradients of gradients, two optimizers.

python examples/gan.py --side 64 --batch-size 64
"""

from __future__ import annotations

import argparse

import torch
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm

NOISE = 128


def generator(width: int, side: int) -> nn.Module:
    layers: list[nn.Module] = [nn.ConvTranspose2d(NOISE, width, 4, bias=False)]
    while side > 8:
        layers += [
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.ConvTranspose2d(width, width // 2, 4, 2, 1, bias=False),
        ]
        width, side = width // 2, side // 2
    layers += [nn.BatchNorm2d(width), nn.ReLU(inplace=True), nn.ConvTranspose2d(width, 3, 4, 2, 1), nn.Tanh()]
    return nn.Sequential(*layers)


def critic(width: int, side: int) -> nn.Module:
    layers: list[nn.Module] = [nn.Conv2d(3, width, 3, padding=1)]
    while side > 4:
        layers += [nn.LeakyReLU(0.2), spectral_norm(nn.Conv2d(width, 2 * width, 4, 2, 1))]
        width, side = 2 * width, side // 2
    return nn.Sequential(*layers, nn.LeakyReLU(0.2), nn.Conv2d(width, 1, 4), nn.Flatten(0))


def penalty(judge: nn.Module, real: torch.Tensor, made: torch.Tensor) -> torch.Tensor:
    """How far the critic's gradient is from length one, between real and made images."""
    share = torch.rand(len(real), 1, 1, 1, device=real.device)
    between = (share * real + (1 - share) * made).requires_grad_()
    (slope,) = torch.autograd.grad(judge(between).sum(), between, create_graph=True)
    return (slope.flatten(1).norm(dim=1) - 1).square().mean()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--side", type=int, default=64)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--critic-steps", type=int, default=2)
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()
    maker, judge = generator(8 * args.width, args.side), critic(args.width, args.side)
    optimizers = [torch.optim.Adam(each.parameters(), 1e-4, (0.0, 0.9)) for each in (maker, judge)]
    maker.to(args.device), judge.to(args.device)  # after the optimizers, which keep their parameters
    for step in range(100):
        for _ in range(args.critic_steps):
            real = torch.rand(args.batch_size, 3, args.side, args.side, device=args.device)
            with torch.no_grad():
                made = maker(torch.randn(args.batch_size, NOISE, 1, 1, device=args.device))
            loss = judge(made).mean() - judge(real).mean() + 10 * penalty(judge, real, made)
            optimizers[1].zero_grad()
            loss.backward()
            optimizers[1].step()
        optimizers[0].zero_grad()
        fooled = -judge(maker(torch.randn(args.batch_size, NOISE, 1, 1, device=args.device))).mean()
        fooled.backward()
        optimizers[0].step()
        print(f"step {step}: {loss.item():.3f} {fooled.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
