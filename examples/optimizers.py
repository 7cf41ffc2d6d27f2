"""One network under many optimizers: as PyTorch chooses, by loops, fused, for CUDA graphs; others' and 8-bit ones.

python examples/optimizers.py --optimizer adamw --kind fused --zero-grad to-zero
python examples/optimizers.py --optimizer lion
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable

import torch
from torch import nn

KINDS = {
    "default": {},
    "for-loop": {"foreach": False},
    "foreach": {"foreach": True},
    "fused": {"fused": True},
    "capturable": {"capturable": True},
}
TORCHS = {
    "sgd": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
    "adam": (torch.optim.Adam, {}),
    "adamw": (torch.optim.AdamW, {}),
    "amsgrad": (torch.optim.AdamW, {"amsgrad": True}),
    "rmsprop": (torch.optim.RMSprop, {"momentum": 0.9, "centered": True}),
    "adagrad": (torch.optim.Adagrad, {}),
    "adadelta": (torch.optim.Adadelta, {}),
    "nadam": (torch.optim.NAdam, {}),
}


class Lion(torch.optim.Optimizer):
    """Signs of a momentum, as many people have in a file of their own (Chen and others, arXiv 2302.06675)."""

    def __init__(self, params: Iterable[nn.Parameter], lr: float = 1e-4, betas: tuple[float, float] = (0.9, 0.99)):
        super().__init__(params, {"lr": lr, "betas": betas})

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            first, second = group["betas"]
            for each in group["params"]:
                if each.grad is None:
                    continue
                momentum = self.state[each].setdefault("momentum", torch.zeros_like(each))
                update = momentum.clone().mul_(first).add_(each.grad, alpha=1 - first).sign_()
                each.add_(update, alpha=-group["lr"])
                momentum.lerp_(each.grad, 1 - second)


def make(name: str, kind: str, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    if name == "lion":
        return Lion(parameters)
    if name == "adafactor":
        return torch.optim.Adafactor(parameters)
    if name == "adamw8bit":
        import bitsandbytes

        return bitsandbytes.optim.AdamW8bit(parameters, lr=1e-3)
    cls, options = TORCHS[name]
    return cls(parameters, **options, **KINDS[kind])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--optimizer", choices=[*TORCHS, "adafactor", "lion", "adamw8bit"], default="adamw")
    parser.add_argument("--kind", choices=KINDS, default="default")
    parser.add_argument("--zero-grad", choices=["before", "after", "to-zero"], default="before")
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()
    layers = [nn.Sequential(nn.Linear(args.width, args.width), nn.GELU()) for _ in range(args.layers)]
    model = nn.Sequential(*layers).to(args.device)
    optimizer = make(args.optimizer, args.kind, list(model.parameters()))
    for step in range(10):
        if args.zero_grad == "before":
            optimizer.zero_grad()
        loss = model(torch.randn(args.batch_size, args.width, device=args.device)).square().mean()
        loss.backward()
        optimizer.step()
        if args.zero_grad != "before":
            optimizer.zero_grad(set_to_none=args.zero_grad == "after")
        print(f"step {step}: {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
