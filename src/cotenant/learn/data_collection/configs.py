"""Configurations of training jobs, as a few settings each. The id of a configuration holds all of them. Pure.

An id reads `mlp_pyramid_inputs784_classes10_depth3_...`: family, shape of the architecture, then every setting by its
name, in the order of the fields; a word has no name before it (`relu`). Two configurations are the same job if and only
if their ids are equal.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args, get_type_hints

from cotenant.core.errors import UsageError
from cotenant.learn.datasets.dataset_row import FAMILIES, Extra, Family

Activation: TypeAlias = Literal[
    "relu", "leakyrelu", "prelu", "elu", "selu", "gelu", "tanh", "silu", "softplus", "mish", "identity"
]
Norm: TypeAlias = Literal["nonorm", "batchnorm", "layernorm", "groupnorm"]
Pooling: TypeAlias = Literal["nopool", "maxpool", "stride"]
Optimizer: TypeAlias = Literal["sgd", "momentum", "rmsprop", "adam", "adamw"]
Precision: TypeAlias = Literal["fp32", "bf16", "fp16"]
MlpShape: TypeAlias = Literal["pyramid", "uniform", "bottleneck", "gradual"]
CnnShape: TypeAlias = Literal["pyramid", "uniform", "bottleneck", "gradual", "hourglass", "residual", "dense"]
TransformerShape: TypeAlias = Literal["encoder", "decoder", "encdec", "gpt", "conv1d"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Common:
    """Settings of every job.

    Attributes:
        batch: samples of a step; all steps have the same number, so that no batch has a single sample.
        dropout: probability, in thousandths; 0: no such layer.
        precision: `bf16` and `fp16` are autocast over fp32 weights, the latter with a gradient scaler.
    """

    batch: int
    classes: int
    activation: Activation
    dropout: int
    optimizer: Optimizer
    precision: Precision


@dataclass(frozen=True, slots=True, kw_only=True)
class MlpConfig(_Common):
    """A multilayer perceptron: `depth` hidden layers whose widths follow from the shape."""

    shape: MlpShape
    inputs: int
    depth: int
    norm: Norm


@dataclass(frozen=True, slots=True, kw_only=True)
class CnnConfig(_Common):
    """A convolutional network for square images.

    `filters`: channels of the first convolution; `kernel`: height and width of the convolutions, odd.
    """

    shape: CnnShape
    channels: int
    image: int
    depth: int
    filters: int
    kernel: int
    norm: Norm
    pooling: Pooling


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformerConfig(_Common):
    """A network over tokens.

    `encoder` and `conv1d` (1-D convolutions, no heads) classify a sequence; so does `decoder`, which attends to a
    second sequence, its memory, and `encdec`, which has an encoder for that; `gpt` predicts the next token (its classes
    are its vocabulary), with the fused projections of GPT-2, that library's `Conv1D`.
    """

    shape: TransformerShape
    vocabulary: int
    length: int
    width: int
    depth: int
    heads: int
    feedforward: int


Config: TypeAlias = MlpConfig | CnnConfig | TransformerConfig

_CLASSES: Mapping[Family, type[Any]] = {"mlp": MlpConfig, "cnn": CnnConfig, "transformer": TransformerConfig}
MEANINGS: Mapping[str, tuple[str, str]] = {
    "classes": ("", "outputs of the network"),
    "activation": ("", "between the layers"),
    "dropout": ("thousandths", "probability; 0: no such layer"),
    "optimizer": ("", "sgd has no momentum, momentum is sgd with 0.9"),
    "precision": ("", "bf16 and fp16: autocast over weights in fp32"),
    "inputs": ("", "width of a sample"),
    "depth": ("layers", "hidden layers, convolutions, residual or transformer blocks"),
    "norm": ("", "normalization behind each layer"),
    "channels": ("", "of an image"),
    "image": ("pixels", "height and width of an image"),
    "filters": ("", "channels of the first convolution"),
    "kernel": ("pixels", "height and width of the convolutions, but for 1 x 1 projections"),
    "pooling": ("", "what halves the image, up to four times"),
    "vocabulary": ("tokens", "rows of the embedding"),
    "length": ("tokens", "of a sample"),
    "width": ("", "of a token inside the network"),
    "heads": ("", "of the attention"),
    "feedforward": ("", "inner width of a block"),
}
"""Unit and meaning of the settings, except shape and batch."""

_NUMBER = re.compile(r"([a-z]+)(\d+)")
_MIN: Mapping[str, int] = {"dropout": 0, "classes": 2}


def family_of(config: Config) -> Family:
    """The family that a configuration belongs to."""
    return next(family for family, kind in _CLASSES.items() if isinstance(config, kind))


def fields_of(family: Family) -> dict[str, tuple[str, ...]]:
    """Names of a family's settings in the order of its ids, with the allowed words, or none for a number."""
    hints = get_type_hints(_CLASSES[family])
    names = [field.name for field in dataclasses.fields(_CLASSES[family])]
    ordered = ["shape", *(name for name in names if name != "shape")]
    return {name: get_args(hints[name]) for name in ordered}


