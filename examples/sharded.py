"""The ways to spread one model over several GPUs, one process for each: ZeRO 1 to 3, FSDP, tensors in parallel.

torchrun --nproc-per-node 4 examples/sharded.py --how zero1   # zero2, zero3, fsdp1, fsdp2, tp, ddp-static, ddp-unused
python examples/sharded.py --how spawn                        # starts its own processes, DDP
python examples/sharded.py --how data-parallel                # one process for all GPUs
"""

from __future__ import annotations

import argparse
import functools
import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

HOW = ["zero1", "zero2", "zero3", "fsdp1", "fsdp2", "tp", "ddp-static", "ddp-unused", "spawn", "data-parallel"]


class Block(nn.Module):
    """A layer of four times the width, and back."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


def spread(model: nn.Sequential, how: str) -> tuple[nn.Module, torch.optim.Optimizer]:
    """The model as this process has it, and its optimizer."""
    if how == "zero1":
        from torch.distributed.optim import ZeroRedundancyOptimizer

        wrapped = DistributedDataParallel(model)
        return wrapped, ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-3)
    if how in {"zero2", "zero3", "fsdp1"}:  # sharded: gradients and states; weights as well
        from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy
        from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy

        policy = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={Block})
        strategy = ShardingStrategy.SHARD_GRAD_OP if how == "zero2" else ShardingStrategy.FULL_SHARD
        model = FullyShardedDataParallel(
            model, auto_wrap_policy=policy, sharding_strategy=strategy, device_id=torch.cuda.current_device()
        )
    elif how == "fsdp2":
        from torch.distributed.fsdp import fully_shard

        for block in model:
            fully_shard(block)
        fully_shard(model)
    elif how == "tp":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

        mesh = init_device_mesh("cuda", (dist.get_world_size(),))
        for block in model:
            parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    elif how == "data-parallel":
        model = nn.DataParallel(model)
    else:
        model = DistributedDataParallel(
            model, static_graph=how == "ddp-static", find_unused_parameters=how == "ddp-unused", bucket_cap_mb=50
        )
    together = None if how != "tp" else False  # parts of tensors and whole ones do not go together
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=together)


def work(rank: int, size: int, args: argparse.Namespace) -> None:
    if args.how == "spawn":
        os.environ.update(MASTER_ADDR="localhost", MASTER_PORT="29511")
        dist.init_process_group("nccl", rank=rank, world_size=size)
    elif args.how != "data-parallel":
        dist.init_process_group("nccl")
    torch.cuda.set_device(rank)
    model = nn.Sequential(*[Block(args.width) for _ in range(args.layers)]).cuda()
    model, optimizer = spread(model, args.how)
    for step in range(10):
        loss = model(torch.randn(args.batch_size, args.width, device="cuda")).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0:
            print(f"step {step}: {loss.item():.3f}", flush=True)
    if dist.is_initialized():
        dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--how", choices=HOW, default="fsdp2")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--layers", type=int, default=8)
    args = parser.parse_args()
    if args.how == "spawn":
        mp.spawn(work, args=(torch.cuda.device_count(), args), nprocs=torch.cuda.device_count())
    else:
        work(int(os.environ.get("LOCAL_RANK", "0")), 0, args)


if __name__ == "__main__":
    main()
