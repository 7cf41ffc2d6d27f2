"""A training script for a model of transformers by its configuration: `cotenant estimate --model`.

It runs in the Python of the job, like any script, with random weights and synthetic tokens or pixels. What each task
means is in `TASKS`; AdamW is PyTorch's. It imports nothing of cotenant.
"""

from __future__ import annotations

import argparse
import contextlib
import json
from pathlib import Path
from typing import Any

TASKS = {
    "pretrain": "all parameters, weights in fp32, bf16 autocast",
    "sft": "as pretrain, with activation checkpointing",
    "lora": "adapters of rank 16 on all linear layers, in fp32; frozen weights in bf16, activation checkpointing",
    "classify": "all parameters, weights in fp32, bf16 autocast; texts or images, two classes or the model's own",
}
_RANK = 16
_STEPS = 100  # the tracer ends the script earlier
_IMAGE_SIZE, _CHANNELS = 224, 3
_ROTARY = ("rope_theta", "rope_parameters", "rope_scaling")


def main() -> None:
    """Train until the tracer ends it, or for 100 steps."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", required=True, help="config.json, or a folder that has one")
    parser.add_argument("--task", required=True, choices=TASKS)
    parser.add_argument("--batch-size", type=int, required=True)
    parser.add_argument("--length", type=int, required=True)
    args = parser.parse_args()

    import torch
    from transformers import AutoConfig

    try:
        config = AutoConfig.for_model(**_of_file(Path(args.config)))
    except (KeyError, ValueError, TypeError) as error:
        raise SystemExit(f"transformers cannot read `{args.config}`: {error}") from error
    positions = getattr(config, "max_position_embeddings", None)
    if positions and args.length > positions and not any(getattr(config, name, None) for name in _ROTARY):
        raise SystemExit(f"`--length {args.length}` is more than the {positions} positions of `{config.model_type}`")
    model = _model_of(config, args.task).cuda()
    if args.task in ("sft", "lora"):
        model.config.use_cache = False
        with contextlib.suppress(ValueError):  # a model without support for it
            model.gradient_checkpointing_enable({"use_reentrant": False})
    if args.task == "lora":
        _add_adapters(model)
    model.train()
    optimizer = torch.optim.AdamW([weight for weight in model.parameters() if weight.requires_grad], lr=1e-5)
    for _ in range(_STEPS):
        batch = {name: tensor.cuda() for name, tensor in _batch(config, model, args).items()}
        with torch.autocast("cuda", dtype=torch.bfloat16):
            output = model(**batch)
        # Accelerate, and so transformers' `Trainer`, converts what a model returns under autocast to fp32.
        # Source: accelerate/utils/operations.py, `convert_to_fp32`.
        in_fp32 = [value.float() if isinstance(value, torch.Tensor) else value for value in output.values()]
        loss = output.loss
        del output, in_fp32
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


def _of_file(path: Path) -> dict[str, Any]:
    return dict(json.loads((path / "config.json" if path.is_dir() else path).read_text()))


def _model_of(config: Any, task: str) -> Any:
    """The model for the task, with the head that its type has."""
    import torch
    import transformers
    from transformers.models.auto import modeling_auto as known

    heads: tuple[str, ...]
    if task == "classify":
        heads = ("SequenceClassification", "ImageClassification")
    elif config.is_encoder_decoder:
        heads = ("Seq2SeqLM",)
    else:
        heads = ("CausalLM", "MaskedLM")
    if config.model_type in ("bert", "roberta", "electra", "distilbert") and task != "classify":
        heads = ("MaskedLM",)  # their class for causal language models is a decoder
    mappings = {"Seq2SeqLM": "SEQ_TO_SEQ_CAUSAL_LM", "CausalLM": "CAUSAL_LM", "MaskedLM": "MASKED_LM",
                "SequenceClassification": "SEQUENCE_CLASSIFICATION",
                "ImageClassification": "IMAGE_CLASSIFICATION"}  # fmt: skip
    for head in heads:
        if config.model_type in getattr(known, f"MODEL_FOR_{mappings[head]}_MAPPING_NAMES"):
            if task == "classify" and getattr(config, "pad_token_id", None) is None:
                config.pad_token_id = 0
            if head == "Seq2SeqLM" and getattr(config, "decoder_start_token_id", None) is None:
                config.decoder_start_token_id = 0
            dtype = torch.bfloat16 if task == "lora" else torch.float32
            return getattr(transformers, f"AutoModelFor{head}").from_config(config, torch_dtype=dtype)
    raise SystemExit(f"transformers has no `{'` or `'.join(heads)}` of the type `{config.model_type}` for `{task}`")


def _add_adapters(model: Any) -> None:
    """Low-rank adapters beside every linear layer but the head, computed as peft computes them."""
    import torch
    from transformers.pytorch_utils import Conv1D

    class Adapted(torch.nn.Module):  # type: ignore[misc]
        def __init__(self, base: Any) -> None:
            super().__init__()
            self.base = base
            # GPT-2's `Conv1D` is a linear layer whose weight is transposed.
            narrow, wide = base.weight.shape if type(base) is Conv1D else reversed(base.weight.shape)
            self.down = torch.nn.Linear(narrow, _RANK, bias=False, device="cuda")
            self.up = torch.nn.Linear(_RANK, wide, bias=False, device="cuda")

        def forward(self, x: Any) -> Any:
            return self.base(x) + self.up(self.down(x.to(self.down.weight.dtype)))

    for weight in model.parameters():
        weight.requires_grad_(requires_grad=False)
    head = model.get_output_embeddings()
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if type(child) in (torch.nn.Linear, Conv1D) and child is not head:
                setattr(module, name, Adapted(child))
    model.enable_input_require_grads()


def _batch(config: Any, model: Any, args: Any) -> dict[str, Any]:
    import torch

    labels = torch.zeros(args.batch_size, dtype=torch.int64)
    if model.main_input_name == "pixel_values":
        size = getattr(config, "image_size", None) or _IMAGE_SIZE
        height, width = size if isinstance(size, (list, tuple)) else (size, size)
        channels = getattr(config, "num_channels", _CHANNELS)
        return {"pixel_values": torch.zeros(args.batch_size, channels, height, width), "labels": labels}
    tokens = torch.ones(args.batch_size, args.length, dtype=torch.int64)
    known = {"input_ids": tokens, "attention_mask": tokens}
    return {**known, "labels": labels if args.task == "classify" else tokens}


if __name__ == "__main__":
    main()
