"""A small Llama trained by Hugging Face's Trainer in bf16, on random token ids."""

from __future__ import annotations

import argparse
import tempfile

import torch
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments


class RandomTokens(Dataset):
    """Sequences of `seq_len` random tokens, as a causal model's inputs and labels."""

    def __init__(self, count: int, seq_len: int, vocabulary: int) -> None:
        self.count = count
        self.seq_len = seq_len
        self.vocabulary = vocabulary

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        random = torch.Generator().manual_seed(index)
        tokens = torch.randint(self.vocabulary, (self.seq_len,), generator=random)
        return {"input_ids": tokens, "labels": tokens.clone()}


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hidden-size", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--seq-len", type=int, default=1024)
    parser.add_argument("--accumulate", type=int, default=1, help="batches for each optimizer step")
    parser.add_argument("--gradient-checkpointing", action="store_true")
    parser.add_argument("--max-steps", type=int, default=200)
    parser.add_argument("--device", default="cuda")
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    config = LlamaConfig(
        vocab_size=32_000,
        hidden_size=args.hidden_size,
        intermediate_size=args.hidden_size * 4,
        num_hidden_layers=args.layers,
        num_attention_heads=args.hidden_size // 64,
        max_position_embeddings=args.seq_len,
    )
    model = LlamaForCausalLM(config)
    with tempfile.TemporaryDirectory() as folder:
        settings = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=args.batch_size,
            gradient_accumulation_steps=args.accumulate,
            gradient_checkpointing=args.gradient_checkpointing,
            max_steps=args.max_steps,
            learning_rate=3e-4,
            bf16=True,
            use_cpu=args.device == "cpu",
            logging_steps=10,
            save_strategy="no",
            report_to="none",
        )
        dataset = RandomTokens(10_000, args.seq_len, config.vocab_size)
        trainer = Trainer(model=model, args=settings, train_dataset=dataset)
        result = trainer.train()
    print(f"{result.global_step} steps, loss {result.training_loss:.4f}")


if __name__ == "__main__":
    main()
