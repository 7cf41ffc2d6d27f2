"""A small language model with a cache of keys and values, and texts, for the training loops of texts.

A module of its own: two scripts import it.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

WORDS = 8000
GPU = "cuda"


class Language(nn.Module):
    """A causal Transformer with tied embeddings, which takes and gives keys and values of the past."""

    def __init__(self, width: int = 256, layers: int = 4, heads: int = 4) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(WORDS, width), nn.Embedding(1024, width)
        self.layers = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)

    def hidden(
        self, tokens: Tensor, past: list[tuple[Tensor, Tensor]] | None = None, mask: Tensor | None = None
    ) -> Tensor:
        start = past[0][0].shape[2] if past else 0
        values = self.embed(tokens) + self.place(torch.arange(start, start + tokens.shape[1], device=tokens.device))
        for index, layer in enumerate(self.layers):
            values = layer(values, past, index, mask)
        return self.norm(values)

    def forward(
        self, tokens: Tensor, past: list[tuple[Tensor, Tensor]] | None = None, mask: Tensor | None = None
    ) -> Tensor:
        return functional.linear(self.hidden(tokens, past, mask), self.embed.weight)


class Block(nn.Module):
    """Attention and two wide layers, before each a norm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.inputs, self.output = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(
        self, values: Tensor, past: list[tuple[Tensor, Tensor]] | None, index: int, mask: Tensor | None
    ) -> Tensor:
        batch, length, width = values.shape
        parts = self.inputs(self.first(values)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        query, key, value = parts.unbind(0)
        if past is not None:
            if index < len(past):
                key, value = torch.cat([past[index][0], key], 2), torch.cat([past[index][1], value], 2)
                past[index] = key, value
            else:
                past.append((key, value))
        is_causal = mask is None and length > 1
        mixed = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=is_causal)
        values = values + self.output(mixed.transpose(1, 2).reshape(batch, length, width))
        return values + self.wide(self.second(values))


def tokens(count: int, length: int, batch: int = 8) -> DataLoader[tuple[Tensor, ...]]:
    return DataLoader(TensorDataset(torch.randint(WORDS, (count, length))), batch, shuffle=True)
