"""Rows of published measurements, and the job script that rebuilds each of them."""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from cotenant.core.units import MiB
from cotenant.learn.datasets.published import ENCODER_COLUMNS

Cells = Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """What another estimator said of a job, as its measurements record it.

    Attributes:
        estimated_bytes: where it says `oom`, the level at which it stopped.
        second_oom: whether a second run, capped at the estimate, ran out of memory; None: not recorded.
    """

    estimated_bytes: int
    oom: bool
    second_oom: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One measured job.

    Attributes:
        script: file in `benchmarks/estimator/jobs`, run with `args`.
        gpu: name of a device profile; torch: version whose allocator rules hold.
        measured_bytes: as the set measures; where `measured_oom`, only the level reached before it failed.
        quantity: which peak is compared with it.
        readings: lowest and highest bytes that a printed number may mean, or None where it is exact.
        may_lack_weights: the reading starts from a level that was sampled while the weights were loaded.
        loads: libraries loaded in addition to those of every row of the set; such rows have a constant of their own.
        doubt: why the measurement may be wrong, or empty; such rows are scored, but not used for fitting.
        others: other estimators by name; those that do not support the job are left out.
        other_errors: absolute relative errors of other estimators, where nothing else is published.
    """

    title: str
    script: str
    args: tuple[str, ...]
    gpu: str
    torch: str
    measured_bytes: int
    quantity: Literal["reserved", "allocated"] = "reserved"
    readings: tuple[int, int] | None = None
    measured_oom: bool = False
    may_lack_weights: bool = False
    loads: str = ""
    doubt: str = ""
    others: Mapping[str, Recorded] = field(default_factory=dict)
    other_errors: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A table of measurements.

    Attributes:
        outside_bytes: bytes in the measurements beside those of the rows' quantity; None: a constant fitted to the
            first rows.
        imports: modules that a worker imports once, before the rows.
        packages: other libraries of the rows, whose versions the page names.
        row: converts cells into a `Row`, or returns the reason to exclude the row.
        series: column that identifies a series of growing batches. A row is excluded if a larger batch of its series
            ran with less memory, and doubtful if it has more than its part of a smaller one: another process used the
            GPU, before or then.
    """

    name: str
    file: str
    measures: str
    outside_bytes: int | None
    imports: tuple[str, ...]
    row: Callable[[Cells], Row | str]
    series: str = ""
    all_rows: bool = False
    packages: tuple[str, ...] = ()


def read(group: Group, folder: Path) -> tuple[list[Row], Counter[str]]:
    """The rows of a table that the job scripts can reproduce, and the number of excluded rows by reason."""
    rows: list[Row] = []
    left_out: Counter[str] = Counter()
    table = list(_cells(folder / group.file))
    too_high = _above_larger_batches(table, group.series) if group.series else set()
    doubtful = _above_smaller_batches(table, group.series, too_high) if group.series else set()
    for number, cells in enumerate(table):
        found = "above_larger_batch" if number in too_high else group.row(cells)
        if isinstance(found, Row):
            rows.append(replace(found, doubt="more than in proportion to the batch") if number in doubtful else found)
        else:
            left_out[found] += 1
    return rows, left_out


def _above_larger_batches(table: Sequence[Cells], series: str) -> set[int]:
    """Numbers of the rows with more memory than a larger batch of the same series that is not known to have crashed."""
    least: dict[str, int] = {}
    found = set()
    for number, cells in sorted(enumerate(table), key=lambda item: -int(item[1]["batch"])):
        measured = int(cells["measured_mib"])
        if measured > least.get(cells[series], measured) and not cells["flag"]:
            found.add(number)
        if not {"estimate_over_36000", "at_capacity"} & set(cells["flag"].split("|")):
            least[cells[series]] = min(measured, least.get(cells[series], measured))
    return found


CONTEXT_MIB = 1650
"""The least that nvidia-smi shows of a job of GPUMemNet with cuDNN (2024)."""
GROWTH = 1.1
"""Batches may grow a job by so much more than in proportion: cuDNN may take more for a larger one."""


