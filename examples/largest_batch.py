"""A script that fits its batch to the card: by what is free at first, then by halves when memory runs out.

python examples/largest_batch.py --share 0.5
"""

from __future__ import annotations

import argparse
import gc

import torch
from torch import nn


def train(batch_size: int, width: int, steps: int) -> None:
    model = nn.Sequential(*[nn.Linear(width, width) for _ in range(4)]).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(steps):
        loss = model(torch.randn(batch_size, width, device="cuda")).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        held = torch.cuda.max_memory_allocated() / 2**30
        print(f"step {step}: {loss.item():.3f}, {held:.2f} GiB so far", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=4096)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--share", type=float, help="of the card that this process may take")
    args = parser.parse_args()
    if args.share is not None:
        torch.cuda.set_per_process_memory_fraction(args.share)
    free, total = torch.cuda.mem_get_info()
    batch_size = 1 << (free // (4 * args.width)).bit_length() - 1
    print(f"{free / 2**30:.1f} of {total / 2**30:.1f} GiB free: beginning with {batch_size}")
    while batch_size:
        try:
            train(batch_size, args.width, args.steps)
            break
        except torch.cuda.OutOfMemoryError as error:
            print(f"{batch_size} is too much: {error}")
        gc.collect()
        torch.cuda.empty_cache()
        batch_size //= 2
    print(f"trained with {batch_size}")


if __name__ == "__main__":
    main()
