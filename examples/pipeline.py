"""A decoder in stages, one for each process and GPU: microbatches by GPipe or 1F1B.

torchrun --nproc-per-node 4 examples/pipeline.py --schedule 1f1b
"""

from __future__ import annotations

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

WORDS = 1000
SCHEDULES = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}


class Stage(nn.Module):
    """Some of the blocks; the first also embeds, the last has the head."""

    def __init__(self, rank: int, stages: int, width: int, layers: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, width) if rank == 0 else nn.Identity()
        self.blocks = nn.Sequential(
            *(nn.TransformerEncoderLayer(width, 4, 4 * width, batch_first=True) for _ in range(layers))
        )
        self.head = nn.Linear(width, WORDS) if rank == stages - 1 else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.embed(x)))


def loss_of(scores: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(scores.flatten(0, 1), words.flatten())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--schedule", choices=SCHEDULES, default="1f1b")
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--layers", type=int, default=4, help="in each stage")
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--microbatches", type=int, default=8)
    args = parser.parse_args()

    dist.init_process_group("nccl")
    rank, stages = dist.get_rank(), dist.get_world_size()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    rows = args.batch_size // args.microbatches
    if rank == 0:
        entering = torch.zeros(rows, args.length, dtype=torch.long, device=device)
    else:
        entering = torch.zeros(rows, args.length, args.width, device=device)
    model = Stage(rank, stages, args.width, args.layers).to(device)
    stage = PipelineStage(model, rank, stages, device, input_args=(entering,))
    schedule = SCHEDULES[args.schedule](stage, args.microbatches, loss_fn=loss_of)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    for _ in range(20):
        words = torch.randint(0, WORDS, (args.batch_size, args.length), device=device)
        optimizer.zero_grad()
        if rank == 0:
            schedule.step(words)
        elif rank == stages - 1:
            schedule.step(target=words)
        else:
            schedule.step()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