def _above_smaller_batches(table: Sequence[Cells], series: str, too_high: Set[int]) -> set[int]:
    """Numbers of the rows with more memory beside the context, by `GROWTH`, than a smaller batch in proportion.

    A row that is flagged only because it has less than a smaller batch counts as sound if that batch is `too_high`.
    """
    seen: dict[str, list[tuple[int, int]]] = {}
    sound: dict[str, list[tuple[int, int]]] = {}
    found = set()
    for number, cells in sorted(enumerate(table), key=lambda item: int(item[1]["batch"])):
        batch, measured = int(cells["batch"]), int(cells["measured_mib"]) - CONTEXT_MIB
        smaller, all_smaller = sound.setdefault(cells[series], []), seen.setdefault(cells[series], [])
        if any(measured > GROWTH * below * batch / size for size, below in smaller):
            found.add(number)
        above = {other for other, below in all_smaller if below > measured}
        if not cells["flag"] or (cells["flag"] == "below_smaller_batch" and above and above <= too_high):
            smaller.append((batch, measured))
        all_smaller.append((number, measured))
    return found


def _cells(path: Path) -> Iterator[Cells]:
    with path.open(newline="", encoding="utf-8") as file:
        yield from csv.DictReader(file)


A100 = "A100-40GB"
TORCH_2024 = "2.4.1"


def mlp_row(cells: Cells) -> Row | str:
    """A row of `mlp.csv`; those of step 1 end in a linear layer, those of step 2 in a softmax."""
    if cells["flag"]:
        return cells["flag"]
    args = ["--inputs", cells["input_size"], "--hidden", *cells["hidden_widths"].split("-")]
    args += ["--classes", cells["output_size"], "--activation", cells["activation"], "--batch-size", cells["batch"]]
    if cells["dataset"] == "mlp_step1":
        args.append("--no-softmax")
    if cells["use_batchnorm"] == "1":
        args.append("--batch-norm")
    if cells["use_dropout"] == "1":
        args += ["--dropout", cells["dropout_p"]]
    return _nvidia_smi_row("mlp_row.py", args, f"{cells['dataset']} {cells['row_in_source']}", cells)


def cnn_row(cells: Cells) -> Row | str:
    """A row of `cnn_step1.csv`; branches cannot be rebuilt from a list of layers."""
    if cells["status"] == "oom":
        return "oom"
    if cells["flag"]:
        return cells["flag"]
    if cells["architecture"] in ("residual", "dense"):
        return "branches"
    args = ["--layers", cells["layers"], "--channels", cells["input_channels"], "--image-size", cells["image_size"]]
    args += ["--activation", cells["activation"], "--batch-size", cells["batch"]]
    if cells["use_dropout"] == "1":
        args += ["--dropout", cells["dropout_p"]]
    title = f"{cells['architecture']} {cells['row_in_source']}: {cells['activation']}"
    row = _nvidia_smi_row("cnn_row.py", args, title, cells)
    return replace(row, loads="batch norm" if cells["use_batchnorm"] == "1" else "")


# (Title, MiB.) All other rows are within 700 MiB of a replay. These are 1000 or 2000 MiB above it, plus up to 120 MiB
# as for other rows: probably wrong digits, since the table was copied by hand.
THOUSANDS_OFF = {
    ("width 256, 7 layers, 64 x 128 tokens", 3941),
    ("width 256, 9 layers, 16 x 128 tokens", 7893),
    ("width 256, 10 layers, 16 x 128 tokens", 6771),
    ("width 512, 4 layers, 32 x 512 tokens", 8607),
    ("width 768, 2 layers, 8 x 512 tokens", 11771),
}


def transformer_row(cells: Cells) -> Row | str:
    """A row of `transformer_sample.csv`."""
    if cells["status"] == "oom":
        return "oom"
    options = {**ENCODER_COLUMNS, "dropout": "dropout_p", "samples": "num_samples", "batch-size": "batch"}
    args = [word for option, column in options.items() for word in (f"--{option}", cells[column])]
    title = f"width {cells['d_model']}, {cells['num_layers']} layers, {cells['batch']} x {cells['seq_len']} tokens"
    row = _nvidia_smi_row("transformer_row.py", args, title, cells)
    doubtful = (title, int(cells["measured_mib"])) in THOUSANDS_OFF
    return replace(row, doubt="off by a whole number of thousands" if doubtful else "")


