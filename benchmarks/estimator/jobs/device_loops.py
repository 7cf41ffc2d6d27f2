"""Training loops by what they ask of the GPU: streams, graphs, limits, caches, half precision, rare layouts.

    python benchmarks/estimator/jobs/device_loops.py prefetched

Networks are small; what varies is which allocator calls, kernels and layouts they reach.
"""

from __future__ import annotations

import copy
import gc
import sys
from collections.abc import Callable

import torch
from autograd_loops import CLASSES, GPU, WIDTH, Tower, loss_of, perceptron, rows, step, texts
from torch import Tensor, nn, optim
from torch.nn import functional


def prefetched() -> None:
    """The next batch is copied on a stream of its own, and recorded on the stream that computes."""
    model = perceptron(2048)
    optimizer = optim.Adam(model.parameters(), 1e-3)
    copies = torch.cuda.Stream()
    host = [(torch.randn(4096, WIDTH).pin_memory(), torch.randint(CLASSES, (4096,))) for _ in range(8)]

    def fetch(at: int) -> tuple[Tensor, Tensor] | None:
        if at >= len(host):
            return None
        with torch.cuda.stream(copies):
            return host[at][0].to(GPU, non_blocking=True).mul_(0.5).sub_(0.1), host[at][1].to(GPU, non_blocking=True)

    pair, at = fetch(0), 0
    while pair is not None:
        torch.cuda.current_stream().wait_stream(copies)
        x, y = pair
        x.record_stream(torch.cuda.current_stream())
        y.record_stream(torch.cuda.current_stream())
        at += 1
        pair = fetch(at)
        step(optimizer, functional.cross_entropy(model(x), y))


def graphed_parts() -> None:
    """Layers that are captured as CUDA graphs with their backward, and a loss outside of them."""
    first, second = perceptron(), nn.Sequential(nn.Linear(CLASSES, 512), nn.ReLU(), nn.Linear(512, CLASSES)).to(GPU)
    samples = torch.randn(128, WIDTH, device=GPU), torch.randn(128, CLASSES, device=GPU, requires_grad=True)
    first = torch.cuda.make_graphed_callables(first, (samples[0],))
    second = torch.cuda.make_graphed_callables(second, (samples[1],))
    optimizer = optim.AdamW([*first.parameters(), *second.parameters()], 1e-3)
    for x, y in rows(6, 128):
        step(optimizer, functional.cross_entropy(second(first(x)), y))


def captured_step() -> None:
    """A whole step in one CUDA graph, after three steps on a side stream."""
    model = perceptron()
    optimizer = optim.Adam(model.parameters(), 1e-3, capturable=True)
    x, y = torch.randn(256, WIDTH, device=GPU), torch.randint(CLASSES, (256,), device=GPU)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step(optimizer, functional.cross_entropy(model(x), y))
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    optimizer.zero_grad(set_to_none=True)
    with torch.cuda.graph(graph):
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    for new_x, new_y in rows(6, 256):
        x.copy_(new_x)
        y.copy_(new_y)
        graph.replay()
    model(torch.randn(1024, WIDTH, device=GPU)).argmax(1).cpu()


