"""A decoder, one process for each GPU: DDP, bf16 autocast, accumulation with `no_sync`.

torchrun --nproc-per-node 4 examples/ddp.py
torchrun --nproc-per-node 4 examples/ddp.py --shard   # FSDP2 instead: weights, gradients and states in shards
"""

from __future__ import annotations

import argparse
import contextlib
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class Decoder(nn.Module):
    """Embedding, causal blocks, and a head over all words."""

    def __init__(self, words: int, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(self.block(width, heads) for _ in range(layers))
        self.head = nn.Linear(width, words, bias=False)

    @staticmethod
    def block(width: int, heads: int) -> nn.Module:
        return nn.TransformerEncoderLayer(width, heads, 4 * width, activation="gelu", batch_first=True, norm_first=True)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1], device=tokens.device)
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x, src_mask=mask, is_causal=True)
        return self.head(x)


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=8, help="of each process")
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--accumulate", type=int, default=2)
    parser.add_argument("--shard", action="store_true", help="FSDP2")
    return parser.parse_args()


def distribute(model: nn.Module, args: argparse.Namespace, gpu: int) -> nn.Module:
    if not args.shard:
        return DistributedDataParallel(model, device_ids=[gpu], gradient_as_bucket_view=True)
    from torch.distributed.fsdp import fully_shard

    for block in model.blocks:
        fully_shard(block)
    return fully_shard(model)


def main() -> None:
    args = parse_args()
    gpu = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(gpu)
    dist.init_process_group("nccl")

    model = Decoder(words=32_000, width=args.width, layers=args.layers, heads=12).cuda(gpu)
    model = distribute(model, args, gpu)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)

    data = TensorDataset(torch.randint(0, 32_000, (4096, args.length + 1)))
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=args.batch_size, sampler=sampler, num_workers=2, pin_memory=True)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for step, (tokens,) in enumerate(loader, start=1):
            tokens = tokens.cuda(gpu, non_blocking=True)
            last = step % args.accumulate == 0
            waits = contextlib.nullcontext() if last or args.shard else model.no_sync()
            with waits, torch.autocast("cuda", torch.bfloat16):
                scores = model(tokens[:, :-1])
                loss = nn.functional.cross_entropy(scores.flatten(0, 1), tokens[:, 1:].flatten())
                (loss / args.accumulate).backward()
            if last:
                optimizer.step()
                optimizer.zero_grad()
        dist.all_reduce(loss.detach(), op=dist.ReduceOp.AVG)
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: loss {loss.item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
