r"""Rows of `published_memory`: peaks that public repositories print beside their training recipes.

What was measured differs by set, and so does what is compared: `Row.quantity`. Where a printed number leaves open what
it means (rounding; GB of 1000 or of 1024 MiB), `Row.readings` has the lowest and the highest value.

Sets other than `bert` and `torchao` import a library that is not in cotenant's environment:

    pip install --no-deps --target FOLDER mmsegmentation==1.2.2 mmengine==0.10.7 mmcv-lite==2.1.0 addict yapf rich \
        ftfy regex prettytable termcolor platformdirs wcwidth markdown-it-py mdurl pygments matplotlib scipy \
        opencv-python-headless
    python -m benchmarks.estimator.ground_truth --set mmsegmentation --pythonpath FOLDER

    pip install --no-deps --target FOLDER litgpt==0.5.13 lightning==2.6.6 lightning-utilities jsonargparse torchmetrics
    python -m benchmarks.estimator.ground_truth --set litgpt --pythonpath FOLDER
"""

from __future__ import annotations

import re

from benchmarks.estimator.ground_truth_rows import Cells, Group, Row
from cotenant.core.units import GiB, MiB

OLDEST_RULES = "2.4.1"
"""For measurements with torch before 2.4. The sizes of blocks and segments are those of torch 1.3 to 2.3, too.

Source: c10/cuda/CUDACachingAllocator.cpp of v1.5.0 and v1.10.0: kMinBlockSize, kSmallSize, kSmallBuffer, kLargeBuffer,
kMinLargeAlloc, kRoundLarge; `should_split`.
"""


def printed_bytes(
    text: str, unit_bytes: float, *, other_unit_bytes: float | None = None
) -> tuple[int, tuple[int, int]]:
    """Bytes of a printed number, and the lowest and highest bytes that it may mean after rounding.

    `other_unit_bytes`: the unit if it is not the one assumed.
    """
    number = text.split(maxsplit=1)[0].rstrip("*")
    half = 0.5 * 10.0 ** -len(number.partition(".")[2])
    units = (unit_bytes, other_unit_bytes or unit_bytes)
    value = float(number)
    return round(value * unit_bytes), (int((value - half) * min(units)), round((value + half) * max(units)))


# -- transformers -------------------------------------------------------------------------------------------------

BERT_OPTIMIZERS = {"AdamW (adamw_hf)": "adamw", "adafactor": "adafactor", "bnb Adam8bit": "adam8bit"}


def bert_row(cells: Cells) -> Row | str:
    """A row of `transformers_perf_train.csv`; two rows have no training, and one of them is the set's constant."""
    if cells["optimizer"] not in BERT_OPTIMIZERS:
        return "no training"
    options = dict(pair.split("=") for pair in cells["options"].split("; "))
    args = ["--batch-size", cells["batch_per_gpu"], "--accumulate", options["grad_accum"]]
    args += ["--optimizer", BERT_OPTIMIZERS[cells["optimizer"]]]
    args += ["--checkpointing"] if options["gradient_checkpointing"] == "1" else []
    args += ["--fp16"] if cells["dtype"] == "fp16 AMP" else []
    measured, readings = printed_bytes(cells["peak_as_printed"], MiB)
    return Row(
        title=" ".join(args).replace("--", ""),
        script="bert_row.py",
        args=tuple(args),
        gpu="V100-16GB",
        torch=OLDEST_RULES,
        measured_bytes=measured,
        readings=readings,
    )


# -- torchao ------------------------------------------------------------------------------------------------------


