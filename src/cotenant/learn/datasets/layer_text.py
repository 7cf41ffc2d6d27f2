"""Layers as one cell of a table: `linear:128:16512:Linear;activation:128:0:ReLU`. Pure."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence

from cotenant.core.errors import DatasetError
from cotenant.learn.datasets.dataset_row import Layer
from cotenant.learn.datasets.kinds import LAYER_KINDS

_LAYER = re.compile(r"([a-z]+):((?:\d+x)*\d+)?:(\d+):([^:;]*)")


def layers_to_text(layers: Sequence[Layer]) -> str:
    """Kind, shape of the output (`CxHxW`; empty where it is not known), parameters and name of each layer."""
    return ";".join(
        f"{layer.kind}:{'x'.join(map(str, layer.output_shape))}:{layer.parameters}:{layer.name}" for layer in layers
    )


def layers_from_text(text: str) -> tuple[Layer, ...]:
    """The layers that `layers_to_text` wrote.

    Raises:
        DatasetError: a layer cannot be read.
    """
    return tuple(_layer(part) for part in text.split(";")) if text else ()


@functools.lru_cache(maxsize=65536)
def _layer(text: str) -> Layer:
    match = _LAYER.fullmatch(text)
    kind = next((candidate for candidate in LAYER_KINDS if match is not None and candidate == match.group(1)), None)
    if match is None or kind is None:
        raise DatasetError(f"`{text[:60]}` is no layer, wanted `KIND:SHAPE:PARAMETERS:NAME`")
    _, shape, parameters, name = match.groups()
    extents = tuple(int(extent) for extent in shape.split("x")) if shape else ()
    return Layer(kind=kind, output_shape=extents, parameters=int(parameters), name=name)
