"""Training loops of signals and tables: speech, voices, operators, equations, forecasts.

    python benchmarks/estimator/jobs/applied_signals_loops.py speech

Networks are small; each loop is written as papers of its field publish theirs.
"""

from __future__ import annotations

import copy
import itertools
import math
import sys
from collections.abc import Callable

import torch
from torch import Tensor, nn, optim
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

GPU = torch.device("cuda")


def encoder(width: int, layers: int, heads: int = 8) -> nn.TransformerEncoder:
    layer = nn.TransformerEncoderLayer(width, heads, 4 * width, batch_first=True, dropout=0.1, activation="gelu")
    return nn.TransformerEncoder(layer, layers)


def speech() -> None:
    """Recognition with CTC: spectrograms, masks of SpecAugment, convolutions and a bidirectional LSTM."""
    front = nn.Sequential(nn.Conv2d(1, 32, 3, 2, 1), nn.GELU(), nn.Conv2d(32, 32, 3, 2, 1), nn.GELU()).to(GPU)
    recurrent = nn.LSTM(32 * 20, 256, 2, batch_first=True, bidirectional=True, dropout=0.1).to(GPU)
    head = nn.Linear(512, 29).to(GPU)
    filters = torch.rand(80, 201).to(GPU)
    parameters = [*front.parameters(), *recurrent.parameters(), *head.parameters()]
    optimizer = optim.AdamW(parameters, 5e-4)
    window = torch.hann_window(400).to(GPU)
    for epoch in range(2):
        for _step in range(5):
            waves = torch.randn(8, 48_000).to(GPU)
            power = torch.stft(waves, 400, 160, window=window, return_complex=True).abs().pow(2)
            mel = (filters @ power + 1e-6).log()
            mel[:, 10:20] = 0
            mel[:, :, 40:70] = 0
            x = front(mel.unsqueeze(1))
            x = x.permute(0, 3, 1, 2).flatten(2)
            out, _ = recurrent(x)
            scores = functional.log_softmax(head(out), 2).transpose(0, 1)
            texts = torch.randint(1, 29, (8, 30)).to(GPU)
            lengths = torch.full((8,), scores.shape[0], dtype=torch.long)
            loss = functional.ctc_loss(scores, texts, lengths, torch.full((8,), 30, dtype=torch.long))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            waves = torch.randn(16, 64_000).to(GPU)
            power = torch.stft(waves, 400, 160, window=window, return_complex=True).abs().pow(2)
            x = front((filters @ power + 1e-6).log().unsqueeze(1)).permute(0, 3, 1, 2).flatten(2)
            print(epoch, head(recurrent(x)[0]).argmax(-1).cpu().shape)


def operator_learning() -> None:
    """A Fourier neural operator with complex weights, a relative loss, and a test at a finer grid."""

    class Spectral(nn.Module):
        def __init__(self, width: int, modes: int) -> None:
            super().__init__()
            self.modes = modes
            scale = 1 / (width * width)
            self.low = nn.Parameter(scale * torch.rand(width, width, modes, modes, dtype=torch.cfloat))
            self.high = nn.Parameter(scale * torch.rand(width, width, modes, modes, dtype=torch.cfloat))
            self.local = nn.Conv2d(width, width, 1)

        def forward(self, x: Tensor) -> Tensor:
            spectrum = torch.fft.rfft2(x)
            m = self.modes
            out = torch.zeros(*spectrum.shape, dtype=torch.cfloat, device=x.device)
            out[:, :, :m, :m] = torch.einsum("bixy,ioxy->boxy", spectrum[:, :, :m, :m], self.low)
            out[:, :, -m:, :m] = torch.einsum("bixy,ioxy->boxy", spectrum[:, :, -m:, :m], self.high)
            return functional.gelu(torch.fft.irfft2(out, s=x.shape[-2:]) + self.local(x))

    model = nn.Sequential(nn.Conv2d(3, 32, 1), *(Spectral(32, 12) for _ in range(4)), nn.Conv2d(32, 1, 1)).to(GPU)
    optimizer = optim.Adam(model.parameters(), 1e-3, weight_decay=1e-4)
    schedule = optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
    train = DataLoader(TensorDataset(torch.rand(60, 3, 64, 64), torch.rand(60, 1, 64, 64)), 20, shuffle=True)
    test = DataLoader(TensorDataset(torch.rand(20, 3, 128, 128), torch.rand(20, 1, 128, 128)), 10)
    for _epoch in range(3):
        for x, y in train:
            x, y = x.cuda(), y.cuda()
            optimizer.zero_grad()
            out = model(x)
            ((out - y).flatten(1).norm(dim=1) / y.flatten(1).norm(dim=1)).sum().backward()
            optimizer.step()
        schedule.step()
        total = 0.0
        with torch.no_grad():
            for x, y in test:
                x, y = x.cuda(), y.cuda()
                total += ((model(x) - y).flatten(1).norm(dim=1) / y.flatten(1).norm(dim=1)).sum().item()


