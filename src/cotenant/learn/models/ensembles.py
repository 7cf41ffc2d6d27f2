"""The two ensembles of small neural networks of the paper and of the thesis, in torch.

Source: GPUMemNet, arXiv 2602.17817. Seven classifiers of 1 to 7 hidden layers (8, 4, 4, ... wide, batch norm, ReLU)
whose logits are averaged: with its features these have its 1495, 1646 and 1590 parameters for MLPs, CNNs and
Transformers. The thesis (5.4.3) has 13: of 1 to 7, and again of 1 to 6. The second kind reads the layers one by one,
through two encoders whose sum goes to such an ensemble.

What differs: features are scaled (logarithm, then mean and deviation of the training part); attention runs across
layers, not across the batch; training stops early on a validation part of the training rows, with its best weights.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from cotenant.estimators.layer_kinds import LAYER_KINDS
from cotenant.learn.datasets.feature_table import FeatureTable, Matrix
from cotenant.learn.models.metrics import Prediction

DEPTHS = (1, 2, 3, 4, 5, 6, 7)
THESIS_DEPTHS = (*DEPTHS, 1, 2, 3, 4, 5, 6)
FIRST_WIDTH, WIDTH = 8, 4
ENCODERS = ((6, 3), (4, 2))
"""Width and layers of each encoder."""
FEEDFORWARD = 4
LENGTH_GROUPS = 4
"""Groups of rows that are encoded together."""
POOLED_BY = 10.0
"""Divisor of the sum over layers, of which there may be hundreds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSettings:
    """How a network is trained; it stops after `patience` epochs without a better validation loss."""

    epochs: int = 600
    patience: int = 60
    batch: int = 128
    rate: float = 1e-2
    validation: float = 0.15


class Perceptrons(nn.Module):
    """All `E` members of an ensemble side by side; shallower members skip the deeper layers."""

    def __init__(self, inputs: int, classes: int, depths: Sequence[int] = DEPTHS) -> None:
        super().__init__()
        self.depths = tuple(depths)
        members = len(self.depths)
        self.weights = nn.ParameterList()
        self.biases = nn.ParameterList()
        self.scales = nn.ParameterList()
        self.shifts = nn.ParameterList()
        widths = [inputs, FIRST_WIDTH, *[WIDTH] * (max(depths) - 1)]
        for level in range(max(depths)):
            bound = 1 / math.sqrt(widths[level])
            fan_in = FIRST_WIDTH if level else inputs
            weight = torch.empty(members, fan_in, FIRST_WIDTH).uniform_(-bound, bound)
            bias = torch.empty(members, FIRST_WIDTH).uniform_(-bound, bound)
            self.weights.append(nn.Parameter(weight))
            self.biases.append(nn.Parameter(bias))
            self.scales.append(nn.Parameter(torch.ones(members, FIRST_WIDTH)))
            self.shifts.append(nn.Parameter(torch.zeros(members, FIRST_WIDTH)))
            self.register_buffer(f"mean{level}", torch.zeros(members, FIRST_WIDTH))
            self.register_buffer(f"variance{level}", torch.ones(members, FIRST_WIDTH))
            used = torch.zeros(members, 1, FIRST_WIDTH)
            used[..., : widths[level + 1]] = 1
            self.register_buffer(f"used{level}", used)
            self.register_buffer(f"active{level}", torch.tensor([depth > level for depth in depths])[:, None, None])
        last = [FIRST_WIDTH if depth == 1 else WIDTH for depth in depths]
        bounds = torch.tensor([1 / math.sqrt(size) for size in last])[:, None, None]
        self.head = nn.Parameter((torch.rand(members, FIRST_WIDTH, classes) * 2 - 1) * bounds)
        self.head_bias = nn.Parameter((torch.rand(members, 1, classes) * 2 - 1) * bounds)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = x.expand(len(self.depths), *x.shape)
        for level in range(max(self.depths)):
            made = torch.bmm(hidden, self.weights[level]) + self.biases[level][:, None]
            made = torch.relu(self._normalized(made, level)) * getattr(self, f"used{level}")
            hidden = made if level == 0 else torch.where(getattr(self, f"active{level}"), made, hidden)
        logits: torch.Tensor = (torch.bmm(hidden, self.head) + self.head_bias).mean(dim=0)
        return logits

    def _normalized(self, x: torch.Tensor, level: int) -> torch.Tensor:
        mean, variance = getattr(self, f"mean{level}"), getattr(self, f"variance{level}")
        if self.training:
            now, spread = x.mean(dim=1), x.var(dim=1, unbiased=False)
            with torch.no_grad():
                mean.lerp_(now, 0.1)
                variance.lerp_(spread, 0.1)
            mean, variance = now, spread
        scaled = (x - mean[:, None]) * torch.rsqrt(variance[:, None] + 1e-5)
        return scaled * self.scales[level][:, None] + self.shifts[level][:, None]


