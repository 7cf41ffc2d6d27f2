"""Networks and their training step, from a configuration. Needs torch.

They end in logits: the loss has its own softmax.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import nn

from cotenant.learn.data_collection.configs import (
    Activation,
    CnnConfig,
    Config,
    MlpConfig,
    Optimizer,
    TransformerConfig,
)
from cotenant.learn.data_collection.widths import hidden_widths
from cotenant.learn.model_summaries.module import summarize_module
from cotenant.learn.networks.cnn import build_cnn
from cotenant.learn.networks.torch_modules import activation
from cotenant.learn.networks.transformer import build_transformer

if TYPE_CHECKING:
    from cotenant.learn.datasets.dataset_row import Layer

_POOL = 2
"""Batches made in advance and used in turn, so that no step waits for data."""

MIN_REPEATED = 4
"""Blocks of a Transformer from which on `layers_of` repeats a summary."""

_OPTIMIZERS: dict[Optimizer, Callable[..., torch.optim.Optimizer]] = {
    "sgd": lambda weights: torch.optim.SGD(weights, lr=1e-3),
    "momentum": lambda weights: torch.optim.SGD(weights, lr=1e-3, momentum=0.9),
    "rmsprop": lambda weights: torch.optim.RMSprop(weights, lr=1e-3),
    "adam": lambda weights: torch.optim.Adam(weights, lr=1e-3),
    "adamw": lambda weights: torch.optim.AdamW(weights, lr=1e-3),
}


def build(config: Config) -> nn.Module:
    """The network, on the default device of torch."""
    if isinstance(config, MlpConfig):
        return _build_mlp(config)
    if isinstance(config, CnnConfig):
        return build_cnn(config)
    return build_transformer(config)


def make_batch(config: Config, device: torch.device | str) -> tuple[tuple[torch.Tensor, ...], torch.Tensor]:
    """Random inputs and targets of the network."""
    if isinstance(config, MlpConfig):
        return (torch.randn(config.batch, config.inputs, device=device),), _labels(config, device)
    if isinstance(config, CnnConfig):
        shape = (config.batch, config.channels, config.image, config.image)
        return (torch.randn(shape, device=device),), _labels(config, device)

    def tokens() -> torch.Tensor:
        return torch.randint(config.vocabulary, (config.batch, config.length), device=device)

    if config.shape == "gpt":
        return (tokens(),), tokens()
    inputs = (tokens(), tokens()) if config.shape in ("decoder", "encdec") else (tokens(),)
    return inputs, _labels(config, device)


def layers_of(config: Config) -> tuple[Layer, ...]:
    """The layers of the network, from a forward pass on the `meta` device.

    A stack of equal blocks is summarized with one and with two of them: torch's meta kernels take 20 ms a block.
    """
    if not isinstance(config, TransformerConfig) or config.shape == "encdec" or config.depth < MIN_REPEATED:
        return _summarized(config)
    one, two = (_summarized(dataclasses.replace(config, depth=depth)) for depth in (1, 2))
    block = len(two) - len(one)
    at = next((i for i, (a, b) in enumerate(zip(one, two, strict=False)) if a != b), len(one))
    return (*two[:at], *two[at : at + block] * (config.depth - 1), *two[at + block :])


def _summarized(config: Config) -> tuple[Layer, ...]:
    with torch.device("meta"):
        network = build(config)
        inputs, _ = make_batch(config, "meta")
    return summarize_module(network, inputs).layers


class Training:
    """A network in training; a call is one optimizer step. The first call makes everything, on `device`."""

    def __init__(self, config: Config, device: str) -> None:
        self.config = config
        self.device = torch.device(device)
        self.steps = 0
        self._network: nn.Module | None = None

    def __call__(self) -> torch.Tensor:
        """Train on one batch; returns its loss, still on the device."""
        if self._network is None:
            self._start()
        assert self._network is not None
        inputs, wanted = self._batches[self.steps % _POOL]
        inputs = tuple(tensor.to(self.device, non_blocking=True) for tensor in inputs)
        wanted = wanted.to(self.device, non_blocking=True)
        self._optimizer.zero_grad()
        kind = torch.float16 if self.config.precision == "fp16" else torch.bfloat16
        with torch.autocast(self.device.type, dtype=kind, enabled=self.config.precision != "fp32"):
            logits = self._network(*inputs)
            loss: torch.Tensor = self._criterion(logits.flatten(0, -2), wanted.flatten())
        if self._scaler is None:
            loss.backward()
            self._optimizer.step()
        else:
            self._scaler.scale(loss).backward()
            self._scaler.step(self._optimizer)
            self._scaler.update()
        self.steps += 1
        return loss.detach()

    def _start(self) -> None:
        with self.device:
            self._network = build(self.config)
        self._network.train()
        self._optimizer = _OPTIMIZERS[self.config.optimizer](self._network.parameters())
        self._criterion = nn.CrossEntropyLoss()
        is_scaled = self.config.precision == "fp16" and self.device.type == "cuda"
        self._scaler = torch.amp.GradScaler(self.device.type) if is_scaled else None
        self._batches = [make_batch(self.config, "cpu") for _ in range(_POOL)]


def _labels(config: Config, device: torch.device | str) -> torch.Tensor:
    return torch.randint(config.classes, (config.batch,), device=device)


def _build_mlp(config: MlpConfig) -> nn.Module:
    layers: list[nn.Module] = []
    width = config.inputs
    for hidden in hidden_widths(config):
        layers.append(nn.Linear(width, hidden))
        if config.norm != "nonorm":
            layers.append(nn.BatchNorm1d(hidden) if config.norm == "batchnorm" else nn.LayerNorm(hidden))
        layers.append(activation(config.activation))
        if config.dropout:
            layers.append(nn.Dropout(config.dropout / 1000))
        width = hidden
    layers.append(nn.Linear(width, config.classes))
    return nn.Sequential(*layers)


__all__ = ["Activation", "Training", "build", "layers_of", "make_batch"]
