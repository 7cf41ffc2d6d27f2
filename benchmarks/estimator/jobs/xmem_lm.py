"""Trains a language model for four steps in fp32 on sequences of up to 128 tokens, as xMem did.

The published configurations are written out here, so that nothing is downloaded. The optimizer is created before the
model moves to the GPU; batch, outputs and loss stay alive until the next step replaces them.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
import transformers
from torch.utils.data import DataLoader, Dataset

CONFIGURATIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2", {}),
    "distilgpt2": ("GPT2", {"n_layer": 6}),
    "cerebras-gpt-111m": (
        "GPT2",
        {
            "n_embd": 768,
            "n_layer": 10,
            "n_head": 12,
            "n_inner": 3072,
            "n_positions": 2048,
            "activation_function": "gelu",
        },
    ),
    "opt-125m": ("OPT", {"do_layer_norm_before": True}),
    "t5-small": ("T5", {"decoder_start_token_id": 0}),
    "t5-base": (
        "T5",
        {"d_model": 768, "d_ff": 3072, "num_layers": 12, "num_heads": 12, "decoder_start_token_id": 0},
    ),
    "deepseek-r1-distill-qwen-1.5b": (
        "Qwen2",
        {
            "vocab_size": 151936,
            "hidden_size": 1536,
            "intermediate_size": 8960,
            "num_hidden_layers": 28,
            "num_attention_heads": 12,
            "num_key_value_heads": 2,
            "max_position_embeddings": 131072,
            "tie_word_embeddings": False,
        },
    ),
    "llama-3.2-3b": (
        "Llama",
        {
            "vocab_size": 128256,
            "hidden_size": 3072,
            "intermediate_size": 8192,
            "num_hidden_layers": 28,
            "num_attention_heads": 24,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "max_position_embeddings": 131072,
            "tie_word_embeddings": True,
        },
    ),
    "gemma-2-2b": (
        "Gemma2",
        {
            "vocab_size": 256000,
            "hidden_size": 2304,
            "intermediate_size": 9216,
            "num_hidden_layers": 26,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "head_dim": 256,
        },
    ),
}


class Texts(Dataset):
    """Token sequences of one length, from the lower half of the vocabulary, which has no special tokens."""

    def __init__(self, count: int, length: int) -> None:
        self.count, self.length = count, length

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = torch.randint(1000, 20000, (self.length,))
        return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "labels": tokens.clone()}


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=list(CONFIGURATIONS), default="gpt2")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--optimizer", default="AdamW", help="name in torch.optim, or Adafactor of transformers")
    parser.add_argument("--zero-grad", choices=("start", "before-backward", "end"), default="start")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--device", default="cuda")
    return parser.parse_args()


def build_model(name: str) -> torch.nn.Module:
    family, settings = CONFIGURATIONS[name]
    config = getattr(transformers, f"{family}Config")(**settings)
    kind = transformers.AutoModelForSeq2SeqLM if family == "T5" else transformers.AutoModelForCausalLM
    return kind.from_config(config)


def make_optimizer(name: str, model: torch.nn.Module) -> torch.optim.Optimizer:
    if name == "Adafactor" and hasattr(transformers, "Adafactor"):
        return transformers.Adafactor(params=model.parameters(), lr=1e-3, relative_step=False)
    return getattr(torch.optim, name)(params=model.parameters(), lr=1e-3)


def main() -> None:
    args = parse_args()
    device = torch.device(args.device)
    model = build_model(args.model)
    model.train()
    loader = DataLoader(
        Texts((args.steps + 1) * args.batch_size, args.length), batch_size=args.batch_size, shuffle=True
    )
    optimizer = make_optimizer(args.optimizer, model)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=7, gamma=0.1)
    model.to(device)
    for index, batch in enumerate(loader):
        if args.zero_grad == "start":
            optimizer.zero_grad()
        batch = {key: value.to(device) for key, value in batch.items()}
        outputs = model(**batch)
        if args.zero_grad == "before-backward":
            optimizer.zero_grad()
        loss = outputs.loss
        loss.backward()
        optimizer.step()
        if args.zero_grad == "end":
            optimizer.zero_grad()
        if index + 1 == args.steps:
            break
        scheduler.step()


if __name__ == "__main__":
    main()
