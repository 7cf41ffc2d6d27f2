"""Finetunes a model of litgpt on batches of the longest sequences, as the table of its `config_hub` measured it.

All in bf16, weights and states too, on one GPU: LoRA adapters, or all parameters with `--rank 0`.
"""

from __future__ import annotations

import argparse

import litgpt.lora
import litgpt.model
import torch
from litgpt.utils import chunked_cross_entropy

PARTS = ("query", "key", "value", "projection", "mlp", "head")


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="litgpt's name of a configuration")
    parser.add_argument("--rank", type=int, default=32)
    parser.add_argument("--parts", nargs="*", choices=PARTS, default=("query", "value"), help="layers with adapters")
    parser.add_argument("--dropout", type=float, default=0.05)
    parser.add_argument("--batch-size", type=int, default=1)
    parser.add_argument("--accumulate", type=int, default=8)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--steps", type=int, default=4)
    return parser.parse_args()


def build_model(args: argparse.Namespace) -> torch.nn.Module:
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        if args.rank == 0:
            model = litgpt.model.GPT(litgpt.model.Config.from_name(args.model))
        else:
            adapted = {f"lora_{part}": part in args.parts for part in PARTS}
            config = litgpt.lora.Config.from_name(
                args.model, lora_r=args.rank, lora_alpha=16, lora_dropout=args.dropout, **adapted
            )
            model = litgpt.lora.GPT(config)
            litgpt.lora.mark_only_lora_as_trainable(model)
        model.max_seq_length = args.length
    return model


def main() -> None:
    args = parse_args()
    model = build_model(args)
    optimizer = torch.optim.AdamW([weight for weight in model.parameters() if weight.requires_grad], lr=2e-4)
    model.train()
    for step in range(args.steps):
        for _ in range(args.accumulate):
            tokens = torch.randint(0, 1000, (args.batch_size, args.length)).to("cuda")
            targets = torch.randint(0, 1000, (args.batch_size, args.length)).to("cuda")
            if args.rank == 0:
                loss = chunked_cross_entropy(model(tokens)[..., :-1, :], targets[..., 1:])
            else:
                logits = model(tokens, lm_head_chunk_size=128)
                logits[-1] = logits[-1][..., :-1, :]
                loss = chunked_cross_entropy(logits, targets[..., 1:])
            (loss / args.accumulate).backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step}", flush=True)


if __name__ == "__main__":
    main()
