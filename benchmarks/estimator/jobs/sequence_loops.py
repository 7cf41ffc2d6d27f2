"""Training loops on sequences, and of agents, graphs and functions: preferences, rollouts, caches, second derivatives.

    python benchmarks/estimator/jobs/sequence_loops.py preferences

Networks are small; what varies is what a loop keeps, copies, accumulates and evaluates.
"""

from __future__ import annotations

import copy
import math
import sys
from collections import deque
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn, optim
from torch.func import functional_call, grad, stack_module_state, vmap
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset, TensorDataset

WORDS = 8000
GPU = "cuda"


class Language(nn.Module):
    """A causal Transformer with tied embeddings, which takes and gives keys and values of the past."""

    def __init__(self, width: int = 256, layers: int = 4, heads: int = 4) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(WORDS, width), nn.Embedding(1024, width)
        self.layers = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)

    def hidden(
        self, tokens: Tensor, past: list[tuple[Tensor, Tensor]] | None = None, mask: Tensor | None = None
    ) -> Tensor:
        start = past[0][0].shape[2] if past else 0
        values = self.embed(tokens) + self.place(torch.arange(start, start + tokens.shape[1], device=tokens.device))
        for index, layer in enumerate(self.layers):
            values = layer(values, past, index, mask)
        return self.norm(values)

    def forward(
        self, tokens: Tensor, past: list[tuple[Tensor, Tensor]] | None = None, mask: Tensor | None = None
    ) -> Tensor:
        return functional.linear(self.hidden(tokens, past, mask), self.embed.weight)