def timm_row(cells: Cells) -> Row | str:
    """A row of `timm_faketensor.csv`."""
    if cells["flag"]:
        return cells["flag"].split("|")[0]
    args = ["--model", cells["model"], "--batch-size", cells["batch"]]
    return _nvidia_smi_row("timm_row.py", args, f"{cells['model']} {cells['batch']}", cells)


def _nvidia_smi_row(script: str, args: list[str], title: str, cells: Cells) -> Row:
    return Row(
        title=title,
        script=script,
        args=tuple(args),
        gpu=A100,
        torch=TORCH_2024,
        measured_bytes=int(cells["measured_mib"]) * MiB,
    )


XMEM_GPUS = {
    "NVIDIA GeForce RTX 3060": "RTX3060-12GB",
    "NVIDIA GeForce RTX 4060": "RTX4060-8GB",
    "NVIDIA A100-SXM4-40GB": A100,
}
XMEM_CNNS = {
    "ConvNeXtBase": "convnext_base",
    "ConvNeXtTiny": "convnext_tiny",
    "MnasNet": "mnasnet1_0",
    "RegNetX400MF": "regnet_x_400mf",
    "ResNet101": "resnet101",
    "ResNet152": "resnet152",
    "VGG16": "vgg16",
    "VGG19": "vgg19",
}
XMEM_TEN_CLASSES = ("MnasNet",)
XMEM_MODELS = {
    "T5-small": "t5-small",
    "t5-base": "t5-base",
    "cerebras/Cerebras-GPT-111M": "cerebras-gpt-111m",
    "distilbert/distilgpt2": "distilgpt2",
    "facebook/opt-125m": "opt-125m",
    "openai-community/gpt2": "gpt2",
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B": "deepseek-r1-distill-qwen-1.5b",
    "meta-llama/Llama-3.2-3B-Instruct": "llama-3.2-3b",
    "google/gemma-2-2b-it": "gemma-2-2b",
}


def xmem_row(cells: Cells) -> Row | str:
    """A row of xMem's `measurements.csv`. OOM rows are included: OOM predictions are scored."""
    model = cells["model"]
    if model in XMEM_CNNS:
        script, args = "xmem_cnn.py", ["--model", XMEM_CNNS[model]]
        args += ["--classes", "10"] if model in XMEM_TEN_CLASSES else []
    elif model in XMEM_MODELS:
        script, args = "xmem_lm.py", ["--model", XMEM_MODELS[model]]
    else:
        return "model not rebuilt"
    args += ["--optimizer", cells["optimizer"], "--batch-size", cells["batch"]]
    gpu = XMEM_GPUS[cells["gpu"]]
    return Row(
        title=f"{model.split('/')[-1]} {cells['optimizer']} {cells['batch']} on {gpu}",
        script=script,
        args=tuple(args),
        gpu=gpu,
        torch="2.6.0",
        measured_bytes=int(cells["measured_bytes"]),
        measured_oom=cells["measured_oom"] == "True",
        # train_loop.py: `conv_train_loop` starts sampling and loads at once, `transformer_train_loop` waits for 2 s.
        may_lack_weights=model in XMEM_CNNS,
        others=_xmem_others(cells),
    )


def _xmem_others(cells: Cells) -> dict[str, Recorded]:
    found = {}
    for name in ("xMem", "DNNMem", "SchedTune", "LLMem"):
        column = name.lower()
        if cells.get(f"{column}_bytes"):
            second = cells[f"{column}_v2_oom"]
            found[name] = Recorded(
                estimated_bytes=int(cells[f"{column}_bytes"]),
                oom=cells[f"{column}_oom"] == "True",
                second_oom=second == "True" if second else None,
            )
    return found


PEFT_LONGEST_TOKENS = 500
"""Length of the longest batches, which is not published: the first round number tried, not tuned."""

