"""Training loops by what they do with autograd: own functions, transforms, recomputing, offloading, parametrizations.

    python benchmarks/estimator/jobs/autograd_loops.py own_function

Networks are small; what varies is what is saved between forward and backward, where, and for how long.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn, optim
from torch.nn import functional
from torch.nn.utils import parametrize
from torch.nn.utils.parametrizations import orthogonal, spectral_norm, weight_norm
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

GPU = torch.device("cuda")
WIDTH, CLASSES = 256, 10


class Block(nn.Module):
    """Attention and a perceptron."""

    def __init__(self, width: int = WIDTH, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down, self.dropout = nn.Linear(width, 4 * width), nn.Linear(4 * width, width), dropout

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.first(x)).unflatten(-1, (3, 4, -1)).permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        x = x + functional.dropout(self.out(seen), self.dropout)
        return x + functional.dropout(self.down(functional.gelu(self.up(self.second(x)))), self.dropout)


class Tower(nn.Module):
    """An embedding, blocks that `run` calls, and a head."""

    def __init__(self, depth: int = 4, words: int = 2000, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(words, WIDTH), nn.Linear(WIDTH, words, bias=False)
        self.blocks = nn.ModuleList(Block(dropout=dropout) for _ in range(depth))

    def forward(self, x: Tensor, run: Callable[..., Tensor] = lambda block, x: block(x)) -> Tensor:
        x = self.embedding(x)
        for block in self.blocks:
            x = run(block, x)
        return self.head(x)


def texts(steps: int, batch: int = 8, length: int = 128) -> Iterator[tuple[Tensor, Tensor]]:
    for _ in range(steps):
        words = torch.randint(2000, (batch, length + 1)).to(GPU)
        yield words[:, :-1], words[:, 1:]


def rows(steps: int, batch: int = 64, width: int = WIDTH) -> Iterator[tuple[Tensor, Tensor]]:
    for _ in range(steps):
        yield torch.randn(batch, width).to(GPU), torch.randint(CLASSES, (batch,)).to(GPU)


def perceptron(hidden: int = 1024) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(WIDTH, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.Tanh(), nn.Linear(hidden, CLASSES)
    ).to(GPU)


def loss_of(logits: Tensor, wanted: Tensor) -> Tensor:
    return functional.cross_entropy(logits.flatten(0, -2), wanted.flatten())


def step(optimizer: optim.Optimizer, loss: Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


class Swish(torch.autograd.Function):
    """Saves its input alone, and computes the rest again."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, slope: Tensor) -> Tensor:
        ctx.save_for_backward(x, slope)
        return x * torch.sigmoid(slope * x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        x, slope = ctx.saved_tensors
        gate = torch.sigmoid(slope * x)
        rest = gate * (1 - gate)
        return gradient * (gate + slope * x * rest), (gradient * x * x * rest).sum(0)


class ChunkedLoss(torch.autograd.Function):
    """Cross entropy of a linear layer, in chunks of rows; the gradients are computed in the forward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, wanted: Tensor, chunk: int) -> Tensor:
        of_x, of_weight = torch.empty_like(x), torch.zeros_like(weight)
        total = x.new_zeros((), dtype=torch.float32)
        for begin in range(0, len(x), chunk):
            part, labels = x[begin : begin + chunk], wanted[begin : begin + chunk]
            logits = (part @ weight.T).float()
            total += functional.cross_entropy(logits, labels, reduction="sum")
            slope = logits.softmax(-1)
            slope[torch.arange(len(part), device=x.device), labels] -= 1
            slope = (slope / len(x)).to(x.dtype)
            of_x[begin : begin + chunk] = slope @ weight
            of_weight.addmm_(slope.T, part)
        ctx.save_for_backward(of_x, of_weight)
        return total / len(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        of_x, of_weight = ctx.saved_tensors
        return of_x.mul_(gradient), of_weight.mul_(gradient), None, None


def own_function() -> None:
    """An activation of its own with a slope that is trained, between wide layers."""
    model = nn.ModuleList([nn.Linear(WIDTH, 2048), nn.Linear(2048, 2048), nn.Linear(2048, CLASSES)]).to(GPU)
    slopes = nn.ParameterList([torch.ones(2048), torch.ones(2048)]).to(GPU)
    optimizer = optim.RMSprop([*model.parameters(), *slopes.parameters()], 1e-3, momentum=0.9, centered=True)
    for x, y in rows(6, 512):
        for layer, slope in zip(model[:2], slopes, strict=True):
            x = Swish.apply(layer(x), slope)
        step(optimizer, functional.cross_entropy(model[2](x), y))


def chunked_loss() -> None:
    """A vocabulary's cross entropy in chunks, whose gradients exist before backward begins."""
    model = Tower(2, 20_000).to(GPU)
    optimizer = optim.AdamW(model.parameters(), 1e-3)
    for x, y in texts(5, 4, 256):
        x = model.embedding(x)
        for block in model.blocks:
            x = block(x)
        step(optimizer, ChunkedLoss.apply(x.flatten(0, 1), model.head.weight, y.flatten(), 256))


def private_gradients() -> None:
    """Gradients of each example by `vmap`, clipped and with noise."""
    model = perceptron(512)
    values = {name: value.detach() for name, value in model.named_parameters()}
    optimizer = optim.SGD(model.parameters(), 0.1)

    def loss(values: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        out = torch.func.functional_call(model, values, (x.unsqueeze(0),))
        return functional.cross_entropy(out, y.unsqueeze(0))

    of_each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))
    for x, y in rows(6, 48):
        gradients = of_each(values, x, y)
        norms = torch.stack([value.flatten(1).norm(dim=1) for value in gradients.values()], 1).norm(dim=1)
        scale = (1.0 / (norms + 1e-6)).clamp(max=1.0)
        for name, parameter in model.named_parameters():
            total = torch.einsum("b,b...->...", scale, gradients[name])
            parameter.grad = (total + torch.randn_like(total)) / len(x)
        optimizer.step()


