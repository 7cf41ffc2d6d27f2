"""Training loops of language models: preferences, rollouts, packed and sorted texts, averaged weights, curvature.

    python benchmarks/estimator/jobs/language_loops.py preferences

The network is small; what varies is what a loop keeps, copies, accumulates and evaluates.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterator

import torch
from language_parts import GPU, WORDS, Language, tokens
from torch import Tensor, nn, optim
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset


def log_probabilities(outputs: Tensor, wanted: Tensor) -> Tensor:
    return torch.gather(outputs.log_softmax(-1), 2, wanted[:, :, None]).squeeze(2)


@torch.no_grad()
def generate(model: Language, prompt: Tensor, count: int) -> Tensor:
    past: list[tuple[Tensor, Tensor]] = []
    found, last = [prompt], prompt
    for _word in range(count):
        shares = model(last, past)[:, -1].softmax(-1)
        last = torch.multinomial(shares, 1)
        found.append(last)
    return torch.cat(found, 1)


def preferences() -> None:
    """Direct preference optimization: a chosen and a rejected text at once, and a frozen copy of the model."""
    model = Language().to(GPU).bfloat16()
    reference = copy.deepcopy(model).eval().requires_grad_(requires_grad=False)
    optimizer = optim.RMSprop(model.parameters(), 1e-6)
    schedule = optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 150))
    for _epoch in range(2):
        for place, (chosen,) in enumerate(tokens(20, 256, batch=4)):
            both = torch.cat([chosen, torch.randint_like(chosen, WORDS)]).to(GPU)
            policy = log_probabilities(model(both[:, :-1]), both[:, 1:]).sum(-1)
            with torch.no_grad():
                frozen = log_probabilities(reference(both[:, :-1]), both[:, 1:]).sum(-1)
            good, bad = (policy - frozen).chunk(2)
            loss = -functional.logsigmoid(0.1 * (good - bad)).mean() / 2
            loss.backward()
            if place % 2 == 1:
                nn.utils.clip_grad_norm_(model.parameters(), 10.0)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()


def rollouts() -> None:
    """PPO on texts: samples with a cache, values by a head, two epochs of small batches."""
    actor, reference = Language().to(GPU), Language().to(GPU).eval().requires_grad_(requires_grad=False)
    value = nn.Linear(256, 1).to(GPU)
    optimizer = optim.AdamW([*actor.parameters(), *value.parameters()], 1e-5)
    for _round in range(3):
        prompts = torch.randint(WORDS, (16, 32)).to(GPU)
        actor.eval()
        texts = generate(actor, prompts, 48)
        with torch.no_grad():
            old = log_probabilities(actor(texts[:, :-1]), texts[:, 1:])[:, 31:]
            kept = log_probabilities(reference(texts[:, :-1]), texts[:, 1:])[:, 31:]
            values = value(actor.hidden(texts[:, :-1])).squeeze(-1)[:, 31:]
        rewards = -0.1 * (old - kept)
        rewards[:, -1] += torch.randn(16, device=GPU)
        gains, last = [], torch.zeros(16, device=GPU)
        for step in reversed(range(rewards.shape[1])):
            after = values[:, step + 1] if step + 1 < rewards.shape[1] else torch.zeros_like(last)
            last = rewards[:, step] + after - values[:, step] + 0.95 * last
            gains.append(last)
        gain = torch.stack(gains[::-1], 1)
        returns = gain + values
        actor.train()
        for _epoch in range(2):
            order = torch.randperm(16)
            for start in range(0, 16, 4):
                rows = order[start : start + 4].to(GPU)
                hidden = actor.hidden(texts[rows, :-1])
                now = log_probabilities(functional.linear(hidden, actor.embed.weight), texts[rows, 1:])[:, 31:]
                ratio = (now - old[rows]).exp()
                clipped = ratio.clamp(0.8, 1.2)
                policy = -torch.min(ratio * gain[rows], clipped * gain[rows]).mean()
                worth = functional.mse_loss(value(hidden).squeeze(-1)[:, 31:], returns[rows])
                optimizer.zero_grad()
                (policy + 0.5 * worth).backward()
                optimizer.step()


def packed() -> None:
    """Texts in one row, with a mask of their diagonal blocks, in bf16, with a chunked and checkpointed loss."""
    model = Language().to(GPU)
    optimizer = optim.AdamW(model.parameters(), fused=True)

    def part_of_loss(hidden: Tensor, wanted: Tensor) -> Tensor:
        return functional.cross_entropy(functional.linear(hidden, model.embed.weight).float(), wanted, reduction="sum")

    for _epoch in range(2):
        for (row,) in tokens(10, 1024, batch=4):
            row = row.to(GPU)
            text = torch.arange(1024, device=GPU) // 200
            mask = (text[:, None] == text) & torch.ones(1024, 1024, dtype=torch.bool, device=GPU).tril()
            with torch.autocast(GPU, torch.bfloat16):
                hidden = model.hidden(row[:, :-1], mask=mask[:-1, :-1])
                parts = zip(hidden.reshape(-1, 256).split(512), row[:, 1:].reshape(-1).split(512), strict=True)
                loss = sum(checkpoint(part_of_loss, *part, use_reentrant=False) for part in parts) / row.numel()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)


def growing_texts() -> None:
    """A curriculum: the texts of each stage are longer, and the loader is made anew."""
    model = Language().to(GPU)
    optimizer = optim.AdamW(model.parameters())
    for stage in range(4):
        loader = tokens(20, 64 * 2**stage)
        for _epoch in range(2):
            for (words,) in loader:
                words = words.to(GPU)
                loss = functional.cross_entropy(model(words[:, :-1]).flatten(0, 1), words[:, 1:].flatten())
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()


class Buckets(Dataset[Tensor]):
    """Texts sorted by length, which a collating function pads."""

    def __init__(self) -> None:
        self.lengths = sorted(16 + 37 * place % 200 for place in range(64))

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, place: int) -> Tensor:
        return torch.ones(self.lengths[place], dtype=torch.long)


def sorted_texts() -> None:
    """Batches of texts of similar length, the shortest first."""
    model = Language().to(GPU)
    optimizer = optim.AdamW(model.parameters())
    loader = DataLoader(Buckets(), 8, collate_fn=lambda rows: nn.utils.rnn.pad_sequence(rows, batch_first=True))
    for _epoch in range(2):
        for words in loader:
            words = words.to(GPU)
            loss = functional.cross_entropy(model(words[:, :-1]).flatten(0, 1), words[:, 1:].flatten(), ignore_index=0)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def curvature() -> None:
    """Sophia: a Hessian's diagonal by a second derivative in every tenth step, in a state of its own."""
    model = Language(layers=2).to(GPU)
    parameters = list(model.parameters())
    means = [torch.zeros_like(parameter) for parameter in parameters]
    curves = [torch.zeros_like(parameter) for parameter in parameters]
    optimizer = optim.SGD(parameters, 1e-3)
    for place, (words,) in enumerate(tokens(96, 64)):
        words = words.to(GPU)
        with nn.attention.sdpa_kernel(nn.attention.SDPBackend.MATH):
            loss = functional.cross_entropy(model(words[:, :-1]).flatten(0, 1), words[:, 1:].flatten())
            gradients = torch.autograd.grad(loss, parameters, create_graph=place % 10 == 0)
            if place % 10 == 0:
                signs = [torch.randn_like(parameter) for parameter in parameters]
                total = sum((gradient * sign).sum() for gradient, sign in zip(gradients, signs, strict=True))
                seconds = torch.autograd.grad(total, parameters)
                for curve, second, sign in zip(curves, seconds, signs, strict=True):
                    curve.mul_(0.99).add_(second * sign, alpha=0.01)
        for parameter, mean, curve, gradient in zip(parameters, means, curves, gradients, strict=True):
            mean.mul_(0.96).add_(gradient.detach(), alpha=0.04)
            parameter.grad = (mean / curve.clamp(min=1e-12)).clamp(-1, 1)
        optimizer.step()


