"""Training loops of language and decisions: retrieval, preferences, experts, adapters, policies, tasks in turn.

    python benchmarks/estimator/jobs/applied_language_loops.py two_towers

Networks are small; each loop is written as papers of its field publish theirs.
"""

from __future__ import annotations

import copy
import itertools
import sys
from collections import deque
from collections.abc import Callable

import torch
from torch import Tensor, nn, optim
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

GPU = torch.device("cuda")


def perceptron(*widths: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def two_towers() -> None:
    """Retrieval with negatives of the batch and a bank of older ones, towers in bfloat16, hits over a catalogue."""
    users, items = nn.Embedding(50_000, 128).to(GPU), nn.Embedding(80_000, 128).to(GPU)
    left, right = perceptron(128, 256, 128).to(GPU), perceptron(128, 256, 128).to(GPU)
    parameters = [*users.parameters(), *items.parameters(), *left.parameters(), *right.parameters()]
    optimizer = optim.Adam(parameters, 1e-3)
    bank: deque[Tensor] = deque(maxlen=4)
    for epoch in range(2):
        for _step in range(12):
            who, what = torch.randint(50_000, (1024,)).to(GPU), torch.randint(80_000, (1024,)).to(GPU)
            with torch.autocast("cuda", dtype=torch.bfloat16):
                a = functional.normalize(left(users(who)).float(), dim=1)
                b = functional.normalize(right(items(what)).float(), dim=1)
            candidates = torch.cat([b, *bank])
            logits = a @ candidates.T / 0.05
            loss = functional.cross_entropy(logits, torch.arange(1024, device=GPU))
            bank.append(b.detach())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            catalogue = torch.cat([functional.normalize(right(part), dim=1) for part in items.weight.split(16_384)])
            hits = 0
            for part in torch.arange(2_000).split(500):
                scores = functional.normalize(left(users(part.to(GPU))), dim=1) @ catalogue.T
                hits += int((scores.topk(10, 1)[1] == part.to(GPU)[:, None]).any(1).sum())
            print(epoch, hits)


def language_policy() -> None:
    """Preference learning by a policy gradient: sampling with a cache, a frozen reference, groups of answers."""

    class Decoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.places = nn.Embedding(4096, 256), nn.Embedding(256, 256)
            self.blocks = nn.ModuleList(
                nn.ModuleDict({"norm": nn.LayerNorm(256), "qkv": nn.Linear(256, 768), "out": nn.Linear(256, 256),
                               "mlp": nn.Sequential(nn.LayerNorm(256), nn.Linear(256, 1024), nn.GELU(),
                                                    nn.Linear(1024, 256))})
                for _ in range(4)
            )  # fmt: skip
            self.norm, self.head = nn.LayerNorm(256), nn.Linear(256, 4096, bias=False)

        def forward(self, ids: Tensor, cache: list[tuple[Tensor, Tensor]] | None = None) -> Tensor:
            start = cache[0][0].shape[2] if cache else 0
            x = self.words(ids) + self.places(torch.arange(start, start + ids.shape[1], device=ids.device))
            for index, block in enumerate(self.blocks):
                q, k, v = (
                    part.unflatten(2, (8, 32)).transpose(1, 2) for part in block["qkv"](block["norm"](x)).chunk(3, 2)
                )
                if cache is not None:
                    if len(cache) > index:
                        k, v = torch.cat([cache[index][0], k], 2), torch.cat([cache[index][1], v], 2)
                        cache[index] = (k, v)
                    else:
                        cache.append((k, v))
                y = functional.scaled_dot_product_attention(q, k, v, is_causal=ids.shape[1] > 1)
                x = x + block["out"](y.transpose(1, 2).flatten(2))
                x = x + block["mlp"](x)
            return self.head(self.norm(x))

    policy = Decoder().to(GPU)
    reference = copy.deepcopy(policy).requires_grad_(requires_grad=False)
    optimizer = optim.AdamW(policy.parameters(), 1e-5)

    def log_probabilities(model: Decoder, ids: Tensor) -> Tensor:
        logits = model(ids[:, :-1])[:, 15:]
        return torch.gather(logits.log_softmax(-1), 2, ids[:, 16:].unsqueeze(-1)).squeeze(-1)

    for _step in range(4):
        prompts = torch.randint(4096, (4, 16)).to(GPU).repeat_interleave(4, 0)
        policy.eval()
        with torch.no_grad():
            cache: list[tuple[Tensor, Tensor]] = []
            ids, newest = prompts, prompts
            for _word in range(48):
                scores = policy(newest, cache)[:, -1] / 0.9
                newest = torch.multinomial(scores.softmax(-1), 1)
                ids = torch.cat([ids, newest], 1)
            del cache
            old, anchor = log_probabilities(policy, ids), log_probabilities(reference, ids)
        rewards = torch.rand(4, 4).to(GPU)
        advantages = ((rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-4)).view(-1, 1)
        policy.train()
        for _turn in range(2):
            for rows in torch.arange(16, device=GPU).chunk(2):
                new = log_probabilities(policy, ids[rows])
                ratio = (new - old[rows]).exp()
                gain = torch.min(ratio * advantages[rows], ratio.clamp(0.8, 1.2) * advantages[rows])
                away = (anchor[rows] - new).exp() - (anchor[rows] - new) - 1
                loss = -(gain - 0.04 * away).mean() / 2
                loss.backward()
            nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()


def pixels_policy() -> None:
    """PPO on images: rollouts into buffers, advantages in a loop backwards, shuffled minibatches, four epochs."""
    body = nn.Sequential(nn.Conv2d(4, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(),
                         nn.Conv2d(64, 64, 3), nn.ReLU(), nn.Flatten(), nn.Linear(3136, 512), nn.ReLU())  # fmt: skip
    agent = nn.ModuleDict({"body": body, "actor": nn.Linear(512, 6), "critic": nn.Linear(512, 1)}).to(GPU)
    optimizer = optim.Adam(agent.parameters(), 2.5e-4, eps=1e-5)
    steps, envs = 32, 8
    seen = torch.zeros((steps, envs, 4, 84, 84), device=GPU)
    actions, old, rewards, ends, values = (torch.zeros((steps, envs), device=GPU) for _ in range(5))
    following, ended = torch.rand(envs, 4, 84, 84).to(GPU), torch.zeros(envs).to(GPU)
    for update in range(3):
        optimizer.param_groups[0]["lr"] = (1 - update / 3) * 2.5e-4
        for step in range(steps):
            seen[step], ends[step] = following, ended
            with torch.no_grad():
                hidden = agent["body"](following / 255)
                chosen = torch.distributions.Categorical(logits=agent["actor"](hidden), validate_args=False)
                action = chosen.sample()
                values[step] = agent["critic"](hidden).flatten()
            actions[step], old[step] = action, chosen.log_prob(action)
            action.cpu().numpy()
            rewards[step] = torch.rand(envs).to(GPU).view(-1)
            following, ended = torch.rand(envs, 4, 84, 84).to(GPU), torch.zeros(envs).to(GPU)
        with torch.no_grad():
            later = agent["critic"](agent["body"](following / 255)).reshape(1, -1)
            advantages, last = torch.zeros_like(rewards).to(GPU), torch.zeros(envs, device=GPU)
            for step in reversed(range(steps)):
                alive = 1.0 - (ended if step == steps - 1 else ends[step + 1])
                worth = later[0] if step == steps - 1 else values[step + 1]
                delta = rewards[step] + 0.99 * worth * alive - values[step]
                advantages[step] = last = delta + 0.99 * 0.95 * alive * last
            returns = advantages + values
        flat_seen, flat_actions, flat_old = seen.reshape(-1, 4, 84, 84), actions.reshape(-1), old.reshape(-1)
        flat_advantages, flat_returns = advantages.reshape(-1), returns.reshape(-1)
        for _epoch in range(4):
            for rows in torch.randperm(steps * envs).split(64):
                hidden = agent["body"](flat_seen[rows] / 255)
                chosen = torch.distributions.Categorical(logits=agent["actor"](hidden), validate_args=False)
                ratio = (chosen.log_prob(flat_actions.long()[rows]) - flat_old[rows]).exp()
                gain = flat_advantages[rows]
                gain = (gain - gain.mean()) / (gain.std() + 1e-8)
                policy_loss = torch.max(-gain * ratio, -gain * ratio.clamp(0.9, 1.1)).mean()
                value_loss = 0.5 * (agent["critic"](hidden).view(-1) - flat_returns[rows]).pow(2).mean()
                loss = policy_loss - 0.01 * chosen.entropy().mean() + 0.5 * value_loss
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
                optimizer.step()


def experts() -> None:
    """A mixture of experts of equal capacity: gates in fp32, buffers by position, a loss of balance."""

    class Mixture(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate = nn.Linear(256, 8, bias=False)
            self.up = nn.Parameter(0.02 * torch.randn(8, 256, 1024))
            self.down = nn.Parameter(0.02 * torch.randn(8, 1024, 256))

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            flat = x.flatten(0, 1)
            count, capacity = flat.shape[0], flat.shape[0] * 2 // 8
            chances = self.gate(flat.float()).softmax(-1)
            weights, chosen = chances.topk(2, -1)
            mask = functional.one_hot(chosen, 8).transpose(0, 1).reshape(2 * count, 8)
            position = (mask.cumsum(0) - 1) * mask
            fits = (position < capacity) & (mask > 0)
            place = (position * fits).sum(-1)
            expert = chosen.T.reshape(-1)
            buffer = torch.zeros(8, capacity, 256, device=x.device, dtype=x.dtype)
            kept = fits.any(-1, keepdim=True).to(x.dtype)
            buffer.index_put_((expert, place), flat.repeat(2, 1) * kept, accumulate=True)
            hidden = functional.silu(torch.bmm(buffer, self.up))
            back = torch.bmm(hidden, self.down)[expert, place] * kept * weights.T.reshape(-1, 1)
            balance = 8 * (chances.mean(0) * mask.float().mean(0)).sum()
            return back.view(2, count, 256).sum(0).view_as(x), balance

    words, norm, head = nn.Embedding(8192, 256), nn.LayerNorm(256), nn.Linear(256, 8192)
    layers = nn.ModuleList([Mixture() for _ in range(3)])
    model = nn.ModuleList([words, norm, head, layers]).to(GPU)
    optimizer = optim.AdamW(model.parameters(), 3e-4, betas=(0.9, 0.95))
    for _step in range(6):
        ids = torch.randint(8192, (8, 129)).to(GPU)
        x, balance = words(ids[:, :-1]), torch.zeros((), device=GPU)
        for layer in layers:
            y, more = layer(x)
            x, balance = x + y, balance + more
        loss = functional.cross_entropy(head(norm(x)).flatten(0, 1), ids[:, 1:].flatten()) + 0.01 * balance
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def low_rank() -> None:
    """Adapters of low rank on a frozen encoder in bfloat16, recomputed layers, accumulated batches, a merge."""

    class Adapted(nn.Module):
        def __init__(self, base: nn.Linear) -> None:
            super().__init__()
            self.base = base.requires_grad_(requires_grad=False)
            self.a = nn.Parameter(0.01 * torch.randn(16, base.in_features))
            self.b = nn.Parameter(torch.zeros(base.out_features, 16))

        def forward(self, x: Tensor) -> Tensor:
            out = self.base(x)
            return out + (functional.dropout(x, 0.05).float() @ self.a.T @ self.b.T).to(out.dtype) * 2

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.LayerNorm(512), nn.LayerNorm(512)
            self.qkv, self.out = nn.Linear(512, 1536), nn.Linear(512, 512)
            self.up, self.down = nn.Linear(512, 2048), nn.Linear(2048, 512)

        def forward(self, x: Tensor) -> Tensor:
            q, k, v = (part.unflatten(2, (8, 64)).transpose(1, 2) for part in self.qkv(self.one(x)).chunk(3, 2))
            y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(y.transpose(1, 2).flatten(2))
            return x + self.down(functional.gelu(self.up(self.two(x)), approximate="tanh"))

    words, blocks, head = nn.Embedding(16_384, 512), nn.ModuleList([Block() for _ in range(6)]), nn.Linear(512, 16_384)
    model = nn.ModuleList([words, blocks, head]).to(torch.bfloat16).requires_grad_(requires_grad=False)
    for block in blocks:
        block.qkv, block.down = Adapted(block.qkv), Adapted(block.down)
    model.to(GPU)
    trained = [value for value in model.parameters() if value.requires_grad]
    optimizer = optim.AdamW(trained, 2e-4)
    loader = DataLoader(TensorDataset(torch.randint(16_384, (24, 513))), 2)
    for step, (ids,) in enumerate(loader):
        ids = ids.to(GPU)
        x = words(ids[:, :-1]).requires_grad_()
        for block in blocks:
            x = checkpoint(block, x, use_reentrant=False)
        logits = head(x).float()
        (functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten()) / 4).backward()
        if step % 4 == 3:
            nn.utils.clip_grad_norm_(trained, 0.3)
            optimizer.step()
            optimizer.zero_grad()
    with torch.no_grad():
        for block in blocks:
            for part in (block.qkv, block.down):
                part.base.weight += (2 * part.b @ part.a).to(torch.bfloat16)


def lifelong() -> None:
    """Elastic weight consolidation over three tasks: importances by gradients, a memory of examples."""
    model = perceptron(784, 1024, 1024, 10).to(GPU)
    importances: list[dict[str, Tensor]] = []
    anchors: list[dict[str, Tensor]] = []
    memory: list[tuple[Tensor, Tensor]] = []
    for _task in range(3):
        data = TensorDataset(torch.randn(640, 784), torch.randint(10, (640,)))
        optimizer = optim.SGD(model.parameters(), 0.01, momentum=0.9)
        for x, y in DataLoader(data, 64, shuffle=True):
            x, y = x.to(GPU), y.to(GPU)
            loss = functional.cross_entropy(model(x), y)
            for importance, anchor in zip(importances, anchors, strict=True):
                for name, value in model.named_parameters():
                    loss = loss + 50 * (importance[name] * (value - anchor[name]).pow(2)).sum()
            if memory:
                old_x, old_y = memory[-1]
                loss = loss + functional.cross_entropy(model(old_x), old_y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        importance = {name: torch.zeros_like(value) for name, value in model.named_parameters()}
        for x, y in DataLoader(data, 64):
            model.zero_grad()
            functional.nll_loss(functional.log_softmax(model(x.to(GPU)), 1), y.to(GPU)).backward()
            for name, value in model.named_parameters():
                if value.grad is not None:
                    importance[name] += value.grad.detach().pow(2) / 10
        importances.append(importance)
        anchors.append({name: value.detach().clone() for name, value in model.named_parameters()})
        memory.append((data.tensors[0][:64].to(GPU), data.tensors[1][:64].to(GPU)))


def beams() -> None:
    """Translation by a transformer with teacher forcing, and beams of five after each epoch, reordered by index."""
    model = nn.Transformer(128, 4, 2, 2, 512, batch_first=True).to(GPU)
    words, head = nn.Embedding(4_000, 128).to(GPU), nn.Linear(128, 4_000).to(GPU)
    parameters = [*model.parameters(), *words.parameters(), *head.parameters()]
    optimizer = optim.Adam(parameters, 1e-4, betas=(0.9, 0.98))
    for _epoch in range(2):
        model.train()
        for _step in range(5):
            source, target = torch.randint(4_000, (16, 24)).to(GPU), torch.randint(4_000, (16, 21)).to(GPU)
            mask = nn.Transformer.generate_square_subsequent_mask(20, device=GPU)
            out = head(model(words(source), words(target[:, :-1]), tgt_mask=mask))
            loss = functional.cross_entropy(out.flatten(0, 1), target[:, 1:].flatten(), label_smoothing=0.1)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            memory = model.encoder(words(torch.randint(4_000, (8, 24)).to(GPU))).repeat_interleave(5, 0)
            made = torch.zeros(40, 1, dtype=torch.long, device=GPU)
            scores = torch.zeros(8, 5, device=GPU)
            for _word in range(12):
                mask = nn.Transformer.generate_square_subsequent_mask(made.shape[1], device=GPU)
                chances = head(model.decoder(words(made), memory, tgt_mask=mask)[:, -1]).log_softmax(-1)
                total = (scores.view(40, 1) + chances).view(8, -1)
                scores, places = total.topk(5, 1)
                rows = (places // 4_000 + 5 * torch.arange(8, device=GPU)[:, None]).view(-1)
                made = torch.cat([made[rows], (places % 4_000).view(40, 1)], 1)


LOOPS: tuple[Callable[[], None], ...] = (two_towers, language_policy, pixels_policy, experts, low_rank, lifelong, beams)

if __name__ == "__main__":
    torch.manual_seed(0)
    {loop.__name__: loop for loop in LOOPS}[sys.argv[1]]()
