"""One training job of a data set: its network, and its GPU memory. Shared by readers and writers."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, get_args

from cotenant.core.errors import DatasetError
from cotenant.estimators.layer_kinds import LAYER_KINDS, LayerKind

Family: TypeAlias = Literal["mlp", "cnn", "transformer"]
Status: TypeAlias = Literal["ok", "oom", "crash", "timeout"]
Extra: TypeAlias = str | int | float | bool

FAMILIES: tuple[Family, ...] = get_args(Family)
ESTIMATED = ("traced", "simulated")
"""Sources whose peaks are estimates, by the trace of a training or by the simulation of its layers."""
STATUSES: tuple[Status, ...] = get_args(Status)

_LAYER = re.compile(r"([a-z]+):((?:\d+x)*\d+)?:(\d+):([^:;]*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One layer of a network, in the order of the forward pass.

    Attributes:
        output_shape: of one sample, without the batch; `()` where unknown.
        parameters: count, trained or frozen; 0 where an earlier layer with the same weights counts them.
        name: the class name in the source (`Conv2d`), for display.
    """

    kind: LayerKind
    output_shape: tuple[int, ...]
    parameters: int
    name: str = ""

    @property
    def outputs(self) -> int:
        """Elements of its output for one sample; 0 where the shape is unknown."""
        return math.prod(self.output_shape) if self.output_shape else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetRow:
    """One training job.

    Attributes:
        config_id: names the configuration, and can rebuild a generated one. Runs of the same configuration share it.
        status: outcome of the run. Only `ok` rows have a peak for training.
        source: `measured`, `traced` or `simulated` here, or `published:NAME` by others.
        peak_bytes: peak use of the GPU, context included, as nvidia-smi shows, or as estimated. None
            where the job did not get so far.
        context_bytes: the part outside the allocator; capacity_bytes: of the GPU; None where unknown.
        smact, smocc, drama: means over the run, ratios 0..1.
        batch: samples of a step.
        group: shape of the architecture (`pyramid`, `residual`, `encoder`...), to split by.
        extras: further fields of the source, by name.
    """

    family: Family
    config_id: str
    status: Status
    source: str
    batch: int
    layers: tuple[Layer, ...]
    group: str
    peak_bytes: int | None = None
    context_bytes: int | None = None
    capacity_bytes: int | None = None
    smact: float | None = None
    smocc: float | None = None
    drama: float | None = None
    extras: Mapping[str, Extra] = field(default_factory=dict)

    @property
    def parameters(self) -> int:
        """Count over all layers."""
        return sum(layer.parameters for layer in self.layers)

    @property
    def activations(self) -> int:
        """Elements of all layers' outputs, for one sample."""
        return sum(layer.outputs for layer in self.layers)


def check(row: DatasetRow) -> DatasetRow:
    """`row`, if it is valid.

    Raises:
        DatasetError: it is not; names the row and the problem.
    """
    problem = _problem(row)
    if problem is not None:
        raise DatasetError(f"row `{row.config_id}`: {problem}")
    return row


def _problem(row: DatasetRow) -> str | None:
    if not row.config_id:
        return "has no id"
    if row.family not in FAMILIES:
        return f"family is `{row.family}`, wanted one of {', '.join(FAMILIES)}"
    if row.status not in STATUSES:
        return f"status is `{row.status}`, wanted one of {', '.join(STATUSES)}"
    if row.source not in ("measured", *ESTIMATED) and not row.source.startswith("published:"):
        return f"source is `{row.source}`, wanted `measured`, `traced`, `simulated` or `published:NAME`"
    if row.batch < 1:
        return f"batch is {row.batch}, wanted 1 or more"
    if row.status == "ok" and (row.peak_bytes is None or row.peak_bytes <= 0):
        return f"is ok, but its peak is {row.peak_bytes} bytes"
    if row.status == "ok" and row.source == "measured" and row.capacity_bytes and _above(row, row.capacity_bytes):
        return f"is ok, but its peak of {row.peak_bytes} bytes is above the GPU's {row.capacity_bytes}"
    if row.context_bytes is not None and row.context_bytes < 0:
        return f"context is {row.context_bytes} bytes"
    for name, value in (("smact", row.smact), ("smocc", row.smocc), ("drama", row.drama)):
        if value is not None and not 0 <= value <= 1:
            return f"{name} is {value}, wanted a ratio from 0 to 1"
    for i, layer in enumerate(row.layers):
        if layer.kind not in LAYER_KINDS or layer.parameters < 0 or any(size < 0 for size in layer.output_shape):
            return f"layer {i} is not possible: {layer}"
    return None


def _above(row: DatasetRow, limit_bytes: int) -> bool:
    return row.peak_bytes is not None and row.peak_bytes > limit_bytes


def layers_to_text(layers: Sequence[Layer]) -> str:
    """Kind, output shape (`CxHxW`; empty where unknown), parameters and name of each layer, for one cell of a table."""
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
        raise DatasetError(f"`{text[:60]}` is not a layer, wanted `KIND:SHAPE:PARAMETERS:NAME`")
    _, shape, parameters, name = match.groups()
    extents = tuple(int(extent) for extent in shape.split("x")) if shape else ()
    return Layer(kind=kind, output_shape=extents, parameters=int(parameters), name=name)