def tangents() -> None:
    """Forward gradients: a directional derivative by `jvp`, and a Hessian's product every third step."""
    model = perceptron()
    values = {name: value.detach() for name, value in model.named_parameters()}
    for at, (x, y) in enumerate(rows(7, 128)):

        def loss(values: dict[str, Tensor], x: Tensor = x, y: Tensor = y) -> Tensor:
            return functional.cross_entropy(torch.func.functional_call(model, values, (x,)), y)

        along = {name: torch.randn_like(value) for name, value in values.items()}
        _, slope = torch.func.jvp(loss, (values,), (along,))
        if at % 3 == 2:
            _, along = torch.func.jvp(torch.func.grad(loss), (values,), (along,))
        for name, value in values.items():
            value.sub_(0.01 * slope * along[name])


def recomputed() -> None:
    """Reentrant, other and selective checkpoints in turn, with dropout."""
    model = Tower(4, dropout=0.1).to(GPU)
    optimizer = optim.AdamW(model.parameters(), 1e-3)
    saved = [torch.ops.aten.mm.default, torch.ops.aten.addmm.default]

    def policy(_ctx: Any, operator: Any, *_arguments: Any, **_named: Any) -> CheckpointPolicy:
        return CheckpointPolicy.MUST_SAVE if operator in saved else CheckpointPolicy.PREFER_RECOMPUTE

    contexts = functools.partial(create_selective_checkpoint_contexts, policy)
    kinds: list[Callable[..., Tensor]] = [
        functools.partial(checkpoint, use_reentrant=True),
        functools.partial(checkpoint, use_reentrant=False),
        functools.partial(checkpoint, use_reentrant=False, context_fn=contexts),
    ]
    for at, (x, y) in enumerate(texts(9, 16)):
        step(optimizer, loss_of(model(x, kinds[at % 3]), y))


def offloaded() -> None:
    """What is saved goes to the host: as a library does it, and by hooks of the script for large tensors alone."""
    model = Tower(3).to(GPU)
    optimizer = optim.AdamW(model.parameters(), 1e-3)

    def away(value: Tensor) -> Any:
        return value.to("cpu", torch.float16) if value.numel() > 100_000 and value.is_floating_point() else value

    def back(value: Any) -> Tensor:
        return value.to(GPU, torch.float32) if value.device.type == "cpu" else value

    for at, (x, y) in enumerate(texts(6, 16)):
        hooks = (
            torch.autograd.graph.save_on_cpu(pin_memory=False)
            if at % 2
            else torch.autograd.graph.saved_tensors_hooks(away, back)
        )
        with hooks:
            loss = loss_of(model(x), y)
        step(optimizer, loss)


