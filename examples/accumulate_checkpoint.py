"""A decoder with gradient accumulation and activation checkpointing, on random token ids. Needs torch alone."""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset


class Block(nn.Module):
    """Causal self-attention and a feed-forward layer, each on a normalized input."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_attention = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm_feed = nn.LayerNorm(width)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """`tokens` and the result: batch, length, width."""
        batch, length, width = tokens.shape
        qkv = self.qkv(self.norm_attention(tokens)).view(batch, length, 3, self.heads, width // self.heads)
        queries, keys, values = qkv.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        tokens = tokens + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return tokens + self.feed(self.norm_feed(tokens))


class Decoder(nn.Module):
    """A stack of blocks; with `checkpointed`, a block's activations are computed again in the backward pass."""

    def __init__(self, args: argparse.Namespace) -> None:
        super().__init__()
        self.checkpointed = not args.no_checkpoint
        self.embed = nn.Embedding(args.vocabulary, args.width)
        self.positions = nn.Parameter(torch.zeros(args.seq_len, args.width))
        self.blocks = nn.ModuleList([Block(args.width, args.heads) for _ in range(args.layers)])
        self.norm = nn.LayerNorm(args.width)
        self.head = nn.Linear(args.width, args.vocabulary, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Logits of every word of the vocabulary at every place."""
        tokens = self.embed(ids) + self.positions[: ids.shape[1]]
        for block in self.blocks:
            tokens = checkpoint(block, tokens, use_reentrant=False) if self.checkpointed else block(tokens)
        return self.head(self.norm(tokens))


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--vocabulary", type=int, default=32_000)
    parser.add_argument("--seq-len", type=int, default=1024)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--accumulate", type=int, default=4, help="batches for each optimizer step")
    parser.add_argument("--no-checkpoint", action="store_true")
    parser.add_argument("--sequences", type=int, default=512)
    parser.add_argument("--device", default="cuda")
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    device = torch.device(args.device)
    torch.manual_seed(0)
    tokens = torch.randint(args.vocabulary, (args.sequences, args.seq_len + 1))
    loader = DataLoader(TensorDataset(tokens), batch_size=args.batch_size, shuffle=True, drop_last=True)

    model = Decoder(args).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)

    optimizer.zero_grad()
    for step, (ids,) in enumerate(loader, start=1):
        ids = ids.to(device)
        logits = model(ids[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        (loss / args.accumulate).backward()
        if step % args.accumulate == 0:
            optimizer.step()
            optimizer.zero_grad()
            print(f"step {step // args.accumulate}: loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
