"""A decoder whose attention takes different kernels: causal, under a mask of padding, by a chosen one, in a window.

python examples/attention.py --how causal --dtype bfloat16 --compile
python examples/attention.py --how padded --dtype float32
"""

from __future__ import annotations

import argparse

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

HOW = ["causal", "padded", "grouped", "math", "efficient", "window"]


class Attention(nn.Module):
    """Heads that share keys and values in groups where asked to."""

    def __init__(self, width: int, heads: int, how: str) -> None:
        super().__init__()
        self.how, self.heads = how, heads
        self.groups = max(1, heads // 4) if how == "grouped" else heads
        self.q = nn.Linear(width, width, bias=False)
        self.kv = nn.Linear(width, 2 * width * self.groups // heads, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        lead = x.shape[:2]
        q = self.q(x).view(*lead, self.heads, -1).transpose(1, 2)
        k, v = self.kv(x).view(*lead, 2, self.groups, -1).permute(2, 0, 3, 1, 4)
        return self.out(self.attend(q, k, v, mask).transpose(1, 2).reshape(*lead, -1))

    def attend(self, q, k, v, mask):
        if self.how == "padded":
            return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        if self.how == "grouped":
            return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        if self.how == "window":
            return windowed(q, k, v)
        if self.how in {"math", "efficient"}:
            wanted = SDPBackend.MATH if self.how == "math" else SDPBackend.EFFICIENT_ATTENTION
            with sdpa_kernel(wanted):
                return F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def windowed(q, k, v, size: int = 128):
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    def near(_batch, _head, row, column):
        return (row >= column) & (row - column < size)

    mask = create_block_mask(near, None, None, q.shape[-2], k.shape[-2], device=q.device)
    return torch.compile(flex_attention)(q, k, v, block_mask=mask)


class Decoder(nn.Module):
    """Attention after attention."""

    def __init__(self, width: int, layers: int, how: str) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Attention(width, width // 64, how) for _ in range(layers))
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(layers))

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = x + layer(norm(x), mask)
        return x


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--how", choices=HOW, default="causal")
    parser.add_argument("--dtype", choices=["float32", "bfloat16", "float16"], default="bfloat16")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()
    model = Decoder(args.width, args.layers, args.how).to(args.device, getattr(torch, args.dtype))
    if args.compile:
        model = torch.compile(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    real = torch.arange(args.length, device=args.device) < args.length - 10
    mask = (real & torch.ones(args.length, args.length, dtype=torch.bool, device=args.device).tril())[None, None]
    for step in range(10):
        x = torch.randn(args.batch_size, args.length, args.width, device=args.device, dtype=getattr(torch, args.dtype))
        loss = model(x, mask).float().square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step}: {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