def fake_quantized() -> None:
    """Training with weights by channel and activations by tensor as of eight bits."""
    model = nn.Sequential(
        nn.Conv2d(3, 64, 3, 1, 1), nn.ReLU(), nn.Conv2d(64, 128, 3, 2, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Linear(128, CLASSES),
    ).to(GPU)  # fmt: skip
    least, most = torch.zeros(3, device=GPU), torch.ones(3, device=GPU)
    optimizer = optim.SGD(model.parameters(), 0.01, momentum=0.9)

    def quantized(weight: Tensor) -> Tensor:
        scale = weight.detach().abs().flatten(1).amax(1) / 127
        zero = torch.zeros(len(scale), dtype=torch.int32, device=GPU)
        return torch.fake_quantize_per_channel_affine(weight, scale, zero, 0, -128, 127)

    for _ in range(6):
        x, y = torch.randn(32, 3, 48, 48).to(GPU), torch.randint(CLASSES, (32,)).to(GPU)
        which = 0
        for layer in model:
            if isinstance(layer, nn.Conv2d):
                x = functional.conv2d(x, quantized(layer.weight), layer.bias, layer.stride, layer.padding)
            elif isinstance(layer, nn.Linear):
                x = functional.linear(x, quantized(layer.weight), layer.bias)
            else:
                x = layer(x)
            if isinstance(layer, nn.ReLU):
                least[which] = torch.minimum(least[which], x.detach().min())
                most[which] = torch.maximum(most[which], x.detach().max())
                scale = ((most[which] - least[which]) / 255).clamp(min=1e-8)
                zero = (-least[which] / scale).round().to(torch.int32)
                x = torch.fake_quantize_per_tensor_affine(x, scale, zero, 0, 255)
                which += 1
        step(optimizer, functional.cross_entropy(x, y))


def half_masters() -> None:
    """A model in half precision, its masters in single, with a scale of the loss that grows."""
    model = Tower(3).to(GPU).half()
    masters = [value.detach().clone().float() for value in model.parameters()]
    optimizer, scale = optim.AdamW(masters, 1e-3), 2.0**10
    for at, (x, y) in enumerate(texts(7)):
        loss = loss_of(model(x).float(), y)
        (loss * scale).backward()
        for master, value in zip(masters, model.parameters(), strict=True):
            master.grad = value.grad.float().div_(scale)
            value.grad = None
        nn.utils.clip_grad_norm_(masters, 1.0)
        optimizer.step()
        with torch.no_grad():
            torch._foreach_copy_(list(model.parameters()), masters)
        scale *= 2 if at % 3 == 2 else 1


def emptied() -> None:
    """The cache is emptied after each epoch and before each validation, whose batches are larger."""
    model = Tower(3).to(GPU)
    optimizer = optim.AdamW(model.parameters(), 1e-3, foreach=False)
    for _ in range(2):
        for at, (x, y) in enumerate(texts(5, 8, 160)):
            step(optimizer, loss_of(model(x), y))
            if at % 2:
                del x, y
                gc.collect()
                torch.cuda.empty_cache()
        torch.cuda.empty_cache()
        with torch.inference_mode():
            total = sum(loss_of(model(x), y).item() for x, y in texts(2, 24, 192))
        torch.cuda.empty_cache()
        print(total, torch.cuda.memory_reserved())


def limited() -> None:
    """The process may use a part of the GPU; larger batches follow smaller ones."""
    torch.cuda.set_per_process_memory_fraction(0.06)
    model = Tower(2).to(GPU)
    optimizer = optim.AdamW(model.parameters(), 1e-3)
    for batch in (2, 6, 10, 14, 18, 22):
        x, y = next(texts(1, batch, 256))
        step(optimizer, loss_of(model(x), y))


def ragged() -> None:
    """Texts of several lengths as one nested tensor with jagged rows, through attention."""
    qkv, out, head = (nn.Linear(WIDTH, size).to(GPU) for size in (3 * WIDTH, WIDTH, CLASSES))
    norm = nn.LayerNorm(WIDTH).to(GPU)
    optimizer = optim.Adam([*qkv.parameters(), *out.parameters(), *head.parameters(), *norm.parameters()], 1e-3)
    for at in range(6):
        lengths = [40 + 13 * ((at + index) % 7) for index in range(16)]
        x = torch.nested.nested_tensor([torch.randn(n, WIDTH) for n in lengths], layout=torch.jagged).to(GPU)
        q, k, v = (part.unflatten(-1, (4, -1)).transpose(1, 2) for part in qkv(norm(x)).chunk(3, -1))
        seen = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = x + functional.gelu(out(seen))
        pooled = x.to_padded_tensor(0.0).sum(1) / torch.tensor(lengths, device=GPU).unsqueeze(1)
        step(optimizer, functional.cross_entropy(head(pooled), torch.randint(CLASSES, (16,), device=GPU)))


def sparse_tables() -> None:
    """Tables of words whose gradients are sparse, with an optimizer of their own, and bags of words."""
    table = nn.Embedding(50_000, 64, sparse=True).to(GPU)
    bags = nn.EmbeddingBag(30_000, 64, mode="mean", sparse=True).to(GPU)
    head = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, CLASSES)).to(GPU)
    sparse = optim.SparseAdam([*table.parameters(), *bags.parameters()], 1e-3)
    dense = optim.Adam(head.parameters(), 1e-3)
    for _ in range(6):
        words, bag = torch.randint(50_000, (256, 20)).to(GPU), torch.randint(30_000, (2560,)).to(GPU)
        starts = torch.arange(0, 2560, 10, device=GPU)
        out = head(torch.cat([table(words).mean(1), bags(bag, starts)], 1))
        loss = functional.cross_entropy(out, torch.randint(CLASSES, (256,), device=GPU))
        sparse.zero_grad()
        dense.zero_grad()
        loss.backward()
        sparse.step()
        dense.step()


def messages() -> None:
    """A graph's messages: sums, means and maxima by `scatter_reduce`, `index_add` and `segment_reduce`."""
    nodes, edges = 3000, 24_000
    first, second, third = (nn.Linear(WIDTH, WIDTH).to(GPU) for _ in range(3))
    head = nn.Linear(3 * WIDTH, CLASSES).to(GPU)
    optimizer = optim.AdamW([p for m in (first, second, third, head) for p in m.parameters()], 1e-3)
    for _ in range(5):
        x = torch.randn(nodes, WIDTH).to(GPU)
        source, target = (
            torch.randint(nodes, (edges,)).to(GPU),
            torch.arange(edges).div(8, rounding_mode="floor").to(GPU),
        )
        sent = functional.relu(first(x))[source]
        summed = torch.zeros_like(x).index_add(0, target, second(sent))
        most = torch.zeros_like(x).scatter_reduce(
            0, target[:, None].expand(-1, WIDTH), sent, "amax", include_self=False
        )
        lengths = torch.full((nodes,), 8, device=GPU)
        mean = torch.segment_reduce(third(sent), "mean", lengths=lengths, axis=0, unsafe=True)
        out = head(torch.cat([summed, most, mean], 1))
        step(optimizer, functional.cross_entropy(out, torch.randint(CLASSES, (nodes,), device=GPU)))