def physics() -> None:
    """A network that obeys Burgers' equation: second derivatives by autograd, Adam and its own test grid."""
    model = nn.Sequential(*[layer for _ in range(6) for layer in (nn.Linear(256, 256), nn.Tanh())])
    model = nn.Sequential(nn.Linear(2, 256), nn.Tanh(), model, nn.Linear(256, 1)).to(GPU)
    optimizer = optim.Adam(model.parameters(), 1e-3)
    grid = torch.rand(40_000, 2).to(GPU)
    for step in range(201):
        inside = torch.rand(8_000, 2, device=GPU, requires_grad=True)
        u = model(inside)
        first = torch.autograd.grad(u, inside, torch.ones_like(u), create_graph=True)[0]
        second = torch.autograd.grad(first[:, :1], inside, torch.ones_like(u), create_graph=True)[0][:, :1]
        residual = first[:, 1:] + u * first[:, :1] - 0.01 / math.pi * second
        border = torch.rand(500, 2, device=GPU)
        loss = residual.pow(2).mean() + (model(border) + torch.sin(math.pi * border[:, :1])).pow(2).mean()
        optimizer.zero_grad(set_to_none=False)
        loss.backward()
        optimizer.step()
        if step % 100 == 0:
            with torch.no_grad():
                print(step, model(grid).abs().mean().item())


def forecasting() -> None:
    """Forecasts with patches, reversible normalization, early stopping with a saved state, and a test."""
    patches, body, head = nn.Linear(16, 128), encoder(128, 3), nn.Sequential(nn.Flatten(2), nn.Linear(128 * 42, 96))
    model = nn.ModuleList([patches, body, head]).to(GPU)
    optimizer = optim.Adam(model.parameters(), 1e-4)
    series = torch.randn(2_000, 7)

    def forecast(x: Tensor) -> Tensor:
        mean, scale = x.mean(1, keepdim=True).detach(), (x.var(1, keepdim=True, unbiased=False) + 1e-5).sqrt().detach()
        x = ((x - mean) / scale).transpose(1, 2)
        parts = patches(functional.pad(x, (0, 8), "replicate").unfold(2, 16, 8))
        out = head(body(parts.flatten(0, 1)).unflatten(0, (-1, 7)).transpose(2, 3).transpose(2, 3))
        return out.transpose(1, 2) * scale + mean

    def batches(start: int, count: int, batch: int) -> DataLoader[tuple[Tensor, ...]]:
        windows = torch.stack([series[i : i + 432] for i in range(start, start + count)])
        return DataLoader(TensorDataset(windows), batch, shuffle=start == 0, drop_last=start == 0)

    best, saved, patience = math.inf, None, 0
    for _epoch in range(4):
        model.train()
        for (window,) in batches(0, 200, 32):
            window = window.float().to(GPU)
            optimizer.zero_grad()
            loss = functional.mse_loss(forecast(window[:, :336]), window[:, 336:])
            loss.backward()
            optimizer.step()
        model.eval()
        errors = []
        with torch.no_grad():
            for (window,) in batches(300, 70, 64):
                window = window.to(GPU)
                errors.append(functional.l1_loss(forecast(window[:, :336]), window[:, 336:]).item())
        if sum(errors) < best:
            best, saved, patience = sum(errors), copy.deepcopy(model.state_dict()), 0
        else:
            patience += 1
            if patience >= 2:
                break
    if saved is not None:
        model.load_state_dict(saved)
    predictions = []
    with torch.no_grad():
        for (window,) in batches(1000, 256, 128):
            predictions.append(forecast(window[:, :336].to(GPU)).cpu())