class Block(nn.Module):
    """Attention and two wide layers, before each a norm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.inputs, self.output = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(
        self, values: Tensor, past: list[tuple[Tensor, Tensor]] | None, index: int, mask: Tensor | None
    ) -> Tensor:
        batch, length, width = values.shape
        parts = self.inputs(self.first(values)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        query, key, value = parts.unbind(0)
        if past is not None:
            if index < len(past):
                key, value = torch.cat([past[index][0], key], 2), torch.cat([past[index][1], value], 2)
                past[index] = key, value
            else:
                past.append((key, value))
        is_causal = mask is None and length > 1
        mixed = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=is_causal)
        values = values + self.output(mixed.transpose(1, 2).reshape(batch, length, width))
        return values + self.wide(self.second(values))


def tokens(count: int, length: int, batch: int = 8) -> DataLoader[tuple[Tensor, ...]]:
    return DataLoader(TensorDataset(torch.randint(WORDS, (count, length))), batch, shuffle=True)


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


def replay() -> None:
    """Soft actor-critic with a buffer of transitions on the GPU, twin critics, their averages, and a temperature."""

    def net(inputs: int, outputs: int) -> nn.Sequential:
        return nn.Sequential(
            nn.Linear(inputs, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, outputs)
        ).to(GPU)

    actor, one, two = net(64, 16), net(72, 1), net(72, 1)
    old_one, old_two = copy.deepcopy(one), copy.deepcopy(two)
    temperature = torch.zeros(1, device=GPU, requires_grad=True)
    acts = optim.Adam(actor.parameters(), 3e-4)
    judges = optim.Adam([*one.parameters(), *two.parameters()], 3e-4)
    warms = optim.Adam([temperature], 3e-4)
    states, actions = torch.zeros(100_000, 64, device=GPU), torch.zeros(100_000, 8, device=GPU)
    rewards, later = torch.zeros(100_000, device=GPU), torch.zeros(100_000, 64, device=GPU)

    def act(state: Tensor) -> tuple[Tensor, Tensor]:
        mean, scale = actor(state).chunk(2, -1)
        chosen = torch.distributions.Normal(mean, scale.clamp(-5, 2).exp(), validate_args=False)
        raw = chosen.rsample()
        action = torch.tanh(raw)
        return action, (chosen.log_prob(raw) - torch.log(1 - action.pow(2) + 1e-6)).sum(-1)

    state = torch.randn(1, 64)
    for step in range(60):
        with torch.no_grad():
            action, _ = act(state.to(GPU))
        following = torch.randn(1, 64)
        states[step], actions[step], rewards[step], later[step] = state[0].to(GPU), action[0], 0.5, following[0].to(GPU)
        state = following
        if step < 20:
            continue
        rows = torch.randint(step, (256,), device=GPU)
        with torch.no_grad():
            next_action, probability = act(later[rows])
            inputs = torch.cat([later[rows], next_action], 1)
            worth = torch.min(old_one(inputs), old_two(inputs)).squeeze(1) - temperature.exp() * probability
            wanted = rewards[rows] + 0.99 * worth
        inputs = torch.cat([states[rows], actions[rows]], 1)
        loss = functional.mse_loss(one(inputs).squeeze(1), wanted) + functional.mse_loss(two(inputs).squeeze(1), wanted)
        judges.zero_grad()
        loss.backward()
        judges.step()
        action, probability = act(states[rows])
        inputs = torch.cat([states[rows], action], 1)
        loss = (temperature.exp().detach() * probability - torch.min(one(inputs), two(inputs)).squeeze(1)).mean()
        acts.zero_grad()
        loss.backward()
        acts.step()
        loss = -(temperature.exp() * (probability.detach() - 8)).mean()
        warms.zero_grad()
        loss.backward()
        warms.step()
        with torch.no_grad():
            for old, new in zip(
                [*old_one.parameters(), *old_two.parameters()], [*one.parameters(), *two.parameters()], strict=True
            ):
                old.lerp_(new, 0.005)


def imagination() -> None:
    """A world model of discrete states is unrolled over time; an actor learns on rollouts that it imagines."""
    cell, encode, decode = (
        nn.GRUCell(256 + 8, 256).to(GPU),
        nn.Linear(256 + 128, 256).to(GPU),
        nn.Linear(512, 128).to(GPU),
    )
    prior, actor, critic = nn.Linear(256, 256).to(GPU), nn.Linear(512, 8).to(GPU), nn.Linear(512, 1).to(GPU)
    models = optim.Adam([parameter for part in (cell, encode, decode, prior) for parameter in part.parameters()])
    acts, judges = optim.Adam(actor.parameters()), optim.Adam(critic.parameters())

    def sample(logits: Tensor) -> Tensor:
        shares = logits.view(-1, 16, 16).softmax(-1)
        hard = functional.one_hot(shares.argmax(-1), 16).float()
        return (hard + shares - shares.detach()).flatten(1)

    for _step in range(4):
        seen, actions = torch.randn(20, 16, 128).to(GPU), torch.randn(20, 16, 8).to(GPU)
        hidden, state = torch.zeros(16, 256, device=GPU), torch.zeros(16, 256, device=GPU)
        losses, starts = [], []
        for time in range(20):
            hidden = cell(torch.cat([state, actions[time]], 1), hidden)
            after, before = encode(torch.cat([hidden, seen[time]], 1)), prior(hidden)
            state = sample(after)
            again = decode(torch.cat([hidden, state], 1))
            between = functional.kl_div(
                before.view(-1, 16, 16).log_softmax(-1), after.view(-1, 16, 16).softmax(-1), reduction="batchmean"
            )
            losses.append(functional.mse_loss(again, seen[time]) + between)
            starts.append(torch.cat([hidden, state], 1).detach())
        models.zero_grad()
        torch.stack(losses).mean().backward()
        models.step()
        hidden, state = torch.cat(starts).chunk(2, 1)
        worths = []
        for _time in range(15):
            action = torch.tanh(actor(torch.cat([hidden, state], 1).detach()))
            hidden = cell(torch.cat([state, action], 1), hidden)
            state = sample(prior(hidden))
            worths.append(critic(torch.cat([hidden, state], 1)))
        acts.zero_grad()
        (-torch.stack(worths).mean()).backward()
        acts.step()
        judges.zero_grad()
        functional.mse_loss(
            critic(torch.cat(starts)).squeeze(1), torch.stack(worths).detach().mean(0).squeeze(1)
        ).backward()
        judges.step()


def ensemble() -> None:
    """Eight networks at once by `vmap` over their stacked parameters."""
    nets = [nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10)).to(GPU) for _ in range(8)]
    parameters, buffers = stack_module_state(nets)
    plain = copy.deepcopy(nets[0]).to("meta")
    optimizer = optim.Adam(list(parameters.values()))
    for _epoch in range(2):
        for values, labels in DataLoader(TensorDataset(torch.randn(600, 64), torch.randint(10, (600,))), 256):
            values, labels = values.to(GPU), labels.to(GPU)
            outputs = vmap(lambda p, b: functional_call(plain, (p, b), (values,)))(parameters, buffers)  # noqa: B023
            loss = functional.cross_entropy(outputs.flatten(0, 1), labels.repeat(8))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def evolution() -> None:
    """Evolution strategies: a hundred perturbed copies in one call, and no backward pass but a gradient by hand."""
    model = nn.Sequential(nn.Linear(128, 256), nn.Tanh(), nn.Linear(256, 8)).to(GPU)
    names = [name for name, _ in model.named_parameters()]
    optimizer = optim.Adam(model.parameters())
    for _step in range(6):
        states = torch.randn(64, 128).to(GPU)
        noises = {name: torch.randn(100, *parameter.shape, device=GPU) for name, parameter in model.named_parameters()}
        with torch.no_grad():
            moved = {name: parameter + 0.02 * noises[name] for name, parameter in model.named_parameters()}
            rewards = vmap(lambda p: functional_call(model, p, (states,)).pow(2).mean())(moved)  # noqa: B023
            ranks = rewards.argsort().argsort().float() / 100 - 0.5
            for name, parameter in zip(names, model.parameters(), strict=True):
                parameter.grad = -torch.tensordot(ranks, noises[name], dims=1) / 2
        optimizer.step()


def hypergradients() -> None:
    """An outer loss goes back through five inner steps, by `torch.func.grad`."""
    model = nn.Sequential(nn.Linear(32, 256), nn.GELU(), nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 1)).to(GPU)
    rates = nn.Parameter(torch.full((6,), 0.01, device=GPU))
    optimizer = optim.Adam([*model.parameters(), rates])

    def loss_of(parameters: dict[str, Tensor], inputs: Tensor, wanted: Tensor) -> Tensor:
        return functional.mse_loss(functional_call(model, parameters, (inputs,)), wanted)

    for _step in range(4):
        total = torch.zeros((), device=GPU)
        for _task in range(4):
            inputs, wanted = torch.randn(128, 32).to(GPU), torch.randn(128, 1).to(GPU)
            fast = dict(model.named_parameters())
            for _inner in range(5):
                gradients = grad(loss_of)(fast, inputs[:64], wanted[:64])
                fast = {name: fast[name] - rate * gradients[name] for name, rate in zip(fast, rates, strict=True)}
            total = total + loss_of(fast, inputs[64:], wanted[64:])
        optimizer.zero_grad()
        total.backward()
        optimizer.step()


def equilibrium() -> None:
    """A fixed point without a graph, one step with it, and a hook that solves for the gradient."""
    layer, embed, head = nn.Linear(256, 256).to(GPU), nn.Linear(64, 256).to(GPU), nn.Linear(256, 10).to(GPU)
    optimizer = optim.Adam([*layer.parameters(), *embed.parameters(), *head.parameters()])

    def step(point: Tensor, given: Tensor) -> Tensor:
        return torch.tanh(layer(point) + given)

    for _step in range(5):
        inputs, labels = torch.randn(512, 64).to(GPU), torch.randint(10, (512,)).to(GPU)
        given = embed(inputs)
        with torch.no_grad():
            point = torch.zeros(512, 256, device=GPU)
            for _turn in range(30):
                point = step(point, given)
        point = step(point, given)
        start = point.detach().requires_grad_()
        again = step(start, given.detach())

        def solve(gradient: Tensor, start: Tensor = start, again: Tensor = again) -> Tensor:
            found = gradient
            for _turn in range(10):
                found = torch.autograd.grad(again, start, found, retain_graph=True)[0] + gradient
            return found

        point.register_hook(solve)
        optimizer.zero_grad()
        functional.cross_entropy(head(point), labels).backward()
        optimizer.step()


def graph_attention() -> None:
    """Edges as lists of indices: a softmax over each node's edges by scattered sums, on the whole graph."""
    nodes, edges = 4000, 40_000
    features, labels = torch.randn(nodes, 128).to(GPU), torch.randint(7, (nodes,)).to(GPU)
    source, target = torch.randint(nodes, (2, edges)).to(GPU)
    first, second = nn.Linear(128, 8 * 32).to(GPU), nn.Linear(256, 7).to(GPU)
    left, right = (nn.Parameter(torch.randn(8, 32, device=GPU)) for _ in range(2))
    optimizer = optim.Adam([*first.parameters(), *second.parameters(), left, right], weight_decay=5e-4)
    train = torch.arange(nodes, device=GPU) < 1000
    for _epoch in range(20):
        hidden = functional.dropout(first(features), 0.6).view(nodes, 8, 32)
        scores = functional.leaky_relu((hidden * left).sum(-1)[source] + (hidden * right).sum(-1)[target], 0.2)
        top = torch.full((nodes, 8), -math.inf, device=GPU).scatter_reduce(
            0, target[:, None].expand(-1, 8), scores, "amax"
        )
        shares = (scores - top[target]).exp()
        sums = torch.zeros(nodes, 8, device=GPU).index_add(0, target, shares)
        shares = shares / (sums[target] + 1e-9)
        mixed = torch.zeros(nodes, 8, 32, device=GPU).index_add(0, target, hidden[source] * shares[:, :, None])
        outputs = second(functional.elu(mixed.flatten(1)))
        optimizer.zero_grad()
        functional.cross_entropy(outputs[:1000], labels[:1000]).backward()
        optimizer.step()
        with torch.no_grad():
            (outputs.argmax(1)[~train] == labels[~train]).float().mean().item()


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


