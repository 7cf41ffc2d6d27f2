"""Training loops of everyday habits: teachers, clients, masks, searches, calibrations, buckets, several loaders.

    python benchmarks/estimator/jobs/habit_loops.py mean_teacher

Networks are small; what varies is what a loop copies, keeps, prunes, draws and evaluates.
"""

from __future__ import annotations

import copy
import itertools
import sys
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn, optim
from torch.nn import functional
from torch.nn.utils import prune
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.optim.swa_utils import SWALR, AveragedModel, update_bn
from torch.utils.data import DataLoader, TensorDataset

GPU = torch.device("cuda")


def network(width: int = 48, outputs: int = 10) -> nn.Sequential:
    def conv(inputs: int, to: int, stride: int) -> nn.Sequential:
        return nn.Sequential(nn.Conv2d(inputs, to, 3, stride, 1, bias=False), nn.BatchNorm2d(to), nn.ReLU())

    return nn.Sequential(
        conv(3, width, 1), conv(width, 2 * width, 2), conv(2 * width, 4 * width, 2), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Linear(4 * width, outputs),
    ).to(GPU)  # fmt: skip


def pictures(count: int, batch: int, side: int = 32, *, last: bool = False) -> DataLoader[tuple[Tensor, ...]]:
    data = TensorDataset(torch.randn(count, 3, side, side), torch.randint(10, (count,)))
    return DataLoader(data, batch, shuffle=True, drop_last=last)


def accuracy(model: nn.Module, loader: DataLoader[tuple[Tensor, ...]]) -> float:
    model.eval()
    right, count = 0, 0
    with torch.no_grad():
        for x, y in loader:
            x, y = x.to(GPU), y.to(GPU)
            right += int((model(x).argmax(1) == y).sum().item())
            count += len(y)
    model.train()
    return right / count


def mean_teacher() -> None:
    """Labeled and unlabeled batches side by side, a teacher of averaged weights, and a rising weight of consistency."""
    student, teacher = network(), network()
    teacher.load_state_dict(student.state_dict())
    for value in teacher.parameters():
        value.detach_()
    optimizer = optim.SGD(student.parameters(), 0.05, momentum=0.9, nesterov=True)
    labeled, unlabeled = pictures(96, 16), pictures(400, 48, last=True)
    test, step = pictures(300, 100), 0
    for epoch in range(2):
        for (x, y), (u, _) in zip(itertools.cycle(labeled), unlabeled, strict=False):
            x, y, u = x.to(GPU), y.to(GPU), u.to(GPU)
            out = student(torch.cat([x, u]))
            with torch.no_grad():
                wanted = teacher(u + 0.1 * torch.randn_like(u)).softmax(1)
            loss = functional.cross_entropy(out[: len(x)], y)
            loss = loss + min(1.0, step / 10) * functional.mse_loss(out[len(x) :].softmax(1), wanted)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            for old, new in zip(teacher.parameters(), student.parameters(), strict=True):
                old.data.mul_(0.99).add_(new.data, alpha=0.01)
        print(epoch, accuracy(student, test), accuracy(teacher, test))


def clients() -> None:
    """Federated averaging: copies of a model on five clients, their states summed on the GPU, a global test."""
    model = network()
    loaders = [pictures(count, 16) for count in (80, 64, 96, 48, 80)]
    test = pictures(256, 64)
    for turn in range(2):
        states = []
        for loader in loaders:
            local = copy.deepcopy(model)
            optimizer = optim.SGD(local.parameters(), 0.01, momentum=0.9)
            for _epoch in range(2):
                for x, y in loader:
                    optimizer.zero_grad()
                    functional.cross_entropy(local(x.to(GPU)), y.to(GPU)).backward()
                    optimizer.step()
            states.append(copy.deepcopy(local.state_dict()))
        total = {name: torch.zeros_like(value, dtype=torch.float32) for name, value in states[0].items()}
        for state in states:
            for name, value in state.items():
                total[name] += value / len(states)
        model.load_state_dict(total)
        print(turn, accuracy(model, test))


