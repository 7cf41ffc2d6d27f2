"""A decoder whose layers choose experts for each token: the router decides how many tokens an expert gets.

python examples/moe.py --experts 8 --chosen 2
"""

from __future__ import annotations

import argparse

import torch
from torch import nn
from torch.nn import functional as F


class Mixture(nn.Module):
    """Tokens (T, D) go to `chosen` of the experts, whose answers are added by weight."""

    def __init__(self, width: int, experts: int, chosen: int) -> None:
        super().__init__()
        self.router = nn.Linear(width, experts, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)) for _ in range(experts)
        )
        self.chosen = chosen

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        shares = self.router(x).softmax(-1)
        weights, places = shares.topk(self.chosen)
        weights = weights / weights.sum(-1, keepdim=True)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            tokens, ranks = torch.where(places == number)
            if len(tokens):
                out.index_add_(0, tokens, weights[tokens, ranks, None] * expert(x[tokens]))
        busy = F.one_hot(places, len(self.experts)).float().mean((0, 1))
        return out, len(self.experts) * (busy * shares.mean(0)).sum()


class Layer(nn.Module):
    """Attention and a mixture."""

    def __init__(self, width: int, heads: int, experts: int, chosen: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mixture = Mixture(width, experts, chosen)
        self.heads = heads

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        q, k, v = self.qkv(self.norms[0](x)).view(*x.shape[:2], 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
        x = x + self.out(seen.reshape(x.shape))
        mixed, balance = self.mixture(self.norms[1](x).flatten(0, 1))
        return x + mixed.view(x.shape), balance


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--experts", type=int, default=8)
    parser.add_argument("--chosen", type=int, default=2)
    parser.add_argument("--words", type=int, default=32_000)
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()
    embed = nn.Embedding(args.words, args.width)
    layers = [Layer(args.width, args.width // 64, args.experts, args.chosen) for _ in range(args.layers)]
    model = nn.ModuleList([embed, *layers, nn.Linear(args.width, args.words)]).to(args.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    for step in range(20):
        tokens = torch.randint(0, args.words, (args.batch_size, args.length), device=args.device)
        x, balances = model[0](tokens), []
        for layer in model[1:-1]:
            x, balance = layer(x)
            balances.append(balance)
        loss = F.cross_entropy(model[-1](x[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        (loss + 0.01 * sum(balances)).backward()
        optimizer.step()
        print(f"step {step}: {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