def transport() -> None:
    """Sinkhorn iterations on a cost between two clouds, kept in the graph."""
    model = nn.Sequential(nn.Linear(2, 512), nn.SiLU(), nn.Linear(512, 512), nn.SiLU(), nn.Linear(512, 2)).to(GPU)
    optimizer = optim.Adam(model.parameters())
    for _step in range(4):
        made, wanted = model(torch.randn(1024, 2).to(GPU)), torch.randn(1024, 2).to(GPU)
        cost = torch.cdist(made, wanted).pow(2)
        first, second = torch.zeros(1024, device=GPU), torch.zeros(1024, device=GPU)
        for _turn in range(20):
            first = -0.1 * torch.logsumexp((second[None, :] - cost) / 0.1, 1)
            second = -0.1 * torch.logsumexp((first[:, None] - cost) / 0.1, 0)
        plan = torch.exp((first[:, None] + second[None, :] - cost) / 0.1)
        optimizer.zero_grad()
        (plan * cost).sum().backward()
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
    *(preferences, rollouts, packed, recurrent_words, translation, cached_gradients, conditional_field, selective_scan),
    *(growing_texts, sorted_texts, curvature, replay, imagination, ensemble, evolution, hypergradients, equilibrium),
    *(graph_attention, spikes, transport, segments, swapped_weights, evaluated_windows),
)

if __name__ == "__main__":
    torch.manual_seed(0)
    {loop.__name__: loop for loop in LOOPS}[sys.argv[1]]()
