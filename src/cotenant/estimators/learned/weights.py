"""Trained models on disk, and their predictions: numpy only, one vector at a time.

A file is a `.npz` of plain arrays, with `meta` as JSON text among them; nothing in it is executed. `cotenant learn
train` writes it, with a model card of the same name beside it.
"""

from __future__ import annotations

import json
import math
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any, TypeAlias

from cotenant.core.errors import UsageError

Vector: TypeAlias = Any
"""A numpy array. numpy is imported with the first model, so that `compare` works without it."""
VERSION = 1


@dataclass(frozen=True, slots=True)
class Weights:
    """One file: arrays by name, and their meaning.

    Attributes:
        meta: `model`, `family`, `features` (their names, in order), `low` and `high` (of each, where it was trained),
            `outside_mib` (beside the allocator in the environment of the training data), and what the kind needs.
    """

    meta: Mapping[str, Any]
    arrays: Mapping[str, Vector]

    def beyond(self, features: Mapping[str, float]) -> tuple[str, ...]:
        """Features outside the range of the training data by more than a tenth of that range."""
        found = []
        for name, low, high in zip(self.meta["features"], self.meta["low"], self.meta["high"], strict=True):
            slack = 0.1 * (high - low)
            if not low - slack <= features[name] <= high + slack:
                found.append(f"{name} {features[name]:.4g} (trained with {low:.4g} to {high:.4g})")
        return tuple(found)


def import_numpy() -> Any:
    """Numpy.

    Raises:
        UsageError: it is not installed.
    """
    try:
        import numpy
    except ImportError as error:
        raise UsageError(
            "learned estimators need numpy, which is not installed", hint="`pip install cotenant[learn]`"
        ) from error
    return numpy


def write_weights(path: Path, weights: Weights) -> Path:
    """Write a file; `.npz` is added to a name without it."""
    numpy = import_numpy()
    path = path.with_suffix(".npz")
    meta = numpy.frombuffer(json.dumps({"version": VERSION, **weights.meta}).encode(), dtype=numpy.uint8)
    numpy.savez_compressed(path, meta=meta, **weights.arrays)
    return path


