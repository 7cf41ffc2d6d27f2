"""The peak of `cotenant estimate --model` by a formula, before torch is imported: the first number, not the answer.

For decoders with RMSNorm and gated layers, as Llama. The coefficients were read from traces of `train_model.py` with
torch 2.13 and transformers 4.56: bytes per token, layer and unit of width that a layer saves for its backward pass.
Not included: fragmentation, the CUDA context, and a margin.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cotenant.core.units import MiB

MODEL_TYPES = ("llama", "mistral", "qwen2", "qwen3")
_RANK = 16  # of the adapters of `train_model.py`
_BLAS_BYTES = 16 * MiB
_LOGITS = 12
"""Bytes per logit at the loss: the fp32 copy, its logarithms and their gradient."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderSizes:
    """Dimensions of a decoder: widths of the residual stream, the gated layer, all queries and all keys.

    `norms_heads`: queries and keys are normalized.
    """

    layers: int
    width: int
    gated: int
    queries: int
    keys: int
    vocabulary: int
    tied: bool
    norms_heads: bool

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> DecoderSizes | None:
        """The dimensions in a `config.json`; None if it is of another kind, or lacks one."""
        names = ("num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads", "vocab_size")
        found: list[Any] = [config.get(name) for name in names]
        if config.get("model_type") not in MODEL_TYPES or not all(type(size) is int and size > 0 for size in found):
            return None
        layers, width, gated, heads, vocabulary = found
        key_heads = config.get("num_key_value_heads") or heads
        head_width = config.get("head_dim") or width // heads
        if not all(type(size) is int and size > 0 for size in (key_heads, head_width)):
            return None
        return cls(
            layers=layers, width=width, gated=gated, queries=heads * head_width, keys=key_heads * head_width,
            vocabulary=vocabulary, tied=config.get("tie_word_embeddings") is True,
            norms_heads=config["model_type"] == "qwen3",
        )  # fmt: skip

    @property
    def linear_parameters(self) -> int:
        """Parameters of the linear layers of all blocks."""
        return self.layers * self.width * (2 * self.queries + 2 * self.keys + 3 * self.gated)

    @property
    def parameters(self) -> int:
        """All parameters but those of norms and biases."""
        return self.linear_parameters + (1 if self.tied else 2) * self.vocabulary * self.width

    @property
    def adapter_parameters(self) -> int:
        """Parameters of adapters on all linear layers of the blocks."""
        widths = 4 * self.width + 2 * self.queries + 2 * self.keys + 3 * (self.width + self.gated)
        return self.layers * _RANK * widths


def first_peak_bytes(config: Mapping[str, Any], task: str, batch_size: int, length: int) -> int | None:
    """Allocated bytes at the peak of a training step; None if there is no formula for the model or the task."""
    shape = DecoderSizes.of(config)
    if shape is None or task not in ("pretrain", "sft", "lora"):
        return None
    tokens, heads = batch_size * length, shape.queries + shape.keys
    head_copy = 2 * shape.vocabulary * shape.width
    at_loss = tokens * (_LOGITS * shape.vocabulary + 12 * shape.width) + head_copy
    if task == "lora":
        held = 2 * shape.parameters + 12 * shape.adapter_parameters + 2 * shape.layers * tokens * shape.width
        one_layer = tokens * (28 * shape.width + 14 * shape.gated + 5 * heads)
        return held + max(at_loss - head_copy - 8 * tokens * shape.width, one_layer) + _BLAS_BYTES
    layer = tokens * (26 * shape.width + 8 * shape.gated + (10 if shape.norms_heads else 4) * heads)
    held = 12 * shape.parameters
    in_step = 20 * shape.parameters  # the optimizer's temporary roots of its second moments, and the gradients
    if task == "sft":
        held += 4 * shape.layers * tokens * shape.width
        return max(held + max(at_loss, layer + 9 * tokens * shape.width), in_step) + _BLAS_BYTES
    return max(held + 2 * shape.linear_parameters + shape.layers * layer + at_loss, in_step) + _BLAS_BYTES
