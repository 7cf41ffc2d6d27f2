"""A classifier of sentences with a loop of accelerate: the launcher decides about precision and processes.

accelerate launch --mixed_precision bf16 --num_processes 2 --multi_gpu examples/accelerate_bert.py
"""

from __future__ import annotations

import argparse

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, TensorDataset
from transformers import BertConfig, BertForSequenceClassification, get_linear_schedule_with_warmup


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=768)
    args = parser.parse_args()
    accelerator = Accelerator(gradient_accumulation_steps=2)
    set_seed(1)
    config = BertConfig(
        num_hidden_layers=args.layers,
        hidden_size=args.width,
        num_attention_heads=args.width // 64,
        intermediate_size=4 * args.width,
    )
    model = BertForSequenceClassification(config)
    data = TensorDataset(torch.randint(0, config.vocab_size, (2000, args.length)), torch.randint(0, 2, (2000,)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5)
    loader = DataLoader(data, args.batch_size, shuffle=True)
    schedule = get_linear_schedule_with_warmup(optimizer, 10, 1000)
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
    for epoch in range(3):
        model.train()
        for tokens, labels in loader:
            with accelerator.accumulate(model):
                loss = model(input_ids=tokens, labels=labels).loss
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
        accelerator.print(f"epoch {epoch}: {accelerator.gather(loss.detach()).mean().item():.3f}")
        accelerator.wait_for_everyone()
        accelerator.unwrap_model(model).save_pretrained("bert", save_function=accelerator.save)


if __name__ == "__main__":
    main()
