"""Training loops on sequences: recurrent states, decoding, fields, scans, memories of segments, spikes.

    python benchmarks/estimator/jobs/sequence_loops.py segments

Networks are small; what varies is what a loop keeps, copies, accumulates and evaluates.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable

import torch
from language_parts import GPU, WORDS, tokens
from torch import Tensor, nn, optim
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset


def recurrent_words() -> None:
    """Truncated backpropagation: the state of an LSTM goes on, cut from its graph."""
    embed, lstm = nn.Embedding(WORDS, 256).to(GPU), nn.LSTM(256, 256, 2, dropout=0.2).to(GPU)
    head = nn.Linear(256, WORDS).to(GPU)
    head.weight = embed.weight
    parameters = [*embed.parameters(), *lstm.parameters(), head.bias]
    optimizer = optim.SGD(parameters, 20.0)
    text = torch.randint(WORDS, (35 * 6 + 1, 20)).to(GPU)
    for _epoch in range(2):
        state = tuple(torch.zeros(2, 20, 256, device=GPU) for _ in range(2))
        for start in range(0, len(text) - 1, 35):
            part, wanted = text[start : start + 35], text[start + 1 : start + 36]
            state = tuple(one.detach() for one in state)
            outputs, state = lstm(embed(part), state)
            loss = functional.cross_entropy(head(outputs).flatten(0, 1), wanted.flatten())
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(parameters, 0.25)
            optimizer.step()


def translation() -> None:
    """An encoder and a decoder with label smoothing; greedy decoding grows word by word after each epoch."""
    model = nn.Transformer(256, 4, 3, 3, 1024, 0.1, batch_first=True).to(GPU)
    source, target, head = (
        nn.Embedding(WORDS, 256).to(GPU),
        nn.Embedding(WORDS, 256).to(GPU),
        nn.Linear(256, WORDS).to(GPU),
    )
    parameters = [parameter for part in (model, source, target, head) for parameter in part.parameters()]
    optimizer = optim.Adam(parameters, betas=(0.9, 0.98), eps=1e-9)
    for _epoch in range(2):
        model.train()
        for (both,) in tokens(40, 96, batch=16):
            words, wanted = both[:, :48].to(GPU), both[:, 48:].to(GPU)
            mask = nn.Transformer.generate_square_subsequent_mask(47, device=GPU)
            hidden = model(source(words), target(wanted[:, :-1]), tgt_mask=mask, tgt_is_causal=True)
            outputs = head(hidden).flatten(0, 1)
            loss = functional.cross_entropy(outputs, wanted[:, 1:].flatten(), ignore_index=0, label_smoothing=0.1)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            words = torch.randint(1, WORDS, (32, 48)).to(GPU)
            memory = model.encoder(source(words))
            found = torch.ones(32, 1, dtype=torch.long, device=GPU)
            for length in range(1, 24):
                mask = nn.Transformer.generate_square_subsequent_mask(length, device=GPU)
                last = head(model.decoder(target(found), memory, tgt_mask=mask))[:, -1]
                found = torch.cat([found, last.argmax(-1, keepdim=True)], 1)


def cached_gradients() -> None:
    """Contrastive pairs in a large batch: vectors without gradients first, then a pass for each part."""
    model = nn.Sequential(nn.EmbeddingBag(WORDS, 256), nn.Linear(256, 512), nn.Tanh(), nn.Linear(512, 256)).to(GPU)
    optimizer = optim.AdamW(model.parameters())
    for _epoch in range(2):
        for (both,) in tokens(1200, 128, batch=512):
            parts = both.to(GPU).split(64)
            with torch.no_grad():
                vectors = torch.cat([torch.cat([model(part[:, :64]), model(part[:, 64:])], 1) for part in parts])
            vectors.requires_grad_()
            first, second = vectors.chunk(2, 1)
            labels = torch.arange(len(first), device=GPU)
            similar = functional.normalize(first) @ functional.normalize(second).T * 20
            loss = functional.cross_entropy(similar, labels)
            loss.backward()
            optimizer.zero_grad()
            for part, gradient in zip(parts, vectors.grad.split(64), strict=True):
                torch.cat([model(part[:, :64]), model(part[:, 64:])], 1).backward(gradient)
            optimizer.step()


def conditional_field() -> None:
    """A recurrent tagger with a conditional random field, whose forward algorithm is a loop."""
    embed, head = nn.Embedding(WORDS, 256).to(GPU), nn.Linear(512, 12).to(GPU)
    lstm = nn.LSTM(256, 256, bidirectional=True, batch_first=True).to(GPU)
    steps = nn.Parameter(torch.randn(12, 12, device=GPU))
    optimizer = optim.Adam([*embed.parameters(), *lstm.parameters(), *head.parameters(), steps])
    for _epoch in range(2):
        for (words,) in tokens(80, 60, batch=32):
            words = words.to(GPU)
            tags = words % 12
            scores = head(lstm(embed(words))[0])
            total = scores[:, 0]
            for place in range(1, words.shape[1]):
                total = torch.logsumexp(total[:, :, None] + steps, 1) + scores[:, place]
            gold = scores.gather(2, tags[:, :, None]).sum((1, 2)) + steps[tags[:, :-1], tags[:, 1:]].sum(1)
            loss = (total.logsumexp(1) - gold).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def selective_scan() -> None:
    """A state space in plain PyTorch: a loop over time, whose states all stay for the backward pass."""

    class Scan(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inputs, self.output = nn.Linear(128, 512), nn.Linear(256, 128)
            self.conv = nn.Conv1d(256, 256, 4, groups=256, padding=3)
            self.step, self.both = nn.Linear(256, 256), nn.Linear(256, 32)
            self.decay = nn.Parameter(torch.arange(1, 17).float().log().repeat(256, 1))

        def forward(self, values: Tensor) -> Tensor:
            hidden, gate = self.inputs(values).chunk(2, -1)
            hidden = functional.silu(self.conv(hidden.transpose(1, 2))[:, :, : values.shape[1]].transpose(1, 2))
            step = functional.softplus(self.step(hidden))
            into, out = self.both(hidden).chunk(2, -1)
            state = torch.zeros(len(values), 256, 16, device=values.device)
            found = []
            for place in range(values.shape[1]):
                fade = torch.exp(-step[:, place, :, None] * self.decay.exp())
                state = fade * state + (step[:, place] * hidden[:, place])[:, :, None] * into[:, place, None]
                found.append((state * out[:, place, None]).sum(-1))
            return values + self.output(torch.stack(found, 1) * functional.silu(gate))

    model = nn.Sequential(nn.Embedding(WORDS, 128), Scan(), Scan(), nn.Linear(128, WORDS)).to(GPU)
    optimizer = optim.AdamW(model.parameters())
    for _epoch in range(2):
        for (words,) in tokens(20, 65):
            words = words.to(GPU)
            loss = functional.cross_entropy(model(words[:, :-1]).flatten(0, 1), words[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def segments() -> None:
    """Transformer-XL: each segment attends to what the layers had for the segments before, cut from the graph."""
    layers = nn.ModuleList(nn.MultiheadAttention(256, 4, batch_first=True) for _ in range(4)).to(GPU)
    embed = nn.Embedding(WORDS, 256).to(GPU)
    optimizer = optim.Adam([*layers.parameters(), *embed.parameters()])
    text = torch.randint(WORDS, (8, 64 * 8 + 1)).to(GPU)
    memory: list[deque[Tensor]] = [deque(maxlen=3) for _ in range(4)]
    for start in range(0, 64 * 8, 64):
        values = embed(text[:, start : start + 64])
        for layer, past in zip(layers, memory, strict=True):
            context = torch.cat([*past, values], 1)
            past.append(values.detach())
            values = values + layer(values, context, context, need_weights=False)[0]
        outputs = functional.linear(values, embed.weight)
        loss = functional.cross_entropy(outputs.flatten(0, 1), text[:, start + 1 : start + 65].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def spikes() -> None:
    """Spiking neurons over 25 time steps, with a surrogate gradient of its own function."""

    class Spike(torch.autograd.Function):
        @staticmethod
        def forward(ctx: torch.autograd.function.FunctionCtx, level: Tensor) -> Tensor:
            ctx.save_for_backward(level)
            return (level > 0).float()

        @staticmethod
        def backward(ctx: torch.autograd.function.FunctionCtx, gradient: Tensor) -> Tensor:
            (level,) = ctx.saved_tensors
            return gradient / (1 + 10 * level.abs()).pow(2)

    first, second = nn.Linear(784, 1000).to(GPU), nn.Linear(1000, 10).to(GPU)
    optimizer = optim.Adam([*first.parameters(), *second.parameters()])
    for _epoch in range(2):
        for values, labels in DataLoader(TensorDataset(torch.rand(320, 784), torch.randint(10, (320,))), 128):
            values, labels = values.to(GPU), labels.to(GPU)
            hidden, output = torch.zeros(len(values), 1000, device=GPU), torch.zeros(len(values), 10, device=GPU)
            loss, count = torch.zeros((), device=GPU), torch.zeros(len(values), 10, device=GPU)
            for _time in range(25):
                fired = Spike.apply(hidden - 1)
                hidden = 0.95 * hidden + first(values) - fired.detach()
                output = 0.95 * output + second(fired)
                loss = loss + functional.cross_entropy(output, labels)
                count = count + Spike.apply(output - 1)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


LOOPS: tuple[Callable[[], None], ...] = (
    *(recurrent_words, translation, cached_gradients, conditional_field, selective_scan, segments),
    *(spikes,),
)  # fmt: skip

if __name__ == "__main__":
    torch.manual_seed(0)
    {loop.__name__: loop for loop in LOOPS}[sys.argv[1]]()
