"""BERT with masked language modeling on random token ids: AdamW, fp32, sentences padded to one length."""

from __future__ import annotations

import argparse

import torch
from torch.utils.data import DataLoader, Dataset
from transformers import BertConfig, BertForMaskedLM

SIZES = {
    "base": {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072},
    "large": {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096},
    "tiny": {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 512},
}
VOCABULARY = 28_996  # of bert-large-cased
MASK = 103
PADDING = 0
NOT_MASKED = -100  # a label that the loss ignores


class RandomSentences(Dataset):
    """Sentences of random words and lengths, padded to `seq_len`, 15 % of the words masked."""

    def __init__(self, count: int, seq_len: int) -> None:
        self.count = count
        self.seq_len = seq_len

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        if index >= self.count:
            raise IndexError(index)
        random = torch.Generator().manual_seed(index)
        length = int(torch.randint(self.seq_len // 4, self.seq_len, (), generator=random))
        is_word = torch.arange(self.seq_len) < length
        words = torch.randint(1000, VOCABULARY, (self.seq_len,), generator=random)
        is_masked = is_word & (torch.rand(self.seq_len, generator=random) < 0.15)
        return {
            "input_ids": torch.where(is_masked, MASK, words).where(is_word, PADDING),
            "attention_mask": is_word.long(),
            "labels": torch.where(is_masked, words, NOT_MASKED),
        }


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=SIZES, default="base")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--seq-len", type=int, default=512)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--sequences", type=int, default=4_000)
    parser.add_argument("--device", default="cuda")
    return parser.parse_args()


def untrained_loss(model: BertForMaskedLM, loader: DataLoader, device: torch.device) -> float:
    """One batch through the model as it is: what training has to beat."""
    batch = {name: tensor.to(device) for name, tensor in next(iter(loader)).items()}
    return model(**batch).loss.item()


def main() -> None:
    args = parse_args()
    device = torch.device(args.device)
    dataset = RandomSentences(args.sequences, args.seq_len)
    loader = DataLoader(dataset, batch_size=args.batch_size, shuffle=True)

    config = BertConfig(vocab_size=VOCABULARY, max_position_embeddings=max(512, args.seq_len), **SIZES[args.size])
    model = BertForMaskedLM(config).to(device)
    model.train()

    before = untrained_loss(model, loader, device)
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters, untrained loss {before:.4f}")

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for epoch in range(args.epochs):
        for step, batch in enumerate(loader):
            batch = {name: tensor.to(device) for name, tensor in batch.items()}
            optimizer.zero_grad()
            outputs = model(**batch)
            loss = outputs.loss
            loss.backward()
            optimizer.step()
            if step % 50 == 0:
                print(f"epoch {epoch} step {step}/{len(loader)}: loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
