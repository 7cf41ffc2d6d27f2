"""Pipelines (`torch.distributed.pipelining`), of which this process runs one stage.

The schedules run unchanged; only the shapes that stages send to each other are assumed. A later stage is assumed
to return gradients of the shapes that it was sent, a stage in between to pass on the shapes that it was sent. The
inputs of the first stage of a process have the shapes of its `input_args`.
Source: torch/distributed/pipelining/stage.py, `PipelineStage._recv_meta` (2.13), `_shape_inference` (2.5 to 2.12).
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

from cotenant.tracing.errors import Untraceable
from cotenant.tracing.patches.registry import Entry, ImportPatch, Patch, PatchContext, Phase, patch_attributes

_STAGE = "torch.distributed.pipelining.stage"


def patches(context: PatchContext) -> list[Entry]:
    """Construction of stages, and the shapes that they exchange."""
    return [
        Patch(
            target=f"{_STAGE}:PipelineStage.__init__", phase=Phase.DISTRIBUTED,
            replacement=functools.partial(_warning_of_other_stages, context.recorder), wraps=True,
            reason="Only one stage is traced, and the user is warned of that.",
            source="torch/distributed/pipelining/stage.py, `PipelineStage`",
        ),
        ImportPatch(
            target=_STAGE, phase=Phase.DISTRIBUTED, expand=_shape_exchange_patches,
            reason="Stages send the shapes of their outputs to each other.",
            source="torch/distributed/pipelining/stage.py, `PipelineStage._recv_meta`",
        ),
    ]  # fmt: skip


def _warning_of_other_stages(recorder: Any, original: Any) -> Any:
    def init(stage: Any, *args: Any, **kwargs: Any) -> None:
        original(stage, *args, **kwargs)
        recorder.warn(
            f"stage {stage.stage_index} of {stage.num_stages} of a pipeline is traced; another, such as the last with "
            "the loss, may need more"
        )

    return init


def _shape_exchange_patches(module: Any) -> list[Patch]:
    """None before PyTorch 2.13, whose stages have other methods for it."""

    def send(stage: Any, meta: Any, to: int) -> None:
        stage.__class__._cotenant_sent = meta

    def receive(stage: Any, source: int) -> Any:
        if source > stage.stage_index:
            return module._StageBackwardMeta(tuple(_gradient(meta) for meta in stage._stage_meta.outputs))
        if stage._user_meta.inputs is not None:
            return module._StageForwardMeta(tuple(_trained(meta) for meta in stage._user_meta.inputs))
        sent = getattr(stage.__class__, "_cotenant_sent", None)
        if sent is None:
            raise Untraceable(
                f"stage {stage.stage_index} of a pipeline gets the shapes of its inputs from stage {source}, which is "
                "not traced; pass `input_args` to its `PipelineStage`"
            )
        return sent

    def vote(stage: Any, has_backward: bool, **_: Any) -> Any:
        dynamic = module.InferenceMode.needs_dynamic(stage._user_meta, has_backward)
        stage._cotenant_vote = module.torch.tensor([0 if dynamic else 1], dtype=module.torch.int32)
        return stage._cotenant_vote

    if not hasattr(module.PipelineStage, "_recv_meta"):
        return []
    return patch_attributes(
        f"{_STAGE}:PipelineStage",
        {
            "_send_meta": send,
            "_recv_meta": receive,
            "_warmup_forward_vote": vote,
            "_warmup_backward_result": lambda stage, **_: stage._cotenant_vote,
        },
        phase=Phase.DISTRIBUTED,
        reason="Stages send the shapes of their outputs to each other.",
        create=True,
    )


def _gradient(meta: Any) -> Any:
    """Shape and dtype of the gradient of an output; None for one without a gradient."""
    return dataclasses.replace(meta, requires_grad=False) if meta.requires_grad else None


def _trained(meta: Any) -> Any:
    return dataclasses.replace(meta, requires_grad=meta.dtype.is_floating_point)
