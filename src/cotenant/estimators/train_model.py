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
    positions = getattr(config, "max_position_embeddings", None) or getattr(config, "max_target_positions", None)
    if positions and args.length > positions and not any(getattr(config, name, None) for name in _ROTARY):
        raise SystemExit(f"`--length {args.length}` is more than the {positions} positions of `{config.model_type}`")
    model, is_classifier = _model_of(config, args.task)
    model.cuda()
    if args.task in ("sft", "lora"):
        model.config.use_cache = False
        with contextlib.suppress(ValueError):  # a model without support for it
            model.gradient_checkpointing_enable({"use_reentrant": False})
    if args.task == "lora":
        _add_adapters(model)
    model.train()
    optimizer = torch.optim.AdamW([weight for weight in model.parameters() if weight.requires_grad], lr=1e-5)
    for _ in range(_STEPS):
        batch = {name: tensor.cuda() for name, tensor in _batch(config, model, args, is_classifier).items()}
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


def _model_of(config: Any, task: str) -> tuple[Any, bool]:
    """The model for the task, with the first head that its type has; whether that classifies."""
    import torch
    import transformers
    from transformers.models.auto import modeling_auto as known

    classifiers = ("SequenceClassification", "ImageClassification")
    heads: tuple[str, ...]
    if task == "classify":
        heads = classifiers
    elif config.is_encoder_decoder:
        heads = ("Seq2SeqLM", "SpeechSeq2Seq")
    elif config.model_type in ("bert", "roberta", "electra", "distilbert"):
        heads = ("MaskedLM",)  # their class for causal language models is a decoder
    else:
        heads = ("CausalLM", "MaskedLM", "ImageTextToText")
    if task == "lora":
        heads += classifiers
    mappings = {"Seq2SeqLM": "SEQ_TO_SEQ_CAUSAL_LM", "SpeechSeq2Seq": "SPEECH_SEQ_2_SEQ", "CausalLM": "CAUSAL_LM",
                "MaskedLM": "MASKED_LM", "ImageTextToText": "IMAGE_TEXT_TO_TEXT",
                "SequenceClassification": "SEQUENCE_CLASSIFICATION",
                "ImageClassification": "IMAGE_CLASSIFICATION"}  # fmt: skip
    for head in heads:
        if config.model_type in getattr(known, f"MODEL_FOR_{mappings[head]}_MAPPING_NAMES"):
            if head in classifiers and getattr(config, "pad_token_id", None) is None:
                config.pad_token_id = 0
            if config.is_encoder_decoder and getattr(config, "decoder_start_token_id", None) is None:
                config.decoder_start_token_id = 0
            dtype = torch.bfloat16 if task == "lora" else torch.float32
            model = getattr(transformers, f"AutoModelFor{head}").from_config(config, torch_dtype=dtype)
            return model, head in classifiers
    *first, last = (f"`{head}`" for head in heads)
    names = f"{', '.join(first)} or {last}" if first else last
    raise SystemExit(f"transformers has no {names} of the type `{config.model_type}` for `{task}`")


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
            if isinstance(child, (torch.nn.Linear, Conv1D)) and child is not head:
                setattr(module, name, Adapted(child))
    if model.main_input_name == "input_ids":
        model.enable_input_require_grads()


def _batch(config: Any, model: Any, args: Any, is_classifier: bool) -> dict[str, Any]:
    import torch

    labels = torch.zeros(args.batch_size, dtype=torch.int64)
    if model.main_input_name == "pixel_values" and is_classifier:
        size = getattr(config, "image_size", None) or _IMAGE_SIZE
        height, width = size if isinstance(size, (list, tuple)) else (size, size)
        channels = getattr(config, "num_channels", _CHANNELS)
        return {"pixel_values": torch.zeros(args.batch_size, channels, height, width), "labels": labels}
    tokens = torch.ones(args.batch_size, args.length, dtype=torch.int64)
    if model.main_input_name == "input_features":
        # The encoder's second convolution halves the frames: 3,000 frames, 30 seconds, for Whisper.
        frames = 2 * config.max_source_positions
        return {"input_features": torch.zeros(args.batch_size, config.num_mel_bins, frames), "labels": tokens}
    return {"input_ids": tokens, "attention_mask": tokens, "labels": labels if is_classifier else tokens}


if __name__ == "__main__":
    main()
