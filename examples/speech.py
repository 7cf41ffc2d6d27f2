"""Speech to letters: one-dimensional convolutions over sound of different lengths, GRU layers, CTC.

python examples/speech.py --batch-size 32
"""

from __future__ import annotations

import argparse

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

LETTERS = 29


class Utterances(Dataset):
    """Noise of one to twelve seconds at 16 kHz, and about ten letters a second."""

    def __len__(self) -> int:
        return 400

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        seconds = 1 + index * 5 % 12
        return torch.randn(16_000 * seconds), torch.randint(1, LETTERS, (10 * seconds,))


def collate(samples):
    sounds, texts = zip(*samples, strict=True)
    sizes = [torch.tensor([len(each) for each in group]) for group in (sounds, texts)]
    return pad_sequence(sounds, batch_first=True), sizes[0], torch.cat(texts), sizes[1]


class Listener(nn.Module):
    """Letters (B, L, 29) of sounds (B, samples)."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.ears = nn.Sequential(
            nn.Conv1d(1, width // 2, 400, 160, bias=False),
            nn.BatchNorm1d(width // 2),
            nn.GELU(),
            nn.Conv1d(width // 2, width // 2, 9, 1, 4, groups=width // 2),  # each channel by itself
            nn.Conv1d(width // 2, width, 3, 2, 1, groups=4),
            nn.GELU(),
        )
        self.rnn = nn.GRU(width, width, layers, bidirectional=True, batch_first=True)
        self.head = nn.Sequential(nn.LayerNorm(2 * width), nn.Linear(2 * width, LETTERS))

    def forward(self, sound: torch.Tensor) -> torch.Tensor:
        heard = self.ears(sound.unsqueeze(1)).transpose(1, 2)
        return self.head(self.rnn(heard)[0]).log_softmax(-1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()
    model = Listener(args.width, args.layers).to(args.device)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-4, momentum=0.9)
    criterion = nn.CTCLoss(zero_infinity=True)
    for sound, samples, text, letters in DataLoader(Utterances(), args.batch_size, shuffle=True, collate_fn=collate):
        scores = model(sound.to(args.device)).transpose(0, 1)
        steps = torch.clamp(samples * len(scores) // sound.shape[1], max=len(scores))
        loss = criterion(scores, text.to(args.device), steps, letters)
        optimizer.zero_grad(set_to_none=False)
        loss.backward()
        optimizer.step()
        print(f"{loss.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