def voices() -> None:
    """A vocoder: transposed convolutions against discriminators of several periods, with a loss of spectra."""

    class Periods(nn.Module):
        def __init__(self, period: int) -> None:
            super().__init__()
            self.period = period
            widths = (1, 32, 64, 128)
            self.layers = nn.ModuleList(
                nn.utils.parametrizations.weight_norm(nn.Conv2d(a, b, (5, 1), (3, 1), (2, 0)))
                for a, b in itertools.pairwise(widths)
            )
            self.last = nn.Conv2d(128, 1, (3, 1), 1, (1, 0))

        def forward(self, wave: Tensor) -> tuple[Tensor, list[Tensor]]:
            short = -wave.shape[2] % self.period
            x = functional.pad(wave, (0, short), "reflect").unflatten(2, (-1, self.period))
            maps = []
            for layer in self.layers:
                x = functional.leaky_relu(layer(x), 0.1)
                maps.append(x)
            return self.last(x), maps

    generator = nn.Sequential(nn.Conv1d(80, 256, 7, 1, 3), nn.LeakyReLU(0.1), nn.ConvTranspose1d(256, 128, 16, 8, 4),
                              nn.LeakyReLU(0.1), nn.ConvTranspose1d(128, 64, 16, 8, 4), nn.LeakyReLU(0.1),
                              nn.ConvTranspose1d(64, 32, 4, 2, 1), nn.LeakyReLU(0.1), nn.Conv1d(32, 1, 7, 1, 3),
                              nn.Tanh()).to(GPU)  # fmt: skip
    judges = nn.ModuleList([Periods(period) for period in (2, 3, 5)]).to(GPU)
    window, filters = torch.hann_window(512).to(GPU), torch.rand(80, 257).to(GPU)
    makes = optim.AdamW(generator.parameters(), 2e-4, (0.8, 0.99))
    decides = optim.AdamW(judges.parameters(), 2e-4, (0.8, 0.99))

    def spectrum(wave: Tensor) -> Tensor:
        found = torch.stft(wave.squeeze(1), 512, 128, window=window, return_complex=True)
        return (filters @ torch.view_as_real(found).pow(2).sum(-1).add(1e-9).sqrt()).clamp(1e-5).log()

    for step in range(5):
        mel, wave = torch.randn(4, 80, 64).to(GPU), torch.randn(4, 1, 8192).clamp(-1, 1).to(GPU)
        made = generator(mel)
        decides.zero_grad()
        loss = torch.zeros((), device=GPU)
        for judge in judges:
            real, fake = judge(wave)[0], judge(made.detach())[0]
            loss = loss + (1 - real).pow(2).mean() + fake.pow(2).mean()
        loss.backward()
        decides.step()
        makes.zero_grad()
        loss = 45 * functional.l1_loss(spectrum(made), spectrum(wave))
        for judge in judges:
            real_maps, (fake, fake_maps) = judge(wave)[1], judge(made)
            loss = loss + (1 - fake).pow(2).mean()
            for a, b in zip(real_maps, fake_maps, strict=True):
                loss = loss + 2 * (a - b).abs().mean()
        loss.backward()
        makes.step()
        if step == 4:
            generator.eval()
            with torch.no_grad():
                for frames in (200, 300, 400):
                    generator(torch.randn(1, 80, frames).to(GPU)).cpu()


def tabular() -> None:
    """A transformer of features: tokens of numbers and categories, AdamW without decay of biases, ranked batches."""
    weights = nn.Parameter(torch.randn(40, 96))
    categories = nn.ModuleList([nn.Embedding(50, 96) for _ in range(8)])
    body, head = encoder(96, 3), nn.Sequential(nn.LayerNorm(96), nn.ReLU(), nn.Linear(96, 1))
    model = nn.ModuleDict({"categories": categories, "body": body, "head": head}).to(GPU)
    weights = nn.Parameter(weights.detach().to(GPU))
    decayed = [value for name, value in model.named_parameters() if not name.endswith("bias")]
    plain = [value for name, value in model.named_parameters() if name.endswith("bias")]
    optimizer = optim.AdamW([{"params": [*decayed, weights]}, {"params": plain, "weight_decay": 0.0}], 1e-4)
    numbers, choices = torch.randn(3_000, 40, device=GPU), torch.randint(50, (3_000, 8), device=GPU)
    wanted = torch.randn(3_000, device=GPU)

    def predict(rows: Tensor) -> Tensor:
        tokens = [numbers[rows].unsqueeze(-1) * weights]
        tokens += [table(choices[rows, column]).unsqueeze(1) for column, table in enumerate(categories)]
        return head(body(torch.cat(tokens, 1))[:, 0]).squeeze(1)

    for _epoch in range(2):
        model.train()
        for rows in torch.randperm(2_400, device=GPU).split(256):
            optimizer.zero_grad()
            functional.mse_loss(predict(rows), wanted[rows]).backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            parts = [predict(rows) for rows in torch.arange(2_400, 3_000, device=GPU).split(512)]
            print((torch.cat(parts) - wanted[2_400:]).pow(2).mean().sqrt().item())


LOOPS: tuple[Callable[[], None], ...] = (speech, operator_learning, physics, forecasting, voices, tabular)

if __name__ == "__main__":
    torch.manual_seed(0)
    {loop.__name__: loop for loop in LOOPS}[sys.argv[1]]()