def config_id(config: Config) -> str:
    """The id of a configuration."""
    family = family_of(config)
    parts = [
        str(getattr(config, name)) if words else f"{name}{getattr(config, name)}"
        for name, words in fields_of(family).items()
    ]
    return "_".join([family, *parts])


def make_config(family: Family, settings: Mapping[str, Extra]) -> Config:
    """The configuration with these settings, checked.

    Raises:
        UsageError: a setting is missing, unknown, or impossible.
    """
    fields = fields_of(family)
    if settings.keys() != fields.keys():
        odd = ", ".join(f"`{name}`" for name in sorted(settings.keys() ^ fields.keys()))
        raise UsageError(f"a configuration of `{family}` has {len(fields)} settings; missing or unknown: {odd}")
    for name, words in fields.items():
        value = settings[name]
        if words and value not in words:
            raise UsageError(f"`{name}` is `{value}`, wanted one of {', '.join(words)}")
        least = _MIN.get(name, 1)
        if not words and (not isinstance(value, int) or isinstance(value, bool) or value < least):
            raise UsageError(f"`{name}` is `{value}`, wanted a whole number from {least} on")
    config: Config = _CLASSES[family](**settings)
    problem = _problem(config)
    if problem is not None:
        raise UsageError(problem)
    return config


def parse_id(text: str) -> Config:
    """The configuration that an id names.

    Raises:
        UsageError: the text is not an id.
    """
    first, *parts = text.split("_")
    family = next((candidate for candidate in FAMILIES if candidate == first), None)
    if family is None:
        raise UsageError(f"`{text}` is not a configuration id: it begins with none of {', '.join(FAMILIES)}")
    fields = fields_of(family)
    if len(parts) != len(fields):
        raise UsageError(f"`{text}` is not a configuration id: {len(parts)} settings, wanted {len(fields)}")
    settings: dict[str, Extra] = {}
    for part, (name, words) in zip(parts, fields.items(), strict=True):
        match = _NUMBER.fullmatch(part)
        if not words and (match is None or match.group(1) != name or not part.isascii() or len(part) > 40):
            raise UsageError(f"`{text}` is not a configuration id: `{part}` is no `{name}`, wanted e.g. `{name}8`")
        settings[name] = part if words or match is None else int(match.group(2))
    return make_config(family, settings)


def settings_of(config: Config) -> dict[str, Extra]:
    """Every setting by name."""
    return {name: getattr(config, name) for name in fields_of(family_of(config))}


def _problem(config: Config) -> str | None:
    """Why no network can have these settings; None if one can."""
    if config.dropout >= 1000:
        return f"`dropout` is {config.dropout} thousandths, wanted less than 1000"
    if isinstance(config, TransformerConfig):
        if config.width % config.heads:
            return f"`width` {config.width} is no multiple of `heads` {config.heads}"
        if config.shape == "gpt" and config.classes != config.vocabulary:
            return f"`gpt` predicts its vocabulary: `classes` is {config.classes}, wanted {config.vocabulary}"
        return (
            "`conv1d` has no attention: wanted `heads` of 1" if config.shape == "conv1d" and config.heads > 1 else None
        )
    if config.norm == "batchnorm" and config.batch < 2:
        return "batch normalization needs a batch of 2 or more"
    if isinstance(config, MlpConfig):
        return "`groupnorm` is for images, not for vectors" if config.norm == "groupnorm" else None
    if config.kernel % 2 == 0:
        return f"`kernel` is {config.kernel}, wanted an odd number: the image stays as large"
    return "`layernorm` is for vectors, not for images" if config.norm == "layernorm" else None