def swapped_weights() -> None:
    """An average of the weights takes their place for validation, and a backup brings them back."""
    model = Language(layers=2).to(GPU)
    optimizer = optim.AdamW(model.parameters())
    shadow = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    for _epoch in range(2):
        model.train()
        for (words,) in tokens(24, 64):
            words = words.to(GPU)
            loss = functional.cross_entropy(model(words[:, :-1]).flatten(0, 1), words[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            for name, parameter in model.named_parameters():
                shadow[name] = 0.999 * shadow[name] + 0.001 * parameter.detach()
        backup = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
        for name, parameter in model.named_parameters():
            parameter.data = shadow[name]
        model.eval()
        losses = []
        with torch.no_grad():
            for (words,) in tokens(64, 64, batch=32):
                words = words.to(GPU)
                losses.append(functional.cross_entropy(model(words[:, :-1]).flatten(0, 1), words[:, 1:].flatten()))
        for name, parameter in model.named_parameters():
            parameter.data = backup[name]


def batches_of(text: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Random windows of a text, as short scripts read it."""
    while True:
        starts = torch.randint(len(text) - 129, (16,))
        rows = torch.stack([text[start : start + 129] for start in starts.tolist()])
        yield rows[:, :-1].to(GPU), rows[:, 1:].to(GPU)


def evaluated_windows() -> None:
    """Every 50 steps losses of 20 windows are averaged, before the first step, too."""
    model = Language(layers=2).to(GPU)
    optimizer = optim.AdamW(model.parameters())
    stream = batches_of(torch.randint(WORDS, (10_000,)))
    for step in range(200):
        if step % 50 == 0:
            model.eval()
            with torch.no_grad():
                losses = torch.zeros(20)
                for place in range(20):
                    words, wanted = next(stream)
                    losses[place] = functional.cross_entropy(model(words).flatten(0, 1), wanted.flatten()).item()
            model.train()
        words, wanted = next(stream)
        loss = functional.cross_entropy(model(words).flatten(0, 1), wanted.flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()


LOOPS: tuple[Callable[[], None], ...] = (
    *(preferences, rollouts, packed, growing_texts, sorted_texts, curvature, swapped_weights),
    *(evaluated_windows,),
)  # fmt: skip

if __name__ == "__main__":
    torch.manual_seed(0)
    {loop.__name__: loop for loop in LOOPS}[sys.argv[1]]()
