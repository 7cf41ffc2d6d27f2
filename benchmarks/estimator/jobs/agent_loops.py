"""Training loops of agents, ensembles, graphs and fixed points: rollouts, `vmap`, gradients of gradients.

    python benchmarks/estimator/jobs/agent_loops.py replay

Networks are small; what varies is what a loop keeps, copies, accumulates and evaluates.
"""

from __future__ import annotations

import copy
import math
import sys
from collections.abc import Callable

import torch
from torch import Tensor, nn, optim
from torch.func import functional_call, grad, stack_module_state, vmap
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

GPU = "cuda"


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


LOOPS: tuple[Callable[[], None], ...] = (
    *(replay, imagination, ensemble, evolution, hypergradients, equilibrium, graph_attention),
    *(transport,),
)  # fmt: skip

if __name__ == "__main__":
    torch.manual_seed(0)
    {loop.__name__: loop for loop in LOOPS}[sys.argv[1]]()
