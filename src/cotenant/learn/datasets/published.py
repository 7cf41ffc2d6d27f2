"""Reads the measurements that GPUMemNet published: its own CSV files, or four cleaned ones. The user names the paths.

All were measured on an A100-SXM4-40GB in 2024: device memory by nvidia-smi, once a second, context included; so a peak
is the peak of the reserved bytes plus about 1.4 GiB. Adam, fp32. Source: GPUMemNet, arXiv 2602.17817;
the data card beside the files describes the columns.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from cotenant.core.errors import DatasetError
from cotenant.core.units import MiB
from cotenant.learn.datasets import upstream_files
from cotenant.learn.datasets.dataset_row import DatasetRow, Extra, Layer, check
from cotenant.learn.datasets.upstream_files import SAMPLES, Cells

CAPACITY_BYTES = 40960 * MiB


def read_published(path: Path) -> list[DatasetRow]:
    """The rows of a published file, by its columns.

    Upstream's `mlp_data_step1.csv`, `mlp_data_step2.csv` and `cnn_data_step1.csv`, or the cleaned `mlp.csv`,
    `cnn_step1.csv`, `cnn_step23_sample.csv` and `transformer_sample.csv`.

    Rows that crashed or ran out of memory have that status and no peak. Rows near the GPU's capacity have `flag` in
    their extras: there the allocator released its cache, and the peak is below the need.

    Raises:
        DatasetError: the file is none of these, or a row is invalid.
    """
    try:
        with path.open(newline="", encoding="utf-8") as file:
            found: Sequence[Cells] = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError) as error:
        raise DatasetError(f"cannot read `{path}`: {error}") from error
    columns = set(found[0]) if found else set()
    if columns >= upstream_files.COLUMNS:
        found = list(_upstream(path, found))
        columns = set(found[0])
    for needed, reader in _READERS:
        if needed <= columns:
            rows = [check(row) for row in _read(path, found, reader)]
            _without_duplicates(path, rows)
            return rows
    raise DatasetError(
        f"`{path}` is no known table of GPUMemNet",
        hint="wanted upstream's mlp_data_step1.csv, mlp_data_step2.csv or cnn_data_step1.csv, or a cleaned table",
    )


def is_published(path: Path) -> bool:
    """Whether a file has the columns of a published table."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            columns = set(next(csv.reader(file), []))
    except (OSError, UnicodeDecodeError):
        return False
    return columns >= upstream_files.COLUMNS or any(needed <= columns for needed, _ in _READERS)


def is_plain(row: DatasetRow) -> bool:
    """Whether the layers of `row` follow one another: no residual or dense branches."""
    return row.group not in ("residual", "dense")


def _upstream(path: Path, found: Sequence[Cells]) -> Iterator[Cells]:
    for place, cells in enumerate(found):
        try:
            yield upstream_files.as_cells(place, cells)
        except (KeyError, ValueError, TypeError) as error:
            raise DatasetError(f"{path}:{place + 2}: {error}") from error


def _read(path: Path, found: Sequence[Cells], reader: Callable[[Cells], DatasetRow]) -> Iterator[DatasetRow]:
    for line, cells in enumerate(found, start=2):
        try:
            yield reader(cells)
        except (KeyError, ValueError, IndexError, TypeError) as error:  # a short line has None for its last cells
            raise DatasetError(f"{path}:{line}: {error}") from error


def _without_duplicates(path: Path, rows: Sequence[DatasetRow]) -> None:
    seen: set[str] = set()
    for row in rows:
        if row.config_id in seen:
            raise DatasetError(f"`{path}` has `{row.config_id}` twice")
        seen.add(row.config_id)


# -- MLP ------------------------------------------------------------------------------------------------------------


def _mlp(cells: Cells) -> DatasetRow:
    inputs, outputs = int(cells["input_size"]), int(cells["output_size"])
    step = cells["dataset"].rpartition("_")[2]
    layers: list[Layer] = []
    width = inputs
    for hidden in map(int, cells["hidden_widths"].split("-")):
        layers += _dense_layers(width, hidden, cells)
        width = hidden
    layers.append(_linear(width, outputs))
    if step == "step2":
        layers.append(Layer(kind="softmax", output_shape=(outputs,), parameters=0, name="Softmax"))
    expected = int(cells["params"])
    counted = sum(layer.parameters for layer in layers)
    if counted - _prelus(layers) != expected:
        raise ValueError(f"{counted} parameters in the layers, but `params` is {expected}")
    crashed = cells["flag"].startswith("crashed")
    return DatasetRow(
        family="mlp",
        config_id=f"{cells['dataset']}-{cells['row_in_source']}",
        status="crash" if crashed else "ok",
        source=f"published:gpumemnet-{cells['dataset']}",
        batch=int(cells["batch"]),
        layers=tuple(layers),
        group=cells["architecture"],
        peak_bytes=None if crashed else int(cells["measured_mib"]) * MiB,
        capacity_bytes=CAPACITY_BYTES,
        extras={
            "input_shape": str(inputs),
            "activation": cells["activation"],
            "last_batch": int(cells["last_batch"]),
            **({"flag": cells["flag"], "read_mib": int(cells["measured_mib"])} if crashed else {}),
            **_trained_as(cells),
        },
        smact=_ratio(cells, "avg_smact"),
        smocc=_ratio(cells, "avg_smocc"),
    )