class LayerEncoder(nn.Module):
    """Attention across the layers of a network, one head, post-norm; the output is the sum over layers."""

    def __init__(self, inputs: int, width: int, layers: int) -> None:
        super().__init__()
        self.embed = nn.Linear(inputs, width)
        block = nn.TransformerEncoderLayer(width, 1, FEEDFORWARD, dropout=0.0, batch_first=True)
        self.blocks = nn.TransformerEncoder(block, layers, enable_nested_tensor=False)

    def forward(self, layers: torch.Tensor, absent: torch.Tensor) -> torch.Tensor:
        """`layers`: rows x layers x features; `absent`: rows x layers, true behind the last layer of a row.

        Rows of similar length are encoded together, without the padding that none of them needs: the time is that of
        the square of the padded length, and the longest of these networks has four times the layers of most.
        """
        lengths = (~absent).sum(dim=1)
        order = torch.argsort(lengths)
        pooled = []
        for part in order.tensor_split(min(LENGTH_GROUPS, len(order))):
            longest = int(lengths[part[-1]])
            padding = absent[part, :longest]
            found = self.blocks(self.embed(layers[part, :longest]), src_key_padding_mask=padding)
            pooled.append(found.masked_fill(padding[..., None], 0.0).sum(dim=1) / POOLED_BY)
        return torch.cat(pooled)[torch.argsort(order)]


class Sequences(nn.Module):
    """Two encoders over the layers; their sums and the totals go to the perceptrons."""

    def __init__(self, inputs: int, totals: int, classes: int, depths: Sequence[int] = DEPTHS) -> None:
        super().__init__()
        self.encoders = nn.ModuleList(LayerEncoder(inputs, width, layers) for width, layers in ENCODERS)
        self.perceptrons = Perceptrons(totals + sum(width for width, _ in ENCODERS), classes, depths)

    def forward(self, totals: torch.Tensor, layers: torch.Tensor, absent: torch.Tensor) -> torch.Tensor:
        pooled = [encoder(layers, absent) for encoder in self.encoders]
        logits: torch.Tensor = self.perceptrons(torch.cat([totals, *pooled], dim=1))
        return logits


class MlpEnsemble:
    """The MLP ensemble over the paper's features."""

    name = "gpumemnet-mlp"

    def __init__(self, schedule: TrainingSettings | None = None, depths: Sequence[int] = DEPTHS) -> None:
        self.schedule = schedule or TrainingSettings()
        self.depths = depths

    def fit(self, table: FeatureTable, seed: int) -> None:
        torch.manual_seed(seed)
        self.scale = Scale.of(table.features["paper"])
        self.classes = np.unique(table.classes())
        self.net = self._network(table)
        self.losses = _train(self.net, self._inputs(table), _targets(table, self.classes), self.schedule, seed)

    def predict(self, table: FeatureTable) -> Prediction:
        self.net.eval()
        with torch.no_grad():
            logits = self.net(*self._inputs(table))
        return Prediction(classes=self.classes[logits.argmax(dim=1).numpy()])

    def _network(self, table: FeatureTable) -> nn.Module:
        return Perceptrons(table.features["paper"].shape[1], len(self.classes), self.depths)

    def _inputs(self, table: FeatureTable) -> tuple[torch.Tensor, ...]:
        return (torch.tensor(self.scale(table.features["paper"]), dtype=torch.float32),)


class SequenceEnsemble(MlpEnsemble):
    """The sequence ensemble over (kind, outputs, parameters) of every layer, with the same totals beside them."""

    name = "gpumemnet-sequence"

    def __init__(self, schedule: TrainingSettings | None = None, depths: Sequence[int] = DEPTHS) -> None:
        super().__init__(schedule or TrainingSettings(epochs=60, patience=20, batch=256, rate=2e-2), depths)

    def fit(self, table: FeatureTable, seed: int) -> None:
        self.layer_scale = LayerScale.of(table.sequences)
        super().fit(table, seed)

    def _network(self, table: FeatureTable) -> nn.Module:
        return Sequences(len(LAYER_KINDS) + 2, table.features["paper"].shape[1], len(self.classes), self.depths)

    def _inputs(self, table: FeatureTable) -> tuple[torch.Tensor, ...]:
        layers, absent = self.layer_scale.padded(table.sequences)
        return (*super()._inputs(table), torch.tensor(layers, dtype=torch.float32), torch.tensor(absent))


