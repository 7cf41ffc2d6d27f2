"""Rows of GPUMemNet's own files, `mlp_data_step1.csv` and the like, as cells of the tables that `published` reads.

A run is described by its file name (`input:1259_output:79_..._batch:717.out`) and by a list of layers: kind, elements
of the output, parameters. Kernels, channels and image sizes are not listed and follow from these. Runs that crashed are
not marked either. Source: the files and `Dataset` scripts of github.com/itu-rad/GPUMemNet.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

Cells = Mapping[str, str]

COLUMNS = {"Filename", "Activations-Params", "Total Parameters", "Max GPU Memory (MiB)"}
SAMPLES = 4096
"""Samples that MLPs and CNNs were trained with: the last batch of an epoch is the remainder."""
NEAR_CAPACITY_MIB = 36000
"""From here on, the allocator released its cache, and the peak is below the need."""
_GENERATED_KERNELS = (3, 1, 5, 7)
"""Kernel sizes of the generated CNNs in the order they are tried; with sizes beyond them, other readings would fit."""
_LAYER = re.compile(r"\('([A-Za-z0-9_]{1,40})', ([0-9]{1,18}), ([0-9]{1,18})\)")
_NAMES = (
    "input_channels", "input_size", "input", "output", "num_classes", "depth", "arch", "base_filters", "batch",
    "act", "dropout", "batchnorm",
)  # fmt: skip
_SETTING = re.compile(rf"(?:^|_)({'|'.join(_NAMES)}):([^:]{{1,40}}?)(?=_(?:{'|'.join(_NAMES)}):|$)")
_MEASURES = {
    "avg_gputl_pct": "Avg GPUTL",
    "avg_gract": "Avg GRACT",
    "avg_smact": "Avg SMACT",
    "avg_smocc": "Avg SMOCC",
    "avg_fp32a": "Avg FP32A",
}


def as_cells(place: int, cells: Cells) -> dict[str, str]:
    """The row at `place`, by the columns of the cleaned tables `mlp.csv` and `cnn_step1.csv`.

    Raises:
        ValueError: the row cannot be read; says why. KeyError: a column is missing.
    """
    settings = dict(_SETTING.findall(cells["Filename"].removesuffix(".out")))
    layers = _layers_of(cells["Activations-Params"])
    common = {
        "row_in_source": str(place),
        "architecture": settings["arch"],
        "activation": settings.get("act", "relu"),
        "use_batchnorm": str(int(settings.get("batchnorm") == "True")),
        "use_dropout": str(int(settings.get("dropout") == "True")),  # there twice: its rate, then whether
        "batch": settings["batch"],
        "params": cells["Total Parameters"],
        "measured_mib": cells["Max GPU Memory (MiB)"],
        **{name: _measured(cells.get(column, "")) for name, column in _MEASURES.items()},
    }
    return common | (_mlp(settings, layers) if "input" in settings else _cnn(settings, layers, cells))


def _measured(text: str) -> str:
    """A measure; nothing where the monitor produced nothing, which is -1."""
    return "" if text.startswith("-") else text


def _layers_of(text: str) -> list[tuple[str, int, int]]:
    """Kind, elements of the output, and parameters of each layer."""
    body = text.strip()
    found = [(kind, int(outputs), int(parameters)) for kind, outputs, parameters in _LAYER.findall(body)]
    if body != f"[{', '.join(str(layer) for layer in found)}]":
        raise ValueError(f"`Activations-Params` is `{body[:60]}`, wanted a list of (kind, outputs, parameters)")
    return found


def _mlp(settings: Mapping[str, str], layers: Sequence[tuple[str, int, int]]) -> dict[str, str]:
    widths = [outputs for kind, outputs, _ in layers if kind == "linear"]
    step = 2 if "act" in settings else 1
    last_batch = SAMPLES % int(settings["batch"])
    crashed = ""
    if step == 1 and settings["output"] == "1":
        crashed = "crashed_before_first_step"
    elif settings.get("batchnorm") == "True" and last_batch == 1:
        crashed = "crashed_at_end_of_first_epoch"
    return {
        "dataset": f"mlp_step{step}",
        "input_size": settings["input"],
        "output_size": settings["output"],
        "hidden_widths": "-".join(map(str, widths[:-1])),
        "last_batch": str(last_batch),
        "flag": crashed,
    }


def _cnn(settings: Mapping[str, str], layers: Sequence[tuple[str, int, int]], cells: Cells) -> dict[str, str]:
    measured = int(cells["Max GPU Memory (MiB)"])
    is_ok = cells["Status"] == "SUCCESSFUL"
    flag = "near_capacity" if is_ok and measured >= NEAR_CAPACITY_MIB else ""
    return {
        "input_channels": settings["input_channels"],
        "num_classes": settings["num_classes"],
        "base_filters": settings["base_filters"],
        "image_size": settings["input_size"],
        "status": "ok" if is_ok else "oom",
        "flag": flag if layers else "no_model_summary",
        "layers": ";".join(_words(layers, int(settings["input_channels"]), settings["arch"])),
    }


def _words(layers: Sequence[tuple[str, int, int]], channels: int, shape: str) -> list[str]:
    """The layers as `published` reads them: `conv3x3:CxS`, `bn`, `act`, `dropout`, `gap:Cx1`, `linear:Cx1`."""
    short = {"batchnorm2d": "bn", "dropout": "dropout", "softmax": "softmax"}
    words = []
    block = channels
    for kind, outputs, parameters in layers:
        if kind == "conv2d":
            kernel, channels, side = convolution_of(block, outputs, parameters)
            words.append(f"conv{kernel}x{kernel}:{channels}x{side}")
            # A dense layer is concatenated to its input; a residual block lists its shortcut first.
            if shape == "dense" and kernel != 1:
                block += channels
            elif shape != "residual" or kernel != 1:
                block = channels
        elif kind == "adaptive_avg_pool2d":
            words.append(f"gap:{outputs}x1")
        elif kind == "linear":
            words.append(f"linear:{outputs}x1")
        else:
            words.append(short.get(kind, "act"))
    return words


def convolution_of(inputs: int, outputs: int, parameters: int) -> tuple[int, int, int]:
    """Kernel, channels and image size of a convolution with a bias, from its counts.

    Raises:
        ValueError: no square convolution of `inputs` channels has these.
    """
    for kernel in _GENERATED_KERNELS:
        channels, rest = divmod(parameters, inputs * kernel * kernel + 1)
        if rest or not channels or outputs % channels:
            continue
        side = math.isqrt(outputs // channels)
        if side * side * channels == outputs:
            return kernel, channels, side
    raise ValueError(f"no convolution of {inputs} channels has {outputs} outputs and {parameters} parameters")