# Adapter settings for which PEFT has the same number of trainable parameters as the row.
PEFT_ADAPTERS: Mapping[str, Mapping[str, object]] = {
    "beft/llama-3.2-3B-target-v_proj": {"peft_type": "BEFT", "target_modules": ["v_proj"]},
    "boft/llama-3.2-3B-default": {"peft_type": "BOFT"},
    "delora/llama-3.2-3B-rank32": {"peft_type": "DELORA", "r": 32, "delora_lambda": 15},
    "fourierft/llama-3.2-3B-default": {"peft_type": "FOURIERFT", "n_frequency": 1000},
    "fourierft/llama-3.2-3B-n_frequency-5000": {"peft_type": "FOURIERFT", "n_frequency": 5000},
    "glora/llama-3.2-3B-default": {"peft_type": "GLORA", "r": 8},
    "gralora/llama-3.2-3B-rank32": {"peft_type": "GRALORA", "r": 32},
    "hira/llama-3.2-3B-rank32-lr4.5e-3": {"peft_type": "HIRA", "r": 32},
    "ia3/llama-3.2-3B-default": {"peft_type": "IA3"},
    "ln_tuning/llama-3.2-3B-default": {"peft_type": "LN_TUNING"},
    "lora/llama-3.2-3B-rank10-target-mlp": {
        "peft_type": "LORA",
        "r": 10,
        "lora_alpha": 20,
        "target_modules": ["gate_proj", "up_proj", "down_proj"],
    },
    "lora/llama-3.2-3B-rank32": {"peft_type": "LORA", "r": 32, "lora_alpha": 64},
    "lora/llama-3.2-3B-rank64-rslora": {"peft_type": "LORA", "r": 64, "lora_alpha": 64, "use_rslora": True},
    "miss/llama-3.2-3B-default": {"peft_type": "MISS", "r": 64},
    "prefixtuning/llama-3.2-3B-lr_0.001": {"peft_type": "PREFIX_TUNING", "num_virtual_tokens": 200},
    "prompt_tuning/llama-3.2-3B-default": {"peft_type": "PROMPT_TUNING", "num_virtual_tokens": 200},
    "vera/llama-3.2-3B-default": {"peft_type": "VERA", "r": 256},
}


def peft_row(cells: Cells) -> Row | str:
    """A row of `peft_method_comparison.csv`, whose 99th percentile is what the longest batches leave reserved."""
    if not cells["model"].endswith("Llama-3.2-3B"):
        return "other model"
    adapter = PEFT_ADAPTERS.get(cells["experiment"])
    if adapter is None:
        return "adapter not rebuilt"
    return Row(
        title=cells["experiment"],
        script="peft_row.py",
        args=("--adapter", json.dumps(adapter), "--length", str(PEFT_LONGEST_TOKENS), "--batch-size", cells["batch"]),
        gpu="L40S-48GB",
        torch=cells["torch"],
        measured_bytes=int(cells["reserved_p99_bytes"]),
    )


GROUPS = {
    group.name: group
    for group in (
        Group(
            name="mlp",
            file="gpumemnet/mlp.csv",
            measures="nvidia-smi, whole device",
            outside_bytes=None,
            imports=(),
            row=mlp_row,
        ),
        Group(
            name="cnn",
            file="gpumemnet/cnn_step1.csv",
            measures="nvidia-smi, whole device",
            outside_bytes=None,
            imports=(),
            row=cnn_row,
        ),
        Group(
            name="transformer",
            file="gpumemnet/transformer_sample.csv",
            measures="nvidia-smi, whole device",
            outside_bytes=None,
            imports=(),
            row=transformer_row,
        ),
        Group(
            name="timm",
            file="gpumemnet/timm_faketensor.csv",
            measures="nvidia-smi, whole device",
            outside_bytes=None,
            imports=("torchvision", "timm"),
            row=timm_row,
            series="model",
        ),
        Group(
            name="xmem",
            file="xmem/measurements.csv",
            measures="reserved bytes and kernels loaded while training",
            outside_bytes=20 * MiB,
            imports=("torchvision", "transformers"),
            row=xmem_row,
        ),
        Group(
            name="peft",
            file="other/peft_method_comparison.csv",
            measures="reserved bytes after a step, 99th percentile, less 2 MiB reserved before",
            outside_bytes=-2 * MiB,
            imports=("torchvision", "transformers", "peft"),
            packages=("peft",),
            row=peft_row,
        ),
    )
}
