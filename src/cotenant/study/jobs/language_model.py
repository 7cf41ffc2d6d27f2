"""Language models on synthetic tokens, for the collocation study: BERT, GPT-2 and a small LLaMA.

Sources: Devlin et al., "BERT" (2019), section 3: base has 12 layers of width 768, 12 heads, 30,522 tokens; Radford et
al., "Language Models are Unsupervised Multitask Learners" (2019), table 2: the smallest has 12 layers of width 768 and
50,257 tokens; Touvron et al., "LLaMA" (2023), section 2.2: RMSNorm before each part, SwiGLU, rotary positions. The
small one here has 12 layers of width 768 and 32,000 tokens, as published ones have no size that fits beside others.
"""

from __future__ import annotations

import argparse
from typing import NamedTuple

import torch
from epoch_log import train
from torch import Tensor, nn

MASKED = 0.15  # of BERT's tokens (section 3.1)
HEAD_WIDTH = 64


class Architecture(NamedTuple):
    """What a model is made of."""

    tokens: int
    layers: int
    width: int
    is_causal: bool
    is_llama: bool


MODELS = {
    "bert": Architecture(30_522, 12, 768, is_causal=False, is_llama=False),
    "gpt2": Architecture(50_257, 12, 768, is_causal=True, is_llama=False),
    "llama": Architecture(32_000, 12, 768, is_causal=True, is_llama=True),
}


class RMSNorm(nn.Module):
    """x / rms(x) * scale over the last dimension."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """The normalized input."""
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.scale


class Attention(nn.Module):
    """Attention with heads of 64: (N, L, width) -> (N, L, width)."""

    def __init__(self, of: Architecture) -> None:
        super().__init__()
        self.of = of
        self.project = nn.Linear(of.width, 3 * of.width, bias=not of.is_llama)
        self.out = nn.Linear(of.width, of.width, bias=not of.is_llama)

    def forward(self, x: Tensor) -> Tensor:
        """What each position takes from the others."""
        n, length, width = x.shape
        parts = self.project(x).view(n, length, 3, width // HEAD_WIDTH, HEAD_WIDTH).permute(2, 0, 3, 1, 4)
        query, key, value = parts
        if self.of.is_llama:
            query, key = rotated(query), rotated(key)
        found = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=self.of.is_causal)
        return self.out(found.transpose(1, 2).reshape(n, length, width))


def rotated(x: Tensor) -> Tensor:
    """Rotary positions: each pair of numbers is turned by an angle that grows with the position."""
    length, width = x.shape[-2:]
    rates = 10_000.0 ** (-torch.arange(0, width, 2, device=x.device) / width)
    angles = torch.arange(length, device=x.device)[:, None] * rates
    first, second = x[..., ::2], x[..., 1::2]
    turned = (first * angles.cos() - second * angles.sin(), first * angles.sin() + second * angles.cos())
    return torch.stack(turned, dim=-1).flatten(-2)


class GatedPerceptron(nn.Module):
    """SwiGLU: down(silu(gate(x)) * up(x)), of two thirds of four times the width."""

    def __init__(self, width: int) -> None:
        super().__init__()
        inner = 8 * width // 3
        self.gate = nn.Linear(width, inner, bias=False)
        self.up = nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(N, L, width) -> (N, L, width)."""
        return self.down(nn.functional.silu(self.gate(x)) * self.up(x))


class TransformerLayer(nn.Module):
    """Attention and a perceptron beside shortcuts; BERT normalizes after them, the others before."""

    def __init__(self, of: Architecture) -> None:
        super().__init__()
        self.is_post_norm = not of.is_causal
        self.attention = Attention(of)
        self.norms = nn.ModuleList(RMSNorm(of.width) if of.is_llama else nn.LayerNorm(of.width) for _ in range(2))
        self.perceptron: nn.Module = (
            GatedPerceptron(of.width)
            if of.is_llama
            else nn.Sequential(nn.Linear(of.width, 4 * of.width), nn.GELU(), nn.Linear(4 * of.width, of.width))
        )

    def forward(self, x: Tensor) -> Tensor:
        """(N, L, width) -> (N, L, width)."""
        for part, norm in zip((self.attention, self.perceptron), self.norms, strict=True):
            x = norm(x + part(x)) if self.is_post_norm else x + part(norm(x))
        return x


class LanguageModel(nn.Module):
    """(N, L) tokens -> (N, L, tokens) logits; the last layer shares the weights of the first."""

    def __init__(self, of: Architecture, length: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(of.tokens, of.width)
        nn.init.normal_(self.embedding.weight, std=0.02)
        self.positions = None if of.is_llama else nn.Parameter(0.02 * torch.randn(length, of.width))
        self.layers = nn.ModuleList(TransformerLayer(of) for _ in range(of.layers))
        self.norm: nn.Module = RMSNorm(of.width) if of.is_llama else nn.LayerNorm(of.width)

    def forward(self, tokens: Tensor) -> Tensor:
        """The logits."""
        x = self.embedding(tokens)
        if self.positions is not None:
            x = x + self.positions
        for layer in self.layers:
            x = layer(x)
        return nn.functional.linear(self.norm(x), self.embedding.weight)


def main() -> None:
    """Train for some epochs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=sorted(MODELS), required=True)
    parser.add_argument("--length", type=int, default=512, help="tokens of a sequence")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--layers", type=int, help="other than those of the model")
    parser.add_argument("--batches", type=int, default=10_000, help="batches per epoch")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    torch.manual_seed(0)
    of = MODELS[options.model]
    of = of._replace(layers=options.layers or of.layers)
    model = LanguageModel(of, options.length).to(options.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    text = torch.randint(0, of.tokens, (options.batch_size, options.length + 1))

    def step(_: int) -> Tensor:
        tokens = text.to(options.device)
        optimizer.zero_grad()
        if of.is_causal:
            logits, targets = model(tokens[:, :-1]), tokens[:, 1:]
        else:
            masked = torch.rand(options.batch_size, options.length, device=options.device) < MASKED
            masked[0, 0] = True  # one at least: the mean over none is not a number
            logits, targets = model(tokens[:, 1:].masked_fill(masked, 0))[masked], tokens[:, 1:][masked]
        loss = nn.functional.cross_entropy(logits.flatten(0, -2), targets.flatten())
        loss.backward()
        optimizer.step()
        return loss

    train(options.epochs, lambda: range(options.batches), step)


if __name__ == "__main__":
    main()
