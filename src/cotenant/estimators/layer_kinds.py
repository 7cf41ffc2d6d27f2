"""The kind of a layer by its class name, as libraries spell it. Pure."""

from __future__ import annotations

import functools
import re
from typing import Literal, TypeAlias, get_args

LayerKind: TypeAlias = Literal[
    "linear",
    "conv",
    "embedding",
    "attention",
    "rnn",
    "batchnorm",
    "norm",
    "activation",
    "dropout",
    "pool",
    "softmax",
    "reshape",
    "other",
]
"""What a layer computes, whatever a library calls it: GPT-2's `Conv1D` is `linear`, `conv` has any dimension, `norm` is
every normalization except batch norm, `reshape` moves or repeats elements."""
LAYER_KINDS: tuple[LayerKind, ...] = get_args(LayerKind)

_NAMES: dict[LayerKind, tuple[str, ...]] = {
    # `Conv1D`, with a capital, is a linear layer: GPT-2's (transformers/pytorch_utils.py).
    "linear": ("Linear", "Bilinear", "NonDynamicallyQuantizableLinear", "LazyLinear", "Conv1D"),
    "embedding": ("Embedding", "EmbeddingBag"),
    "rnn": ("LSTM", "GRU", "RNN", "LSTMCell", "GRUCell", "RNNCell"),
    "norm": ("LocalResponseNorm", "FrozenBatchNorm2d"),
    "activation": (
        "ReLU",
        "ReLU6",
        "LeakyReLU",
        "PReLU",
        "RReLU",
        "ELU",
        "SELU",
        "CELU",
        "GELU",
        "SiLU",
        "Swish",
        "Mish",
        "Tanh",
        "Sigmoid",
        "Hardswish",
        "Hardsigmoid",
        "Hardtanh",
        "HardSwish",
        "HardSigmoid",
        "Softplus",
        "Softsign",
        "LogSigmoid",
        "Threshold",
        "GLU",
    ),
    "dropout": ("StochasticDepth", "DropPath"),
    "softmax": ("Softmax", "LogSoftmax", "Softmax2d", "Softmin"),
    "reshape": ("Identity", "Flatten", "Unflatten", "PixelShuffle", "PixelUnshuffle", "Upsample", "Fold", "Unfold"),
}
_KNOWN: dict[str, LayerKind] = {name: kind for kind, names in _NAMES.items() for name in names}
_PATTERNS: tuple[tuple[re.Pattern[str], LayerKind], ...] = (
    (re.compile(r"(?:Lazy)?Conv(?:Transpose)?[123]d(?:Same)?"), "conv"),
    (re.compile(r"(?:Lazy)?(?:Sync)?BatchNorm(?:[123]d|Act2d)?"), "batchnorm"),
    (re.compile(r"\w*(?:LayerNorm|GroupNorm|InstanceNorm|RMSNorm)(?:[123]d)?"), "norm"),
    (re.compile(r"(?:Alpha|FeatureAlpha)?Dropout[123]?d?"), "dropout"),
    (re.compile(r"(?:Adaptive)?(?:Fractional)?(?:Max|Avg|LP)(?:Un)?[Pp]ool(?:[123]d)?(?:Same)?"), "pool"),
    (re.compile(r"SelectAdaptivePool2d|FastAdaptiveAvgPool|LastLevelMaxPool"), "pool"),
    (re.compile(r"\w*Attention\w*"), "attention"),
    (re.compile(r"\w*(?:Padding|Pad|Upsampling)(?:[123]d)"), "reshape"),
    (re.compile(r"\w*(?:GELU|SiLU|ReLU)Activation"), "activation"),
)


@functools.lru_cache(maxsize=4096)
def layer_kind(name: str) -> LayerKind:
    """The kind of the layer class `name`; `other` for an unknown class, such as a user's own block."""
    known = _KNOWN.get(name)
    if known is not None:
        return known
    return next((kind for pattern, kind in _PATTERNS if pattern.fullmatch(name)), "other")
