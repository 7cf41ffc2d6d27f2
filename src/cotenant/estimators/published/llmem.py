"""The formula of LLMem, for decoder-only language models."""

from __future__ import annotations

import re
from dataclasses import dataclass

from cotenant.core.errors import UsageError
from cotenant.core.trace import MemoryTrace
from cotenant.core.units import MiB
from cotenant.estimators.base import RawEstimate, TraceBasedEstimator
from cotenant.estimators.trace_features import Features
from cotenant.gpu_specs import GpuSpec

_PAGE_BYTES = 2 * MiB
_HALF = 2
_HEADS = {"lm_head", "embed_out", "output_projection"}
_STACK = re.compile(r"(?P<stack>.*?)\.?(?P<index>\d+)\..+")


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderShape:
    """A decoder-only model: its blocks, and elements of hidden state, logits (of a batch) and the head's weights."""

    blocks: int
    hidden: int
    logits: int
    head: int


class LlMemEstimator(TraceBasedEstimator):
    """Fine-tuning with ColossalAI's chunks: half precision, Adam in fp32, a hidden state saved for each block.

    Source: Kim et al., LLMem, IJCAI 2024, and `size_estimator.py` of its repository, for one GPU: chunks of fp16
    weights (gradients take their place) and of fp32 copies, two fp32 states, the weights of the head once more; a
    hidden state for each block and each of two embeddings, and the logits three times; every tensor in pages of 2 MiB.
    The original reads the chunks from a GPU; here they are 2 + 4 bytes a parameter.

    It assumes that way of training whatever the script does: gradient checkpointing, fp16, Adam.
    Limits: like the original it recognizes models by the names of their modules, and no encoders. In the loss it counts
    one token more than the original.
    """

    name = "llmem"
    leaves_out = "anything but fp16 Adam with checkpointing; attention, workspaces"

    def figures(self, recorded: MemoryTrace, features: Features, gpu: GpuSpec) -> RawEstimate:  # noqa: ARG002
        decoder = find_decoder(features)
        states = sum(2 * _pages(4 * (size // features.item_bytes)) for size in features.parameter_bytes)
        chunks = (_HALF + 4) * features.parameters + _HALF * decoder.head
        hidden = (decoder.blocks + 2) * _pages(_HALF * decoder.hidden)
        logits = 3 * _pages(_HALF * decoder.logits)
        reserved = chunks + states + hidden + logits + _pages(features.input_bytes)
        return RawEstimate(reserved_bytes=reserved, context_bytes=gpu.context.typical_bytes)


def find_decoder(features: Features) -> DecoderShape:
    """The decoder in the layers of a script.

    Raises:
        UsageError: there is none: no head by a known name, no numbered blocks, or an encoder.
    """
    layers = [layer for layer in features.layers if layer.leaf and layer.item_bytes]
    head = next((candidate for candidate in reversed(layers) if candidate.module.rpartition(".")[2] in _HEADS), None)
    places = [(match, layer) for layer in layers if (match := _STACK.fullmatch(layer.module))]
    stacks: dict[str, set[str]] = {}
    for match, _ in places:
        stacks.setdefault(match["stack"], set()).add(match["index"])
    encodes = any("encoder" in layer.module.split(".") for layer in layers)
    if head is None or not stacks or encodes or layers[-1] is not head:
        raise UsageError(
            "llmem: no decoder-only language model was seen (numbered blocks, then `lm_head`)",
            hint="choose another estimator; `traced` knows all models",
        )
    stack = max(stacks, key=lambda name: len(stacks[name]))
    last = [layer for match, layer in places if match["stack"] == stack][-1]
    return DecoderShape(
        blocks=len(stacks[stack]),
        hidden=last.output_bytes // (last.item_bytes or 1),
        logits=head.output_bytes // (head.item_bytes or 1),
        head=max(features.parameter_bytes, default=0) // features.item_bytes,
    )


def _pages(nbytes: int) -> int:
    return -(-nbytes // _PAGE_BYTES) * _PAGE_BYTES
