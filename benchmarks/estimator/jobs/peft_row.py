"""Trains Llama-3.2-3B in bfloat16 with a PEFT adapter, as PEFT's method comparison on MetaMathQA does.

Batches of four sequences, AdamW, gradients clipped to norm 1, cosine schedule, `empty_cache` every ten steps. All
sequences have the length of the longest batch; the published runs draw theirs from the data set.
"""

from __future__ import annotations

import argparse
import json

import peft
import torch
import transformers
from torch.utils.data import DataLoader, Dataset


class Texts(Dataset):
    """Token sequences padded to one length; every fourth fills it."""

    def __init__(self, count: int, length: int) -> None:
        self.count, self.length = count, length

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        length = self.length if index % 4 == 0 else self.length * (2 + index % 4) // 8
        is_word = torch.arange(self.length) < length
        tokens = torch.randint(1000, 20000, (self.length,))
        return {"input_ids": tokens.where(is_word, 0), "attention_mask": is_word.long()}


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--adapter", default='{"peft_type": "LORA", "r": 32, "lora_alpha": 64}', help="as JSON")
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--device", default="cuda")
    return parser.parse_args()


def build_model(adapter: dict[str, object], device: torch.device) -> torch.nn.Module:
    config = transformers.LlamaConfig(
        vocab_size=128256,
        hidden_size=3072,
        intermediate_size=8192,
        num_hidden_layers=28,
        num_attention_heads=24,
        num_key_value_heads=8,
        head_dim=128,
        max_position_embeddings=131072,
        tie_word_embeddings=True,
    )
    with device:
        base = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    settings = peft.get_peft_config({"task_type": "CAUSAL_LM", **adapter})
    return peft.get_peft_model(base, settings, autocast_adapter_dtype=True)


def main() -> None:
    args = parse_args()
    device = torch.device(args.device)
    model = build_model(json.loads(args.adapter), device)
    trainable, total = model.get_nb_trainable_parameters()
    print(f"{trainable:,d} of {total:,d} parameters are trained")
    model.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.1)
    scheduler = transformers.get_cosine_schedule_with_warmup(optimizer, 500, 5000)
    model.train()
    loader = DataLoader(Texts(args.steps * args.batch_size, args.length), batch_size=args.batch_size)
    for step, batch in enumerate(loader, start=1):
        batch = {key: value.to(device) for key, value in batch.items()}
        batch["labels"] = batch["input_ids"].clone()
        count = batch["attention_mask"].sum().item()
        optimizer.zero_grad()
        outputs = model(**batch, num_items_in_batch=count)
        loss = outputs.loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        print(f"step {step}: loss {loss.item():.4f}", flush=True)
        if step % 10 == 0:
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
