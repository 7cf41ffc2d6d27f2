"""XLNet, base or large, classifies random sentences of different lengths: Hugging Face's Trainer, AdamW, fp32.

With several GPUs the Trainer splits a step over them by `DataParallel`: `--batch-size` is that of one GPU.
"""

from __future__ import annotations

import argparse
import tempfile

import torch
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments, XLNetConfig, XLNetForSequenceClassification

SIZES = {
    "tiny": {"d_model": 64, "n_layer": 2, "n_head": 2, "d_inner": 128},
    "base": {"d_model": 768, "n_layer": 12, "n_head": 12, "d_inner": 3072},
    "large": {"d_model": 1024, "n_layer": 24, "n_head": 16, "d_inner": 4096},
}


class RandomSentences(Dataset):
    """Sentences of up to `seq_len` random tokens; sample N is the same in every run."""

    def __init__(self, count: int, seq_len: int, vocabulary: int) -> None:
        self.count = count
        self.seq_len = seq_len
        self.vocabulary = vocabulary

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, object]:
        if index >= self.count:
            raise IndexError(index)
        random = torch.Generator().manual_seed(index)
        length = int(torch.randint(8, self.seq_len + 1, (), generator=random))
        tokens = torch.randint(self.vocabulary, (length,), generator=random)
        return {"input_ids": tokens, "labels": index % 2}


def collate(samples: list[dict]) -> dict[str, torch.Tensor]:
    """Pads to the longest sentence of the batch, on the left as XLNet does."""
    longest = max(len(sample["input_ids"]) for sample in samples)
    tokens = torch.zeros(len(samples), longest, dtype=torch.long)
    mask = torch.zeros(len(samples), longest)
    for row, sample in enumerate(samples):
        tokens[row, -len(sample["input_ids"]) :] = sample["input_ids"]
        mask[row, -len(sample["input_ids"]) :] = 1
    labels = torch.tensor([sample["labels"] for sample in samples])
    return {"input_ids": tokens, "attention_mask": mask, "labels": labels}


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default="base")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--seq-len", type=int, default=512)
    parser.add_argument("--sentences", type=int, default=23_767)
    parser.add_argument("--epochs", type=float, default=1)
    parser.add_argument("--device", default="cuda")
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    config = XLNetConfig(vocab_size=32_000, num_labels=2, **SIZES[args.size])
    model = XLNetForSequenceClassification(config)
    with tempfile.TemporaryDirectory() as folder:
        settings = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=args.batch_size,
            num_train_epochs=args.epochs,
            learning_rate=5e-5,
            use_cpu=args.device == "cpu",
            logging_steps=50,
            save_strategy="no",
            report_to="none",
        )
        dataset = RandomSentences(args.sentences, args.seq_len, config.vocab_size)
        trainer = Trainer(model=model, args=settings, train_dataset=dataset, data_collator=collate)
        result = trainer.train()
    print(f"{result.global_step} steps, loss {result.training_loss:.4f}")


if __name__ == "__main__":
    main()