def read_weights(path: Any) -> Weights:
    """The model in a file; `path` may be a resource of the package.

    Raises:
        UsageError: the file is not a model, or of another version.
    """
    numpy = import_numpy()
    try:
        with path.open("rb") as file, numpy.load(file, allow_pickle=False) as found:
            arrays = {name: found[name] for name in found.files}
        meta = json.loads(bytes(arrays.pop("meta")).decode())
    except OSError as error:
        raise UsageError(f"cannot read `{path}`: {error.strerror}", hint="`cotenant learn train` writes one") from error
    except (ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise UsageError(f"`{path}` holds no trained model", hint="`cotenant learn train` writes one") from error
    if meta.get("version") != VERSION:
        raise UsageError(f"`{path}` has version {meta.get('version')}, wanted {VERSION}", hint="train it again")
    return Weights(meta, arrays)


@lru_cache(maxsize=32)
def shipped(model: str, family: str) -> Weights:
    """A model that is shipped in the package.

    Raises:
        UsageError: none is shipped for this family of networks.
    """
    file = resources.files("cotenant.estimators") / "data" / "learned" / f"{model}-{family}.npz"
    if not file.is_file():
        raise UsageError(
            f"{model}: no weights for networks of the family `{family}`", hint="choose another estimator, e.g. `traced`"
        )
    return read_weights(file)


def vector_of(weights: Weights, features: Mapping[str, float]) -> Vector:
    """The features in the order of the model."""
    return import_numpy().array([features[name] for name in weights.meta["features"]])


# -- trees ------------------------------------------------------------------------------------------------------------


def forest_predict(weights: Weights, vector: Vector) -> float:
    """Prediction of trees for one vector: the sum of their leaves, times `scale` of the meta, plus `base`."""
    numpy = import_numpy()
    feature, threshold = weights.arrays["feature"], weights.arrays["threshold"]
    left, right = weights.arrays["left"], weights.arrays["right"]
    at = weights.arrays["roots"].astype(numpy.int64)
    first = at.copy()
    vector = vector.astype(numpy.float32)
    while True:
        split_features = feature[at]
        inner = split_features >= 0
        if not inner.any():
            break
        goes_left = vector[split_features] <= threshold[at]
        at = numpy.where(inner, first + numpy.where(goes_left, left[at], right[at]), at)
    return float(threshold[at].sum()) * float(weights.meta["scale"]) + float(weights.meta["base"])


# -- neural networks --------------------------------------------------------------------------------------------------


def scaled(weights: Weights, vector: Vector, prefix: str) -> Vector:
    """Signed logarithm, then mean 0 and deviation 1 of the training data."""
    numpy = import_numpy()
    logs = numpy.sign(vector) * numpy.log1p(numpy.abs(vector))
    return (logs - weights.arrays[f"{prefix}_mean"]) / weights.arrays[f"{prefix}_deviation"]


def mlp_predict(weights: Weights, vector: Vector) -> Vector:
    """Logits of the MLP ensemble for a scaled vector. Batch norms are part of the weights."""
    numpy = import_numpy()
    arrays = weights.arrays
    hidden = numpy.maximum(numpy.matmul(vector, arrays["first"]) + arrays["first_bias"], 0)[:, None]
    for level, active in enumerate(arrays["active"]):
        made = numpy.maximum(numpy.matmul(hidden, arrays["inner"][level]) + arrays["inner_bias"][level], 0)
        hidden = numpy.where(active, made, hidden)
    return (numpy.matmul(hidden, arrays["head"]) + arrays["head_bias"]).mean(axis=0)[0]


def sequence_vector(weights: Weights, layers: Sequence[tuple[int, float, float]]) -> Vector:
    """Output of the encoders for a network's layers."""
    numpy = import_numpy()
    rows = numpy.array(layers)
    kinds = int(weights.meta["kinds"])
    x = numpy.zeros((len(layers), kinds + 2))
    x[numpy.arange(len(layers)), rows[:, 0].astype(int)] = 1
    x[:, kinds:] = scaled(weights, rows[:, 1:], "layer")
    pooled = []
    for encoder, blocks in enumerate(weights.meta["encoders"]):
        part = {name.partition(".")[2]: array for name, array in weights.arrays.items() if name[0] == str(encoder)}
        hidden = x @ part["embed.weight"].T + part["embed.bias"]
        for block in range(blocks):
            hidden = _encoder_block(numpy, hidden, part, f"blocks.layers.{block}.")
        pooled.append(hidden.sum(axis=0) / float(weights.meta["pooled_by"]))
    return numpy.concatenate(pooled)


def _encoder_block(numpy: Any, x: Vector, part: Mapping[str, Vector], prefix: str) -> Vector:
    """One post-norm encoder layer, one head."""
    packed = x @ part[f"{prefix}self_attn.in_proj_weight"].T + part[f"{prefix}self_attn.in_proj_bias"]
    query, key, value = numpy.split(packed, 3, axis=1)
    scores = query @ key.T / math.sqrt(query.shape[1])
    scores = numpy.exp(scores - scores.max(axis=1, keepdims=True))
    attended = (scores / scores.sum(axis=1, keepdims=True)) @ value
    attended = attended @ part[f"{prefix}self_attn.out_proj.weight"].T + part[f"{prefix}self_attn.out_proj.bias"]
    x = _layer_norm(numpy, x + attended, part, f"{prefix}norm1")
    wide = numpy.maximum(x @ part[f"{prefix}linear1.weight"].T + part[f"{prefix}linear1.bias"], 0)
    narrow = wide @ part[f"{prefix}linear2.weight"].T + part[f"{prefix}linear2.bias"]
    return _layer_norm(numpy, x + narrow, part, f"{prefix}norm2")


def _layer_norm(numpy: Any, x: Vector, part: Mapping[str, Vector], name: str) -> Vector:
    middle = x - x.mean(axis=1, keepdims=True)
    return (
        middle / numpy.sqrt((middle**2).mean(axis=1, keepdims=True) + 1e-5) * part[f"{name}.weight"]
        + part[f"{name}.bias"]
    )
