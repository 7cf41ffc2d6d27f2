"""GPT-2 from its configuration, causal language modeling on random token ids: AdamW, fp32."""

from __future__ import annotations

import argparse

import torch
from torch.utils.data import DataLoader, Dataset
from transformers import GPT2Config, GPT2LMHeadModel

SIZES = {
    "tiny": {"n_embd": 128, "n_layer": 2, "n_head": 2},
    "small": {"n_embd": 768, "n_layer": 12, "n_head": 12},
    "medium": {"n_embd": 1024, "n_layer": 24, "n_head": 16},
    "large": {"n_embd": 1280, "n_layer": 36, "n_head": 20},
    "xl": {"n_embd": 1600, "n_layer": 48, "n_head": 25},
}


class RandomTokens(Dataset):
    """Sequences of `seq_len` random tokens; sample N is the same in every run."""

    def __init__(self, count: int, seq_len: int, vocabulary: int) -> None:
        self.count = count
        self.seq_len = seq_len
        self.vocabulary = vocabulary

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> torch.Tensor:
        if index >= self.count:
            raise IndexError(index)
        random = torch.Generator().manual_seed(index)
        return torch.randint(self.vocabulary, (self.seq_len,), generator=random)


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--seq-len", type=int, default=512)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--sequences", type=int, default=2_000)
    parser.add_argument("--gradient-checkpointing", action="store_true")
    parser.add_argument("--optimizer-loop", action="store_true", help="update one parameter after the other")
    parser.add_argument("--data-parallel", action="store_true", help="split each batch over all GPUs")
    parser.add_argument("--device", default="cuda")
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    device = torch.device(args.device)
    config = GPT2Config(n_positions=max(1024, args.seq_len), **SIZES[args.size])
    dataset = RandomTokens(args.sequences, args.seq_len, config.vocab_size)
    loader = DataLoader(dataset, batch_size=args.batch_size, shuffle=True)

    model = GPT2LMHeadModel(config).to(device)
    if args.gradient_checkpointing:
        model.gradient_checkpointing_enable()
    if args.data_parallel:
        model = torch.nn.DataParallel(model)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=False if args.optimizer_loop else None)

    for epoch in range(args.epochs):
        for step, tokens in enumerate(loader):
            tokens = tokens.to(device)
            outputs = model(input_ids=tokens, labels=tokens, use_cache=False)
            loss = outputs.loss.mean() if args.data_parallel else outputs.loss
            loss.backward()
            optimizer.step()
            if step % 50 == 0:
                print(f"epoch {epoch} step {step}/{len(loader)}: loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
