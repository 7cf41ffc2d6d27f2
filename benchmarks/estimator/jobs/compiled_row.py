"""One small training for each way in which scripts use `torch.compile`; `benchmarks.estimator.compiled` runs them."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

B, L, D, HEADS, VOCABULARY = 16, 512, 512, 8, 8192
STEPS = 5


class Block(nn.Module):
    """A pre-norm transformer block."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.qkv, self.out = nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.up, self.down = nn.Linear(D, 4 * D), nn.Linear(4 * D, D)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        heads = self.qkv(self.norm1(x)).view(batch, length, 3, HEADS, D // HEADS).permute(2, 0, 3, 1, 4)
        query, key, value = heads.unbind(0)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, D))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class Gpt(nn.Module):
    """Embedding, blocks, head; subclasses differ in how the blocks are called."""

    def __init__(self, layers: int = 4) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, D)
        self.blocks = nn.ModuleList(Block() for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(D), nn.Linear(D, VOCABULARY, bias=False)

    def body(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        logits = self.head(self.norm(self.body(self.embed(tokens))))
        return functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())


class PrintsInTheMiddle(Gpt):
    """Reads a value between the blocks, which breaks the graph."""

    def body(self, x: torch.Tensor) -> torch.Tensor:
        for number, block in enumerate(self.blocks):
            x = block(x)
            if number == 1 and x.abs().max().item() > 1e4:
                print("large activations")
        return x


class DisabledBlock(Gpt):
    """The first block is marked not to be compiled."""

    def body(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.compiler.disable(self.blocks[0])(x)
        for block in self.blocks[1:]:
            x = block(x)
        return x


class Checkpointed(Gpt):
    """Recomputes its blocks in backward."""

    def body(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return x


@dataclass
class Output:
    """A result that is no tensor."""

    loss: torch.Tensor
    hidden: torch.Tensor


class ReturnsAnObject(Gpt):
    """As models of libraries do."""

    def forward(self, tokens: torch.Tensor) -> Output:
        hidden = self.norm(self.body(self.embed(tokens)))
        logits = self.head(hidden)
        return Output(functional.cross_entropy(logits.flatten(0, 1), tokens.flatten()), hidden)


@torch.compile
def orthogonalized(gradient: torch.Tensor, steps: int) -> torch.Tensor:
    """Newton-Schulz iterations, as Muon's."""
    x = gradient.bfloat16()
    x = x.T if gradient.size(0) > gradient.size(1) else x
    x = x / (x.norm() + 1e-7)
    for _ in range(steps):
        a = x @ x.T
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return x.T if gradient.size(0) > gradient.size(1) else x


class Muon(torch.optim.Optimizer):
    """SGD with orthogonalized momentum."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        super().__init__(parameters, {"lr": 0.02})

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                momentum = self.state[parameter].setdefault("momentum", torch.zeros_like(parameter.grad))
                momentum.lerp_(parameter.grad, 0.05)
                parameter.add_(orthogonalized(momentum, 5), alpha=-group["lr"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=sorted(KINDS))
    torch.manual_seed(0)
    KINDS[parser.parse_args().kind]()


def train(
    run: Callable[[torch.Tensor], object],
    optimizers: list[torch.optim.Optimizer],
    *,
    lengths: tuple[int, ...] = (L,),
    step: Callable[[], object] | None = None,
) -> None:
    for number in range(STEPS):
        tokens = torch.randint(VOCABULARY, (B, lengths[number % len(lengths)])).cuda()
        with torch.autocast("cuda", torch.bfloat16):
            loss = run(tokens)
        getattr(loss, "loss", loss).backward()  # type: ignore[attr-defined]
        for optimizer in optimizers:
            (step or optimizer.step)()
            optimizer.zero_grad()


def adam(model: nn.Module) -> list[torch.optim.Optimizer]:
    return [torch.optim.AdamW(model.parameters(), lr=1e-4)]


def train_compiled(model: nn.Module, *, lengths: tuple[int, ...] = (L,), **options: object) -> None:
    model.cuda()
    train(torch.compile(model, **options), adam(model), lengths=lengths)


def compiled_step() -> None:
    """Only the optimizer is compiled: foreach Adam holds no intermediate results then."""
    model = Gpt().cuda()
    (optimizer,) = adam(model)
    train(model, [optimizer], step=torch.compile(optimizer.step))


def compiled_step_function() -> None:
    model = Gpt().cuda()
    (optimizer,) = adam(model)

    @torch.compile(fullgraph=False)
    def step() -> None:
        optimizer.step()

    train(torch.compile(model), [optimizer], step=step)


def muon() -> None:
    model = Gpt().cuda()
    matrices = [parameter for parameter in model.blocks.parameters() if parameter.ndim == 2]
    rest = [parameter for parameter in model.parameters() if not any(parameter is one for one in matrices)]
    train(torch.compile(model, dynamic=False, fullgraph=True), [Muon(matrices), torch.optim.AdamW(rest, fused=True)])


def blocks_alone() -> None:
    """As torchtitan does."""
    model = Gpt().cuda()
    for block in model.blocks:
        block.compile(fullgraph=True)
    train(model, adam(model))


def loss_function() -> None:
    """A compiled function that uses a model which is not among its arguments."""
    model = Gpt().cuda()

    @torch.compile
    def loss_of(tokens: torch.Tensor) -> torch.Tensor:
        return model(tokens)

    train(loss_of, adam(model))


def ddp() -> None:
    torch.distributed.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    model = Gpt().cuda()
    train(nn.parallel.DistributedDataParallel(torch.compile(model)), adam(model))


def cuda_graphs() -> None:
    import torch._inductor.config

    # It counts tensors in the pool, and finds two on the null GPU that are on the CPU elsewhere.
    torch._inductor.config.triton.slow_path_cudagraph_asserts = False
    train_compiled(Gpt(), mode="reduce-overhead")


KINDS: dict[str, Callable[[], None]] = {
    "whole": lambda: train_compiled(Gpt()),
    "break": lambda: train_compiled(PrintsInTheMiddle()),
    "disabled-part": lambda: train_compiled(DisabledBlock()),
    "checkpoint": lambda: train_compiled(Checkpointed()),
    "object": lambda: train_compiled(ReturnsAnObject()),
    "lengths": lambda: train_compiled(Gpt(), lengths=(L, 3 * L // 4, L // 2)),
    "dynamic": lambda: train_compiled(Gpt(), lengths=(L, 3 * L // 4, L // 2), dynamic=True),
    "cuda-graphs": cuda_graphs,
    "compiled-step": compiled_step,
    "compiled-step-function": compiled_step_function,
    "muon": muon,
    "blocks": blocks_alone,
    "loss-function": loss_function,
    "ddp": ddp,
}


if __name__ == "__main__":
    main()
