"""Reinforcement learning: a walker on the CPU, a network on the GPU, a memory of steps to learn from.

python examples/dqn.py --batch-size 128
"""

from __future__ import annotations

import argparse
import collections
import copy
import random

import torch
from torch import nn

Step = collections.namedtuple("Step", "seen action then reward")


class Corridor:
    """A walk to the right end of a corridor; an episode ends there or after 200 steps."""

    def reset(self) -> torch.Tensor:
        self.place, self.steps = 0.0, 0
        return torch.tensor([self.place, 0.0])

    def step(self, action: int) -> tuple[torch.Tensor | None, float]:
        self.place, self.steps = self.place + (0.1 if action else -0.1), self.steps + 1
        done = self.place > 1 or self.steps > 200
        return (None if done else torch.tensor([self.place, self.steps / 200])), float(self.place > 1)


def learn(network, target, optimizer, memory, args) -> None:
    batch = Step(*zip(*random.sample(memory, args.batch_size), strict=True))
    going = torch.tensor([each is not None for each in batch.then], device=args.device)
    then = torch.stack([each for each in batch.then if each is not None]).to(args.device)
    values = torch.zeros(args.batch_size, device=args.device)
    with torch.no_grad():
        values[going] = target(then).max(1).values
    wanted = torch.tensor(batch.reward, device=args.device) + 0.99 * values
    actions = torch.tensor(batch.action, device=args.device)[:, None]
    found = network(torch.stack(batch.seen).to(args.device)).gather(1, actions)[:, 0]
    loss = nn.functional.smooth_l1_loss(found, wanted)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_value_(network.parameters(), 100)
    optimizer.step()
    for slow, fast in zip(target.parameters(), network.parameters(), strict=True):
        slow.data.lerp_(fast.data, 0.005)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--episodes", type=int, default=50)
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()
    network = nn.Sequential(nn.Linear(2, args.width), nn.ReLU(), nn.Linear(args.width, 2)).to(args.device)
    target = copy.deepcopy(network).requires_grad_(requires_grad=False)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-4, amsgrad=True)
    memory: collections.deque[Step] = collections.deque(maxlen=10_000)
    world = Corridor()
    for _ in range(args.episodes):
        seen: torch.Tensor | None = world.reset()
        while seen is not None:
            with torch.no_grad():
                best = network(seen.to(args.device)).argmax().item()
            action = random.randrange(2) if random.random() < 0.2 else best
            then, reward = world.step(action)
            memory.append(Step(seen, action, then, reward))
            seen = then
            if len(memory) >= args.batch_size:
                learn(network, target, optimizer, memory, args)


if __name__ == "__main__":
    main()