def _prelus(layers: Sequence[Layer]) -> int:
    """Weights of PReLUs, which the sets do not count."""
    return sum(layer.parameters for layer in layers if layer.kind == "activation")


def _dense_layers(width: int, hidden: int, cells: Cells) -> Iterator[Layer]:
    yield _linear(width, hidden)
    if cells["use_batchnorm"] == "1":
        yield Layer(kind="batchnorm", output_shape=(hidden,), parameters=2 * hidden, name="BatchNorm1d")
    if cells["activation"] != "identity":
        weights = int(cells["activation"] == "prelu")
        yield Layer(kind="activation", output_shape=(hidden,), parameters=weights, name=cells["activation"])
    if cells["use_dropout"] == "1":
        yield Layer(kind="dropout", output_shape=(hidden,), parameters=0, name="Dropout")


def _linear(inputs: int, outputs: int) -> Layer:
    return Layer(kind="linear", output_shape=(outputs,), parameters=outputs * (inputs + 1), name="Linear")


# -- CNN ------------------------------------------------------------------------------------------------------------


def _cnn(cells: Cells) -> DatasetRow:
    layers = _cnn_layers(cells) if cells["layers"] else ()
    counted = sum(layer.parameters for layer in layers) - _prelus(layers)
    if layers and counted != int(cells["params"]):
        raise ValueError(f"{counted} parameters in the layers, but `params` is {cells['params']}")
    status = "oom" if cells["status"] == "oom" else "ok" if layers else "crash"
    size = cells["image_size"]
    return DatasetRow(
        family="cnn",
        config_id=f"cnn_step1-{cells['row_in_source']}",
        status=status,  # type: ignore[arg-type]
        source="published:gpumemnet-cnn_step1",
        batch=int(cells["batch"]),
        layers=tuple(layers),
        group=cells["architecture"],
        peak_bytes=int(cells["measured_mib"]) * MiB if status == "ok" else None,
        capacity_bytes=CAPACITY_BYTES,
        smact=_ratio(cells, "avg_smact"),
        smocc=_ratio(cells, "avg_smocc"),
        extras={
            "input_shape": f"{cells['input_channels']}x{size}x{size}",
            "activation": cells["activation"],
            "last_batch": SAMPLES % int(cells["batch"]),
            **({"flag": cells["flag"]} if cells["flag"] else {}),
            **_trained_as(cells),
        },
    )


def _cnn_layers(cells: Cells) -> tuple[Layer, ...]:
    """The layers; at a branch, the input of a convolution is not the output of the layer before it.

    A residual block lists its shortcut (`conv1x1`) first, and both begin at the block's input. A dense block adds each
    result to its input, by concatenation; `conv1x1` is the transition between blocks there.
    """
    channels, size = int(cells["input_channels"]), int(cells["image_size"])
    block = channels
    group = cells["architecture"]
    layers: list[Layer] = []
    for word in cells["layers"].split(";"):
        starts = word.startswith(("conv", "gap"))
        layer = _cnn_layer(word, block if starts else channels, size, cells["activation"])
        layers.append(layer)
        if layer.kind not in ("conv", "linear", "pool"):
            continue
        channels, size = layer.output_shape[0], layer.output_shape[-1]
        if group == "dense" and word.startswith("conv3x3"):
            block += channels
        elif group != "residual" or not word.startswith("conv1x1"):
            block = channels
    return tuple(layers)


def _cnn_layer(word: str, channels: int, size: int, activation: str) -> Layer:
    kind, _, shape = word.partition(":")
    out, _, pixels = shape.partition("x")
    if kind.startswith("conv"):
        kernel = int(kind[4])
        parameters = int(out) * (channels * kernel * kernel + 1)
        return Layer(kind="conv", output_shape=(int(out), int(pixels), int(pixels)), parameters=parameters, name=kind)
    if kind == "linear":
        return _linear(channels, int(out))
    here = (channels, size, size) if size > 1 else (channels,)
    if kind == "bn":
        return Layer(kind="batchnorm", output_shape=here, parameters=2 * channels, name="BatchNorm2d")
    if kind == "act":
        return Layer(kind="activation", output_shape=here, parameters=int(activation == "prelu"), name=activation)
    if kind == "gap":
        return Layer(kind="pool", output_shape=(channels, 1, 1), parameters=0, name="AdaptiveAvgPool2d")
    if kind == "dropout":
        return Layer(kind="dropout", output_shape=here, parameters=0, name="Dropout")
    return Layer(kind="softmax", output_shape=(channels,), parameters=0, name=kind)