def torchao_row(cells: Cells) -> Row | str:
    """A row of `torchao.csv`."""
    if "compile" in cells["options"]:
        return "compiled"
    if cells["recipe"].startswith("torchtune"):
        return "texts of varying length, batch not said"
    if cells["recipe"].startswith("torchtitan"):
        return "eight processes of FSDP2, version of torch not said"
    if not cells["model"].startswith("timm "):
        return "torchao's own network"
    if cells["optimizer"] != "AdamW":
        return "states on the host"
    args = ["--model", cells["model"].removeprefix("timm "), "--batch-size", cells["batch_per_gpu"], "--image-size"]
    args += ["224", "--classes", "45", "--bf16", "--checkpointing", "--optimizer", "adamw-fused"]
    measured, readings = printed_bytes(cells["peak_as_printed"], 1e9)
    return Row(
        title=f"{cells['model']} {cells['optimizer']}",
        script="timm_row.py",
        args=tuple(args),
        gpu="RTX4090-24GB",  # of the generation of the RTX 4070 Ti SUPER, which has no profile
        torch=OLDEST_RULES,
        measured_bytes=measured,
        quantity="allocated",
        readings=readings,
    )


# -- litgpt -------------------------------------------------------------------------------------------------------

ALL_PARTS = "query key value projection mlp head"
LITGPT_ADAPTERS: dict[str, tuple[str, str, str, str]] = {
    # folder: (litgpt's name, rank, adapted layers, dropout), as the configuration of that folder has them
    "falcon-7b": ("falcon-7b", "32", "query value", "0.05"),
    "llama-2-7b": ("Llama-2-7b-hf", "32", "query value", "0.05"),
    "llama-3-8b": ("Llama-3-8B", "32", "query value", "0.05"),
    "llama-3.1-8b": ("Llama-3.1-8B", "32", "query value", "0.05"),
    "mistral-7b-v0.2": ("Mistral-7B-v0.2", "32", "query value", "0.05"),
    "phi-2": ("phi-2", "8", ALL_PARTS, "0.05"),
    "phi-3": ("Phi-3-mini-4k-instruct", "8", ALL_PARTS, "0.05"),
    "stablelm-base-alpha-3b": ("stablelm-base-alpha-3b", "32", "query value", "0.05"),
    "tiny-llama": ("tiny-llama-1.1b", "32", ALL_PARTS, "0.05"),
}
LITGPT_GLOBAL_BATCHES = {"phi-3/full": 8, "tiny-llama/full": 32}
LITGPT_DOUBTS = {
    "phi-3/full": "that are less than the weights, gradients and two states of 3.8 billion parameters in bf16"
}


