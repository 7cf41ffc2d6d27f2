"""Rows of `published_memory` of large models that are finetuned: FakeGPU's measurements, and CogVideoX's.

Both sets import libraries that are not in cotenant's environment, or other versions of them:

    pip install --no-deps --target FOLDER transformers==5.12.1 'huggingface_hub>=1.5,<2' peft==0.18.0
    python -m benchmarks.estimator.ground_truth --set fakegpu --pythonpath FOLDER

    pip install --no-deps --target FOLDER diffusers==0.31.0 peft==0.13.2
    python -m benchmarks.estimator.ground_truth --set cogvideox --pythonpath FOLDER
"""

from __future__ import annotations

import re

from benchmarks.estimator.ground_truth_rows import Cells, Group, Row
from benchmarks.estimator.published_memory_rows import OLDEST_RULES, printed_bytes
from cotenant.core.units import GiB

# -- FakeGPU ------------------------------------------------------------------------------------------------------

FAKEGPU_GPUS = {"RTX 3090 Ti (sm_86)": "RTX3090-24GB", "RTX PRO 5000 72GB Blackwell (sm_120)": "RTX4090-24GB"}
"""GPUs with the same workspace of cuBLAS in place of two without a profile; no row has convolutions of cuDNN's."""


def fakegpu_row(cells: Cells) -> Row | str:
    """A row of `fakegpu_qwen.csv`: one step of a Qwen3.5 model, on one GPU or sharded."""
    options = cells["options"]
    if "NF4" in options:
        return "NF4 layers of its own"
    if "ZeRO" in options:
        return "DeepSpeed's offload is not said"
    args = ["--model", cells["model"], "--length", cells["seq_or_image"]]
    found = re.match(r"LoRA r(\d+)\b", options)
    args += ["--rank", found[1]] if found else []
    args += ["--processes", cells["n_gpus"]] if cells["n_gpus"] != "1" else []
    args += ["--checkpointing"] if "checkpointing=yes" in options else []
    measured, readings = printed_bytes(cells["peak_as_printed"], GiB)
    error = cells["peer_estimate_error"].rstrip("%")
    return Row(
        title=f"{' '.join(args[1:])} on {cells['gpu'].partition(' (')[0]}".replace("--", ""),
        script="qwen_row.py",
        args=tuple(args),
        gpu=FAKEGPU_GPUS[cells["gpu"]],
        torch=cells["torch_version"].partition("+")[0],
        measured_bytes=measured,
        quantity="allocated",
        readings=readings,
        other_errors={"FakeGPU 1.5.5": float(error) / 100} if error else {},
    )


# -- CogVideoX ----------------------------------------------------------------------------------------------------

COGVIDEOX_OPTIMIZERS = {"AdamW": "adamw", "AdamW (8-bit bitsandbytes)": "adam8bit"}


def cogvideox_row(cells: Cells) -> Row | str:
    """A row of `cogvideox_factory.csv`: the most that a run had reserved from its load to the end of training."""
    stage = cells["metric"].partition(";")[0]
    if stage != "memory_before_validation":
        return "another stage of a run: before training, or validation"
    if cells["optimizer"] not in COGVIDEOX_OPTIMIZERS:
        return "states on the host"
    args = ["--model", cells["model"].rpartition("-")[2], "--batch-size", cells["batch_per_gpu"]]
    found = re.search(r"rank=(\d+)", cells["options"])
    args += ["--rank", found[1]] if found else []
    args += ["--checkpointing"] if "gradient_checkpointing=True" in cells["options"] else []
    args += ["--optimizer", COGVIDEOX_OPTIMIZERS[cells["optimizer"]]]
    ran_out = cells["peak_as_printed"] == "OOM"
    measured, readings = (0, None) if ran_out else printed_bytes(cells["peak_as_printed"], GiB)
    return Row(
        title=" ".join(args).replace("--", ""),
        script="cogvideox_row.py",
        args=tuple(args),
        gpu="A100-80GB",
        torch=OLDEST_RULES,
        measured_bytes=measured,
        readings=readings,
        measured_oom=ran_out,
    )


PUBLISHED_FINETUNING = {
    group.name: group
    for group in (
        Group(
            name="fakegpu",
            file="published_memory/fakegpu_qwen.csv",
            measures="max_memory_allocated of one step, reset when the model was loaded",
            outside_bytes=0,
            imports=("torchvision", "transformers", "transformers.modeling_utils", "peft"),
            packages=("transformers", "peft"),
            row=fakegpu_row,
            all_rows=True,
        ),
        Group(
            name="cogvideox",
            file="published_memory/cogvideox_factory.csv",
            measures="max_memory_reserved from the load to the end of training",
            outside_bytes=0,
            imports=("torchvision", "transformers", "transformers.modeling_utils", "peft", "diffusers.models"),
            packages=("diffusers", "peft", "accelerate"),
            row=cogvideox_row,
            all_rows=True,
        ),
    )
}
