"""A translator of recurrent layers: packed sentences of different lengths, attention, sparse and tied embeddings.

python examples/translate_rnn.py --cell gru --batch-size 128
"""

from __future__ import annotations

import argparse

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence
from torch.utils.data import DataLoader, Dataset

PADDING = 0
CELLS = {"lstm": nn.LSTM, "gru": nn.GRU}


class Sentences(Dataset):
    """Pairs of random sentences, of 5 to 60 words."""

    def __init__(self, count: int, words: int) -> None:
        self.count, self.words = count, words

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        lengths = 5 + 7 * index % 56, 5 + 11 * index % 56
        return tuple(torch.randint(1, self.words, (length,)) for length in lengths)


def collate(pairs):
    sources, targets = zip(*pairs, strict=True)
    lengths = torch.tensor([len(each) for each in sources])
    return pad_sequence(sources, batch_first=True), lengths, pad_sequence(targets, batch_first=True)


class Translator(nn.Module):
    """An encoder both ways, a decoder that looks at what it read."""

    def __init__(self, words: int, width: int, layers: int, cell: str) -> None:
        super().__init__()
        self.read = nn.Embedding(words, width, padding_idx=PADDING, sparse=True)
        self.write = nn.Embedding(words, width, padding_idx=PADDING)
        self.encoder = CELLS[cell](width, width // 2, layers, batch_first=True, bidirectional=True, dropout=0.1)
        self.decoder = CELLS[cell](width, width, layers, batch_first=True, dropout=0.1)
        self.attention = nn.MultiheadAttention(width, 8, batch_first=True)
        self.head = nn.Linear(width, words)
        self.head.weight = self.write.weight

    def forward(self, source: torch.Tensor, lengths: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        packed = pack_padded_sequence(self.read(source), lengths, batch_first=True, enforce_sorted=False)
        memory, _ = pad_packed_sequence(self.encoder(packed)[0], batch_first=True, total_length=source.shape[1])
        hidden, _ = self.decoder(self.write(target))
        seen, _ = self.attention(hidden, memory, memory, key_padding_mask=source == PADDING, need_weights=False)
        return self.head(hidden + seen)


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--words", type=int, default=30_000)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--cell", choices=sorted(CELLS), default="lstm")
    parser.add_argument("--device", default="cuda")
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    model = Translator(args.words, args.width, args.layers, args.cell).to(args.device)
    dense = [each for name, each in model.named_parameters() if not name.startswith("read.")]
    optimizers = [torch.optim.Adam(dense), torch.optim.SparseAdam(model.read.parameters())]
    criterion = nn.CrossEntropyLoss(ignore_index=PADDING)
    loader = DataLoader(Sentences(2000, args.words), args.batch_size, shuffle=True, collate_fn=collate, num_workers=2)
    for step, (source, lengths, target) in enumerate(loader):
        source, target = source.to(args.device), target.to(args.device)
        scores = model(source, lengths, target[:, :-1])
        loss = criterion(scores.flatten(0, 1), target[:, 1:].flatten())
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(dense, 1.0)
        for optimizer in optimizers:
            optimizer.step()
        print(f"step {step}: {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