def ensemble(name: str, *, validation: float | None = None) -> MlpEnsemble:
    """The ensemble of that name, `-13` at its end for the members of the thesis."""
    kind = SequenceEnsemble if name.startswith(SequenceEnsemble.name) else MlpEnsemble
    made = kind(depths=THESIS_DEPTHS if name.endswith("-13") else DEPTHS)
    made.name = name
    if validation is not None:
        made.schedule = dataclasses.replace(made.schedule, validation=validation)
    return made


@dataclass(frozen=True, slots=True)
class Scale:
    """Signed logarithm, then mean 0 and deviation 1 over the fitted rows."""

    mean: Matrix
    deviation: Matrix

    @classmethod
    def of(cls, matrix: Matrix) -> Scale:
        """The scale of these rows."""
        logs = np.sign(matrix) * np.log1p(np.abs(matrix))
        deviation = logs.std(axis=0)
        return cls(logs.mean(axis=0), np.where(deviation < 1e-9, 1.0, deviation))

    def __call__(self, matrix: Matrix) -> Matrix:
        return (np.sign(matrix) * np.log1p(np.abs(matrix)) - self.mean) / self.deviation


@dataclass(frozen=True, slots=True)
class LayerScale:
    """Layers as vectors: the kind as one of `LAYER_KINDS`, and the two sizes scaled."""

    scale: Scale

    @classmethod
    def of(cls, sequences: Sequence[Sequence[tuple[int, float, float]]]) -> LayerScale:
        """The scale of all layers of these rows."""
        return cls(Scale.of(np.array([layer[1:] for sequence in sequences for layer in sequence])))

    def padded(self, sequences: Sequence[Sequence[tuple[int, float, float]]]) -> tuple[Any, NDArray[np.bool_]]:
        """Rows x layers x features, and the padding mask."""
        longest = max(len(sequence) for sequence in sequences)
        layers: Matrix = np.zeros((len(sequences), longest, len(LAYER_KINDS) + 2))
        absent: NDArray[np.bool_] = np.ones((len(sequences), longest), dtype=bool)
        for row, sequence in enumerate(sequences):
            cells = np.array(sequence)
            layers[row, np.arange(len(sequence)), cells[:, 0].astype(int)] = 1
            layers[row, : len(sequence), len(LAYER_KINDS) :] = self.scale(cells[:, 1:])
            absent[row, : len(sequence)] = False
        return layers, absent


def _targets(table: FeatureTable, classes: NDArray[np.intp]) -> torch.Tensor:
    return torch.tensor(np.searchsorted(classes, table.classes()))


def split_off(count: int, how: TrainingSettings, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Indices of validation rows and of training rows."""
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    held = max(1, round(how.validation * count))
    return order[:held], order[held:]


def _train(
    net: nn.Module, inputs: tuple[torch.Tensor, ...], targets: torch.Tensor, how: TrainingSettings, seed: int
) -> list[float]:
    """Adam with a decaying rate; restores the weights with the best validation loss, and returns those losses."""
    chance = torch.Generator().manual_seed(seed)
    validation, training = split_off(len(targets), how, seed)
    losses: list[float] = []
    optimizer = torch.optim.Adam(net.parameters(), lr=how.rate)
    rates = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, how.epochs, eta_min=how.rate / 50)
    loss_of = nn.CrossEntropyLoss()
    best_state, waited = copy.deepcopy(net.state_dict()), 0
    for _ in range(how.epochs):
        net.train()
        for part in training[torch.randperm(len(training), generator=chance)].split(how.batch):
            if len(part) < 2:
                continue
            optimizer.zero_grad()
            loss_of(net(*(tensor[part] for tensor in inputs)), targets[part]).backward()
            optimizer.step()
        rates.step()
        net.eval()
        with torch.no_grad():
            loss = float(loss_of(net(*(tensor[validation] for tensor in inputs)), targets[validation]))
        waited += 1
        if loss < min(losses, default=math.inf):
            best_state, waited = copy.deepcopy(net.state_dict()), 0
        losses.append(loss)
        if waited > how.patience:
            break
    net.load_state_dict(best_state)
    return losses