def sharpness() -> None:
    """Two gradients a step at weights that were moved uphill, and slow weights every fourth step."""
    model = perceptron()
    optimizer = optim.SGD(model.parameters(), 0.05, momentum=0.9)
    parameters = list(model.parameters())
    slow = [parameter.detach().clone() for parameter in parameters]
    for at, (x, y) in enumerate(rows(10, 256)):
        functional.cross_entropy(model(x), y).backward()
        with torch.no_grad():
            norm = torch.norm(torch.stack([parameter.grad.norm(p=2) for parameter in parameters]), p=2)
            moved = [parameter.grad * (0.05 / (norm + 1e-12)) for parameter in parameters]
            for parameter, far in zip(parameters, moved, strict=True):
                parameter.add_(far)
        optimizer.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        with torch.no_grad():
            for parameter, far in zip(parameters, moved, strict=True):
                parameter.sub_(far)
        optimizer.step()
        optimizer.zero_grad()
        if at % 4 == 3:
            with torch.no_grad():
                for parameter, old in zip(parameters, slow, strict=True):
                    old.add_(parameter - old, alpha=0.5)
                    parameter.copy_(old)


class LowRank(nn.Module):
    """A weight with a trained part of low rank."""

    def __init__(self, rows: int, columns: int, rank: int = 8) -> None:
        super().__init__()
        self.left, self.right = nn.Parameter(torch.zeros(rows, rank)), nn.Parameter(torch.randn(rank, columns))

    def forward(self, weight: Tensor) -> Tensor:
        return weight + self.left @ self.right * 0.1


def parametrized() -> None:
    """Weights that are computed: of low rank beside frozen ones, normalized, orthogonal, and merged at the end."""
    model = Tower(3).to(GPU).requires_grad_(requires_grad=False)
    for block in model.blocks:
        for layer in (block.qkv, block.up):
            parametrize.register_parametrization(layer, "weight", LowRank(*layer.weight.shape).to(GPU))
        weight_norm(block.out)
        spectral_norm(block.down)
    model.head = orthogonal(nn.Linear(WIDTH, CLASSES)).to(GPU)
    trained = [value for value in model.parameters() if value.requires_grad]
    optimizer = optim.Adam(trained, 1e-3)
    for at, (x, _) in enumerate(texts(6, 16)):
        with parametrize.cached() if at % 2 else torch.enable_grad():
            out = model(x).mean(1)
        step(optimizer, functional.cross_entropy(out, torch.randint(CLASSES, (len(x),)).to(GPU)))
    for block in model.blocks:
        for layer in (block.qkv, block.up):
            parametrize.remove_parametrizations(layer, "weight")
    with torch.no_grad():
        model(next(texts(1, 32))[0])


def curved_steps() -> None:
    """A preconditioner of both sides of each matrix, with its roots by eigenvalues every third step."""
    model = perceptron(512)
    matrices = [value for value in model.parameters() if value.dim() == 2]
    sides = [
        (torch.zeros(len(m), len(m), device=GPU), torch.zeros(m.shape[1], m.shape[1], device=GPU)) for m in matrices
    ]
    roots: dict[int, tuple[Tensor, Tensor]] = {}
    optimizer = optim.SGD(model.parameters(), 0.1, momentum=0.9)

    def root(matrix: Tensor) -> Tensor:
        values, vectors = torch.linalg.eigh(matrix + 1e-6 * torch.eye(len(matrix), device=GPU))
        return vectors @ torch.diag(values.clamp(min=1e-6) ** -0.25) @ vectors.T

    for at, (x, y) in enumerate(rows(8, 128)):
        optimizer.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        for index, (matrix, (left, right)) in enumerate(zip(matrices, sides, strict=True)):
            left.addmm_(matrix.grad, matrix.grad.T)
            right.addmm_(matrix.grad.T, matrix.grad)
            if at % 3 == 0:
                roots[index] = root(left), root(right)
            matrix.grad = roots[index][0] @ matrix.grad @ roots[index][1]
        optimizer.step()


LOOPS: tuple[Callable[[], None], ...] = (
    *(own_function, chunked_loss, private_gradients, tangents, recomputed, offloaded, sharpness, parametrized),
    curved_steps,
)

if __name__ == "__main__":
    torch.manual_seed(0)
    {loop.__name__: loop for loop in LOOPS}[sys.argv[1]]()
