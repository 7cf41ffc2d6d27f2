"""Layers that all families share. Needs torch."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from cotenant.learn.data_collection.configs import Activation

_ACTIVATIONS: Mapping[Activation, type[nn.Module]] = {
    "relu": nn.ReLU,
    "leakyrelu": nn.LeakyReLU,
    "prelu": nn.PReLU,
    "elu": nn.ELU,
    "selu": nn.SELU,
    "gelu": nn.GELU,
    "tanh": nn.Tanh,
    "silu": nn.SiLU,
    "softplus": nn.Softplus,
    "mish": nn.Mish,
    "identity": nn.Identity,
}


def activation(name: Activation) -> nn.Module:
    """A new layer of that activation."""
    return _ACTIVATIONS[name]()