def litgpt_row(cells: Cells) -> Row | str:
    """A row of `litgpt_hub_thunder.csv`: of `config_hub`, on one GPU."""
    folder, _, recipe = cells["recipe"].removeprefix("config_hub/finetune/").removesuffix(".yaml").rpartition("/")
    if not cells["recipe"].startswith("config_hub"):
        return "thunder: compiled, or settings not said"
    if cells["peak_as_printed"] == "OOM":
        return "ran out of memory"
    if cells["n_gpus"] != "1":
        return "several GPUs: the same peak as on one, or FSDP"
    if recipe == "qlora":
        return "bitsandbytes"
    if folder not in LITGPT_ADAPTERS:
        return "settings of that version not known"
    model, rank, parts, dropout = LITGPT_ADAPTERS[folder]
    batch = int(cells["batch_per_gpu"])
    args = ["--model", model, "--batch-size", str(batch)]
    if recipe == "lora":
        args += [
            "--rank",
            rank,
            "--dropout",
            dropout,
            "--parts",
            *parts.split(),
            "--accumulate",
            str(max(8 // batch, 1)),
        ]
    else:
        accumulate = LITGPT_GLOBAL_BATCHES[f"{folder}/{recipe}"] // batch
        args += ["--rank", "0", "--accumulate", str(accumulate)]
    measured, readings = printed_bytes(cells["peak_as_printed"], 1e9)
    return Row(
        title=f"{folder}/{recipe}",
        doubt=LITGPT_DOUBTS.get(f"{folder}/{recipe}", ""),
        script="litgpt_row.py",
        args=tuple(args),
        gpu="A10G-24GB",
        torch=OLDEST_RULES,
        measured_bytes=measured,
        quantity="allocated",
        readings=readings,
    )


# -- mmsegmentation -----------------------------------------------------------------------------------------------

_NAME = re.compile(r"(?P<net>.+?)_(?P<crop>\d+x\d+)_(?P<iterations>\d+k)_(b\d+_)?(?P<dataset>[a-z0-9_]+?)")
_MOBILE = {"m-v2-d8": "mobilenet-v2-d8", "m-v3-d8": "mobilenet-v3-d8", "m-v3s-d8": "mobilenet-v3-d8-s",
           "m-v3s-d8_scratch": "mobilenet-v3-d8-scratch-s"}  # fmt: skip
_EXTENSIONS = ("ccnet", "psanet", "point_rend")


def mmsegmentation_config(path: str) -> str | None:
    """The name in mmsegmentation 1.x of a configuration of 0.x, as a pattern; None if it follows another one."""
    folder, file = path.removeprefix("configs/").removesuffix(".py").split("/")
    found = _NAME.fullmatch(file)
    if found is None:
        return None
    head, _, backbone = found["net"].partition("_")
    network = found["net"]
    if backbone in _MOBILE:
        network = f"{_MOBILE[backbone]}_{head}"
    elif backbone.startswith("unet"):
        network = f"unet-s5-d16_{head}"
    elif folder == "resnest":
        network = f"resnest_{backbone}_{head}"
    elif folder == "cgnet":
        network = "cgnet_fcn"
    dataset = found["dataset"].replace("_", "-")
    return f"{folder}/{network}_?xb?-{found['iterations']}_{dataset}*{found['crop']}.py"


def mmsegmentation_row(cells: Cells) -> Row | str:
    """A row of `mmsegmentation_v0.csv`: fp32, fixed crops, torch 1.5."""
    if "_fp16_" in cells["config"]:
        return "mmcv's own fp16 training"
    if cells["config"].split("/")[1] in _EXTENSIONS:
        return "operators of mmcv's CUDA extension"
    config = mmsegmentation_config(cells["config"])
    if config is None:
        return "its name follows another pattern"
    crop = re.search(r"Pad\.size=\((\d+), (\d+)\)", cells["image"])
    if crop is None:
        return "no fixed crop"
    args = ["--config", config, "--batch-size", cells["batch_per_gpu"], "--crop", *crop.groups()]
    # mmcv prints whole MiB, and somebody made GB of them. By the rows with three digits these are 1000 MiB.
    measured, readings = printed_bytes(cells["peak_gib"], 1000 * MiB, other_unit_bytes=GiB)
    return Row(
        title=cells["config"].rpartition("/")[2].removesuffix(".py"),
        script="segmentation_row.py",
        args=(*args, "--old-torch"),
        gpu="V100-32GB",
        torch=OLDEST_RULES,
        measured_bytes=measured,
        quantity="allocated",
        readings=readings,
    )


PUBLISHED_MEMORY = {
    group.name: group
    for group in (
        Group(
            name="bert",
            file="published_memory/transformers_perf_train.csv",
            measures="whole device, by NVML, after training; the table's own row for the context is 1343 MB",
            outside_bytes=1341 * MiB,  # its tensor of one element has reserved 2 MiB
            imports=("torchvision", "transformers"),
            row=bert_row,
            all_rows=True,
        ),
        Group(
            name="torchao",
            file="published_memory/torchao.csv",
            measures="max_memory_allocated",
            outside_bytes=0,
            imports=("torchvision", "timm"),
            row=torchao_row,
            all_rows=True,
        ),
        Group(
            name="litgpt",
            file="published_memory/litgpt_hub_thunder.csv",
            measures="max_memory_allocated; texts of varying length, the longest taken for the limit of 512 tokens",
            outside_bytes=0,
            imports=("torchvision", "litgpt"),
            packages=("litgpt",),
            row=litgpt_row,
            all_rows=True,
        ),
        Group(
            name="mmsegmentation",
            file="published_memory/mmsegmentation_v0.csv",
            measures="max_memory_allocated of the fullest of four GPUs; a GB is taken for 1000 MiB, and may be 1024",
            outside_bytes=0,
            imports=("torchvision", "mmengine", "scipy", "cv2", "matplotlib.pyplot"),
            packages=("mmsegmentation", "mmengine", "mmcv-lite"),
            row=mmsegmentation_row,
            all_rows=True,
        ),
    )
}
