"""Dataset rows of small networks, as in the published sets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cotenant.core.units import MiB
from cotenant.learn.datasets.dataset_row import DatasetRow, Layer


def mlp_row(
    widths: Sequence[int] = (700, 600, 100), *, inputs: int = 1000, batch: int = 300, activation: str = "relu", **extras
) -> DatasetRow:
    """Linear layers of `widths`, with batch norm, an activation and dropout between, and a softmax behind."""
    layers: list[Layer] = []
    width = inputs
    for place, hidden in enumerate(widths):
        layers.append(Layer(kind="linear", output_shape=(hidden,), parameters=hidden * (width + 1), name="Linear"))
        if place < len(widths) - 1:
            layers.append(Layer(kind="batchnorm", output_shape=(hidden,), parameters=2 * hidden))
            if activation != "identity":
                prelu = int(activation == "prelu")
                layers.append(Layer(kind="activation", output_shape=(hidden,), parameters=prelu, name=activation))
            layers.append(Layer(kind="dropout", output_shape=(hidden,), parameters=0))
        width = hidden
    layers.append(Layer(kind="softmax", output_shape=(widths[-1],), parameters=0))
    return DatasetRow(
        family="mlp",
        config_id="-".join(map(str, (inputs, *widths, batch, activation))),
        status="ok",
        source="published:test",
        batch=batch,
        layers=tuple(layers),
        group="pyramid",
        peak_bytes=1500 * MiB,
        extras={"input_shape": str(inputs), "activation": activation, **extras},
    )


def cnn_row(
    channels: Sequence[int] = (16, 24), *, side: int = 32, batch: int = 8, activation: str = "relu"
) -> DatasetRow:
    """3x3 convolutions with batch norm, an activation and dropout each, then a mean and a linear layer."""
    layers: list[Layer] = []
    before = 3
    for out in channels:
        shape = (out, side, side)
        layers.append(Layer(kind="conv", output_shape=shape, parameters=out * (9 * before + 1), name="conv3x3"))
        layers.append(Layer(kind="batchnorm", output_shape=shape, parameters=2 * out))
        layers.append(Layer(kind="activation", output_shape=shape, parameters=int(activation == "prelu")))
        layers.append(Layer(kind="dropout", output_shape=shape, parameters=0))
        before = out
    layers.append(Layer(kind="pool", output_shape=(before, 1, 1), parameters=0))
    layers.append(Layer(kind="linear", output_shape=(10,), parameters=10 * (before + 1)))
    layers.append(Layer(kind="softmax", output_shape=(10,), parameters=0))
    return DatasetRow(
        family="cnn",
        config_id="-".join(map(str, (*channels, side, batch, activation))),
        status="ok",
        source="published:test",
        batch=batch,
        layers=tuple(layers),
        group="uniform",
        peak_bytes=2000 * MiB,
        extras={"input_shape": f"3x{side}x{side}", "activation": activation},
    )


def measured(row: DatasetRow, peak_mib: float) -> DatasetRow:
    """`row` with another peak."""
    return replace(row, peak_bytes=round(peak_mib * MiB))