class Spectrum(nn.Module):
    """Products of the lowest Fourier modes with weights."""

    def __init__(self, width: int, modes: int) -> None:
        super().__init__()
        self.modes = modes
        self.weight = nn.Parameter(torch.randn(width, width, modes, modes, dtype=torch.cfloat) / width)

    def forward(self, x: Tensor) -> Tensor:
        found = torch.fft.rfft2(x)
        out = torch.zeros_like(found)
        kept = found[..., : self.modes, : self.modes]
        out[..., : self.modes, : self.modes] = torch.einsum("bixy,ioxy->boxy", kept, self.weight)
        return torch.fft.irfft2(out, s=x.shape[-2:])


def spectra() -> None:
    """A neural operator: Fourier modes beside 1x1 convolutions, and a loss of the spectrum's magnitudes."""
    lift, drop = nn.Conv2d(3, 32, 1).to(GPU), nn.Conv2d(32, 1, 1).to(GPU)
    parts = nn.ModuleList([nn.ModuleList([Spectrum(32, 12), nn.Conv2d(32, 32, 1)]) for _ in range(3)]).to(GPU)
    optimizer = optim.Adam([*lift.parameters(), *drop.parameters(), *parts.parameters()], 1e-3)
    for _ in range(5):
        x, y = torch.randn(8, 3, 64, 64).to(GPU), torch.randn(8, 1, 64, 64).to(GPU)
        x = lift(x)
        for spectrum, near in parts:
            x = functional.gelu(spectrum(x) + near(x))
        out = drop(x)
        loss = functional.mse_loss(out, y) + 0.1 * (torch.fft.rfft2(out).abs() - torch.fft.rfft2(y).abs()).abs().mean()
        step(optimizer, loss)


def masked_attention() -> None:
    """Attention in single precision with a bias that is trained, and grouped heads in bfloat16."""
    q, k, v = (nn.Linear(WIDTH, WIDTH).to(GPU) for _ in range(3))
    bias = nn.Parameter(torch.zeros(1, 4, 200, 200, device=GPU))
    optimizer = optim.AdamW([*q.parameters(), *k.parameters(), *v.parameters(), bias], 1e-3)
    for at in range(6):
        x = torch.randn(6, 200, WIDTH).to(GPU)
        with torch.autocast("cuda", torch.bfloat16, enabled=at % 2 == 1):
            parts = [layer(x).unflatten(-1, (4, -1)).transpose(1, 2) for layer in (q, k, v)]
            if at % 3 == 2:
                out = functional.scaled_dot_product_attention(
                    parts[0], parts[1][:, :2], parts[2][:, :2], enable_gqa=True
                )
            else:
                out = functional.scaled_dot_product_attention(
                    parts[0], parts[1], parts[2], attn_mask=bias.to(parts[0].dtype)
                )
        step(optimizer, out.float().square().mean() + 0 * bias.sum())


def several_models() -> None:
    """Eight models at once: their weights stacked, and called by `vmap`, then one copy for each with its optimizer."""
    models = [perceptron(256) for _ in range(8)]
    values, _ = torch.func.stack_module_state(models)
    base = copy.deepcopy(models[0]).to("meta")
    values = {name: value.detach().requires_grad_() for name, value in values.items()}
    optimizer = optim.Adam(values.values(), 1e-3)

    def call(values: dict[str, Tensor], x: Tensor) -> Tensor:
        return torch.func.functional_call(base, values, (x,))

    for x, y in rows(5, 128):
        out = torch.func.vmap(call, in_dims=(0, None))(values, x)
        step(optimizer, functional.cross_entropy(out.flatten(0, 1), y.repeat(8)))
    single = [optim.SGD(model.parameters(), 0.1, momentum=0.9) for model in models]
    for x, y in rows(3, 512):
        for model, own in zip(models, single, strict=True):
            step(own, functional.cross_entropy(model(x), y))


def compiled_update() -> None:
    """The optimizer's step alone is compiled."""
    model = perceptron()
    optimizer = optim.Adam(model.parameters(), 1e-3)
    update = torch.compile(optimizer.step)
    for x, y in rows(5, 256):
        optimizer.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        update()


LOOPS: tuple[Callable[[], None], ...] = (
    *(prefetched, graphed_parts, captured_step, fake_quantized, half_masters, emptied, limited, ragged),
    *(sparse_tables, messages, spectra, masked_attention, several_models, compiled_update),
)

if __name__ == "__main__":
    torch.manual_seed(0)
    {loop.__name__: loop for loop in LOOPS}[sys.argv[1]]()