def lottery() -> None:
    """A lottery ticket: train, prune by magnitude, rewind to the first weights, train again."""
    model = network()
    first = copy.deepcopy(model.state_dict())
    layers = [layer for layer in model.modules() if isinstance(layer, (nn.Conv2d, nn.Linear))]
    for layer in layers:
        prune.identity(layer, "weight")
    train, test = pictures(160, 32), pictures(128, 64)
    for turn in range(3):
        optimizer = optim.Adam(model.parameters(), 1e-3)
        for _epoch in range(2):
            for x, y in train:
                optimizer.zero_grad()
                functional.cross_entropy(model(x.to(GPU)), y.to(GPU)).backward()
                optimizer.step()
        print(turn, accuracy(model, test))
        prune.global_unstructured([(layer, "weight") for layer in layers], prune.L1Unstructured, amount=0.2)
        with torch.no_grad():
            for name, value in model.named_parameters():
                value.copy_(first[name.replace("_orig", "")])


def architecture_search() -> None:
    """Differentiable architecture search: choices weighed by parameters of their own, which a held-out batch trains."""

    class Choice(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.options = nn.ModuleList(
                [
                    nn.Identity(),
                    nn.MaxPool2d(3, 1, 1),
                    nn.AvgPool2d(3, 1, 1),
                    nn.Conv2d(width, width, 3, 1, 1),
                    nn.Conv2d(width, width, 5, 1, 2, groups=width),
                ]
            )

        def forward(self, x: Tensor, weights: Tensor) -> Tensor:
            return torch.stack([weight * option(x) for weight, option in zip(weights, self.options, strict=True)]).sum(
                0
            )

    stem, head = nn.Conv2d(3, 32, 3, 1, 1).to(GPU), nn.Linear(32, 10).to(GPU)
    cells = nn.ModuleList([Choice(32) for _ in range(4)]).to(GPU)
    alphas = nn.Parameter(1e-3 * torch.randn(4, 5, device=GPU))
    weights = [*stem.parameters(), *cells.parameters(), *head.parameters()]
    trains = optim.SGD(weights, 0.025, momentum=0.9, weight_decay=3e-4)
    chooses = optim.Adam([alphas], 3e-4, betas=(0.5, 0.999), weight_decay=1e-3)

    def forward(x: Tensor) -> Tensor:
        x = stem(x)
        for cell, row in zip(cells, alphas.softmax(1), strict=True):
            x = cell(x, row)
        return head(x.mean((2, 3)))

    held_out = iter(pictures(64 * 16, 16))
    for _epoch in range(2):
        for x, y in pictures(64, 16):
            other, wanted = next(held_out)
            chooses.zero_grad()
            functional.cross_entropy(forward(other.to(GPU)), wanted.to(GPU)).backward()
            chooses.step()
            trains.zero_grad()
            functional.cross_entropy(forward(x.to(GPU)), y.to(GPU)).backward()
            nn.utils.clip_grad_norm_(weights, 5.0)
            trains.step()
        with torch.no_grad():
            for x, _y in pictures(64, 64):
                forward(x.to(GPU)).argmax(1).cpu()


def pixel_by_pixel() -> None:
    """An autoregressive model of images with masked convolutions, which draws images after each epoch."""

    class Masked(nn.Conv2d):
        def __init__(self, inputs: int, outputs: int, side: int, *, own: bool) -> None:
            super().__init__(inputs, outputs, side, padding=side // 2)
            mask = torch.ones_like(self.weight)
            mask[:, :, side // 2, side // 2 + own :] = 0
            mask[:, :, side // 2 + 1 :] = 0
            self.register_buffer("mask", mask)

        def forward(self, x: Tensor) -> Tensor:
            self.weight.data *= self.mask
            return super().forward(x)

    layers: list[nn.Module] = [Masked(1, 64, 7, own=False), nn.ReLU()]
    for _ in range(5):
        layers += [Masked(64, 64, 5, own=True), nn.BatchNorm2d(64), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Conv2d(64, 32, 1)).to(GPU)
    optimizer = optim.Adam(model.parameters())
    for _epoch in range(2):
        model.train()
        for (x,) in DataLoader(TensorDataset(torch.rand(80, 1, 12, 12)), 16):
            x = x.to(GPU)
            loss = functional.cross_entropy(model(x), (x[:, 0] * 31).long())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        model.eval()
        drawn = torch.zeros(36, 1, 12, 12, device=GPU)
        with torch.no_grad():
            for row in range(12):
                for column in range(12):
                    chances = model(drawn)[:, :, row, column].softmax(1)
                    drawn[:, :, row, column] = torch.multinomial(chances, 1).float() / 31


def late_averages() -> None:
    """Stochastic weight averaging from the third epoch on, with the statistics of batch norms computed anew."""
    model = network()
    average = AveragedModel(model)
    optimizer = optim.SGD(model.parameters(), 0.1, momentum=0.9)
    usual, late = optim.lr_scheduler.CosineAnnealingLR(optimizer, 5), SWALR(optimizer, swa_lr=0.05)
    loader, test = pictures(128, 32), pictures(200, 100)
    for epoch in range(5):
        for x, y in loader:
            optimizer.zero_grad()
            functional.cross_entropy(model(x.to(GPU)), y.to(GPU)).backward()
            optimizer.step()
        if epoch > 2:
            average.update_parameters(model)
            late.step()
        else:
            usual.step()
    update_bn(loader, average, device=GPU)
    print(accuracy(average, test))


def buckets() -> None:
    """Tagging with packed sequences from buckets of lengths, embeddings with dropout, a test on the longest."""
    words = nn.Embedding(5_000, 128, padding_idx=0).to(GPU)
    recurrent = nn.GRU(128, 256, 2, batch_first=True, bidirectional=True, dropout=0.2).to(GPU)
    head = nn.Linear(512, 30).to(GPU)
    parts = nn.ModuleList([words, recurrent, head])
    optimizer = optim.Adam(parts.parameters(), 1e-3)

    def batches(lengths: list[int]) -> Iterator[tuple[Tensor, Tensor]]:
        for length in lengths:
            counts = torch.arange(length, length - 16, -1)
            yield torch.randint(1, 5_000, (16, length)), counts

    for _epoch in range(2):
        for ids, counts in batches([48] * 6):
            x = functional.dropout(words(ids.to(GPU)), 0.3)
            packed = pack_padded_sequence(x, counts, batch_first=True)
            out, _ = pad_packed_sequence(recurrent(packed)[0], batch_first=True)
            mask = torch.arange(out.shape[1], device=GPU)[None] < counts.to(GPU)[:, None]
            tags = torch.randint(30, mask.shape).to(GPU)
            loss = (functional.cross_entropy(head(out).transpose(1, 2), tags, reduction="none") * mask).sum()
            optimizer.zero_grad()
            (loss / mask.sum()).backward()
            nn.utils.clip_grad_norm_(parts.parameters(), 5.0)
            optimizer.step()
        parts.eval()
        with torch.no_grad():
            for ids, counts in batches([96] * 3):
                packed = pack_padded_sequence(words(ids.to(GPU)), counts, batch_first=True)
                head(pad_packed_sequence(recurrent(packed)[0], batch_first=True)[0]).argmax(-1).cpu()
        parts.train()


def tasks_together() -> None:
    """One body for three tasks with loaders of their own, weights of losses that are learned, and turns of tasks."""
    body = network(outputs=256)
    heads = nn.ModuleDict({"classes": nn.Linear(256, 10), "number": nn.Linear(256, 1), "labels": nn.Linear(256, 40)})
    heads.to(GPU)
    scales = nn.ParameterDict({name: nn.Parameter(torch.zeros(1)) for name in heads}).to(GPU)
    optimizer = optim.AdamW([*body.parameters(), *heads.parameters(), *scales.parameters()], 1e-3)
    loaders = {"classes": pictures(96, 32), "number": pictures(96, 24, 40), "labels": pictures(64, 16, 48)}
    for _epoch in range(2):
        steps = {name: iter(loader) for name, loader in loaders.items()}
        for name in ("classes", "number", "labels") * 3:
            x, y = next(steps[name])
            out = heads[name](body(x.to(GPU)))
            if name == "classes":
                loss = functional.cross_entropy(out, y.to(GPU))
            elif name == "number":
                loss = functional.smooth_l1_loss(out.squeeze(1), y.float().to(GPU))
            else:
                loss = functional.binary_cross_entropy_with_logits(out, torch.zeros_like(out))
            optimizer.zero_grad()
            (loss * torch.exp(-scales[name]) + scales[name]).sum().backward()
            optimizer.step()
        body.eval()
        with torch.no_grad():
            for name, loader in loaders.items():
                for x, _y in loader:
                    heads[name](body(x.to(GPU))).cpu()
        body.train()


def growing_network() -> None:
    """A generator that grows by a block per stage, with a new critic block and new optimizers, and faded images."""
    made, judged = nn.ModuleList(), nn.ModuleList()
    for stage in range(3):
        made.append(nn.Sequential(nn.Conv2d(64, 64, 3, 1, 1), nn.LeakyReLU(0.2), nn.Conv2d(64, 64, 3, 1, 1)).to(GPU))
        judged.append(nn.Sequential(nn.Conv2d(64, 64, 3, 1, 1), nn.LeakyReLU(0.2), nn.AvgPool2d(2)).to(GPU))
        paints, reads = nn.Conv2d(64, 3, 1).to(GPU), nn.Conv2d(3, 64, 1).to(GPU)
        score = nn.Linear(64 * 64, 1).to(GPU)
        makes = optim.Adam([*made.parameters(), *paints.parameters()], 1e-3, betas=(0.0, 0.99))
        judges = optim.Adam([*judged.parameters(), *reads.parameters(), *score.parameters()], 1e-3, betas=(0.0, 0.99))

        def generate(noise: Tensor, paint: nn.Module = paints) -> Tensor:
            x = noise
            for block in made:
                x = block(functional.interpolate(x, scale_factor=2.0))
            return paint(x).tanh()

        def judge(x: Tensor, read: nn.Module = reads, last: nn.Module = score) -> Tensor:
            x = read(x)
            for block in reversed(judged):
                x = block(x)
            return last(x.flatten(1))

        side = 8 * 2 ** (stage + 1)
        for step in range(6):
            real = torch.rand(16, 3, side, side).to(GPU)
            fade = min(1.0, step / 3)
            fake = generate(torch.randn(16, 64, 8, 8).to(GPU))
            blurred = functional.interpolate(functional.avg_pool2d(fake, 2), scale_factor=2.0)
            fake = fade * fake + (1 - fade) * blurred
            judges.zero_grad()
            (functional.softplus(judge(fake.detach())) + functional.softplus(-judge(real))).mean().backward()
            judges.step()
            makes.zero_grad()
            functional.softplus(-judge(fake)).mean().backward()
            makes.step()


def best_of_several() -> None:
    """A search over widths and rates that keeps the best model on the GPU, and tests it at the end."""
    best, best_model = -1.0, None
    train, test = pictures(128, 32), pictures(128, 64)
    for width, rate in itertools.product((32, 64), (0.1, 0.01)):
        model = network(width)
        optimizer = optim.SGD(model.parameters(), rate, momentum=0.9)
        for _epoch in range(2):
            for x, y in train:
                optimizer.zero_grad()
                functional.cross_entropy(model(x.to(GPU)), y.to(GPU)).backward()
                optimizer.step()
        found = accuracy(model, test)
        if found > best:
            best, best_model = found, copy.deepcopy(model)
    assert best_model is not None
    print(accuracy(best_model, pictures(256, 128)))


def augmented_tests() -> None:
    """Crops, flips and CutMix on the GPU, and a test of ten crops of larger images at the end of each epoch."""
    model = network()
    optimizer = optim.SGD(model.parameters(), 0.1, momentum=0.9)
    for _epoch in range(2):
        for x, y in pictures(160, 32, 40):
            x, y = x.to(GPU), y.to(GPU)
            top, left = torch.randint(8, (2,)).tolist()
            x = x[:, :, top : top + 32, left : left + 32]
            flips = torch.rand(len(x), 1, 1, 1, device=GPU) < 0.5
            x = torch.where(flips, x.flip(3), x)
            order = torch.randperm(len(x), device=GPU)
            x[:, :, 8:24, 8:24] = x[order, :, 8:24, 8:24]
            out = model(x)
            loss = 0.75 * functional.cross_entropy(out, y) + 0.25 * functional.cross_entropy(out, y[order])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            for x, _y in pictures(96, 32, 40):
                x = x.to(GPU)
                corners = [(0, 0), (0, 8), (8, 0), (8, 8), (4, 4)]
                crops = [x[:, :, top : top + 32, left : left + 32] for top, left in corners]
                crops += [crop.flip(3) for crop in crops]
                out = model(torch.stack(crops, 1).flatten(0, 1)).view(len(x), 10, -1)
                out.softmax(2).mean(1).argmax(1).cpu()
        model.train()


LOOPS: tuple[Callable[[], None], ...] = (
    *(mean_teacher, clients, lottery, architecture_search, pixel_by_pixel, late_averages, buckets),
    *(tasks_together, growing_network, best_of_several, augmented_tests),
)

if __name__ == "__main__":
    torch.manual_seed(0)
    {loop.__name__: loop for loop in LOOPS}[sys.argv[1]]()