def _cnn_sample(cells: Cells) -> DatasetRow:
    """A transcribed row: without layers, so it can be analyzed but not trained on."""
    identity = "-".join(cells[name] for name in ("step", "depth_arg", "architecture", "base_filters", "params"))
    return DatasetRow(
        family="cnn",
        config_id=f"cnn_step23-{identity}",
        status="oom" if cells["status"] == "oom" else "ok",
        source="published:gpumemnet-cnn_step23",
        batch=int(cells["batch"]),
        layers=(),
        group=cells["architecture"],
        peak_bytes=int(cells["measured_mib"]) * MiB if cells["status"] == "ok" else None,
        capacity_bytes=CAPACITY_BYTES,
        smact=_ratio(cells, "avg_smact"),
        extras={
            "input_shape": f"{cells['input_channels']}x{cells['image_size']}x{cells['image_size']}",
            "activation": cells["activation"],
        },
    )


# -- Transformer ----------------------------------------------------------------------------------------------------

ENCODER_COLUMNS = {
    "vocabulary": "vocab",
    "width": "d_model",
    "length": "seq_len",
    "layers": "num_layers",
    "heads": "num_heads",
    "feedforward": "ffn_dim",
    "classes": "num_classes",
}
"""Columns of GPUMemNet's table, by the names of a synthetic encoder's sizes and of the job script's options."""


def _transformer(cells: Cells) -> DatasetRow:
    shape = {name: int(cells[column]) for name, column in ENCODER_COLUMNS.items()}
    layers = _encoder_layers(shape)
    counted = sum(layer.parameters for layer in layers)
    if counted != int(cells["params_exact"]):
        raise ValueError(f"{counted} parameters in the layers, but `params_exact` is {cells['params_exact']}")
    batch = int(cells["batch"])
    identity = "-".join(str(value) for value in (cells["step"], *shape.values(), batch))
    return DatasetRow(
        family="transformer",
        config_id=f"transformer-{identity}",
        status="oom" if cells["status"] == "oom" else "ok",
        source="published:gpumemnet-transformer",
        batch=batch,
        layers=layers,
        group="encoder",
        peak_bytes=int(cells["measured_mib"]) * MiB if cells["status"] == "ok" else None,
        capacity_bytes=CAPACITY_BYTES,
        extras={**shape, "last_batch": int(cells["num_samples"]) % batch, "activation": "relu"},
    )


def _encoder_layers(shape: Mapping[str, int]) -> tuple[Layer, ...]:
    vocabulary, width, length = shape["vocabulary"], shape["width"], shape["length"]
    layers, feedforward, classes = shape["layers"], shape["feedforward"], shape["classes"]
    wide, narrow = (length, feedforward), (length, width)

    def layer(kind: str, shape: tuple[int, ...], parameters: int = 0, name: str = "") -> Layer:
        return Layer(kind=kind, output_shape=shape, parameters=parameters, name=name)  # type: ignore[arg-type]

    # By module calls: the attention with its out-projection is one layer, the activation is none.
    block = (
        layer("attention", narrow, 4 * width * (width + 1), "MultiheadAttention"),
        layer("dropout", narrow, name="Dropout"),
        layer("norm", narrow, 2 * width, "LayerNorm"),
        layer("linear", wide, feedforward * (width + 1), "Linear"),
        layer("dropout", wide, name="Dropout"),
        layer("linear", narrow, width * (feedforward + 1), "Linear"),
        layer("dropout", narrow, name="Dropout"),
        layer("norm", narrow, 2 * width, "LayerNorm"),
    )
    return (
        layer("embedding", narrow, vocabulary * width, "Embedding"),
        *(entry for _ in range(layers) for entry in block),
        layer("linear", (classes,), classes * (width + 1), "Linear"),
        layer("other", (), length * width, "positions"),
    )


# -- cells ----------------------------------------------------------------------------------------------------------


def _ratio(cells: Cells, column: str) -> float | None:
    text = cells.get(column, "")
    return float(text) if text and math.isfinite(float(text)) else None


def _trained_as(cells: Cells) -> dict[str, Extra]:
    """Further measures of GPU activity, where the row has them."""
    columns = {"gpu_busy": ("avg_gputl_pct", 0.01), "gract": ("avg_gract", 1.0), "fp32a": ("avg_fp32a", 1.0)}
    return {name: float(cells[column]) * scale for name, (column, scale) in columns.items() if cells.get(column)}


_READERS: tuple[tuple[set[str], Callable[[Cells], DatasetRow]], ...] = (
    ({"hidden_widths", "last_batch", "measured_mib"}, _mlp),
    ({"layers", "base_filters", "measured_mib"}, _cnn),
    ({"torchsummary_fwd_bwd_mib", "base_filters"}, _cnn_sample),
    ({"ffn_dim", "params_exact", "measured_mib"}, _transformer),
)
