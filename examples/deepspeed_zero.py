"""Layers under DeepSpeed's own engine: bf16, the states of Adam in fp32, shards by stage of ZeRO.

deepspeed --num_gpus 4 examples/deepspeed_zero.py --stage 3
"""

from __future__ import annotations

import argparse

import deepspeed
import torch
from torch import nn


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--local_rank", type=int, default=0, help="given by DeepSpeed's launcher")
    parser.add_argument("--stage", type=int, choices=[0, 1, 2, 3], default=2)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--bucket", type=int, default=50_000_000, help="numbers in a bucket of gradients")
    args = parser.parse_args()
    layers = [nn.Sequential(nn.Linear(args.width, args.width), nn.GELU()) for _ in range(args.layers)]
    model = nn.Sequential(*layers)
    config = {
        "train_micro_batch_size_per_gpu": args.batch_size,
        "gradient_accumulation_steps": 2,
        "gradient_clipping": 1.0,
        "bf16": {"enabled": True},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "torch_adam": True}},
        "zero_optimization": {"stage": args.stage, "reduce_bucket_size": args.bucket},
    }
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
    for step in range(20):
        x = torch.randn(args.batch_size, args.width, device=engine.device, dtype=torch.bfloat16)
        loss = engine(x).float().square().mean()
        engine.backward(loss)
        engine.step()
        if engine.global_rank == 0:
            print(f"step {step}: {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
