"""Pipelines (`torch.distributed.pipelining`), of which this process plays one stage.

The schedules run as they are; only what stages tell each other of shapes has to come from somewhere. A stage that
follows is taken to answer with gradients of what it was given, one in between to give what it was given. What comes
before the first stage of a process is what its `input_args` say.
Source: torch/distributed/pipelining/stage.py, `PipelineStage._recv_meta` (2.13), `_shape_inference` (2.5 to 2.12).
"""

from __future__ import annotations

import dataclasses
from typing import Any

from cotenant.tracing.errors import Untraceable
from cotenant.tracing.patches.import_hooks import when_imported


def install(recorder: Any) -> None:
    """Mend the stages once a script imports them."""
    when_imported("torch.distributed.pipelining.stage", lambda module: _patch(module, recorder))


def _patch(module: Any, recorder: Any) -> None:
    kind = module.PipelineStage
    original = kind.__init__

    def init(stage: Any, *args: Any, **kwargs: Any) -> None:
        original(stage, *args, **kwargs)
        recorder.warn(
            f"stage {stage.stage_index} of {stage.num_stages} of a pipeline is traced; another, such as the last with "
            "the loss, may need more"
        )

    kind.__init__ = init
    if not hasattr(kind, "_recv_meta"):
        return

    def send(stage: Any, meta: Any, to: int) -> None:
        stage.__class__._cotenant_sent = meta

    def receive(stage: Any, source: int) -> Any:
        if source > stage.stage_index:
            return module._StageBackwardMeta(tuple(_gradient(each) for each in stage._stage_meta.outputs))
        if stage._user_meta.inputs is not None:
            return module._StageForwardMeta(tuple(_trained(each) for each in stage._user_meta.inputs))
        sent = getattr(stage.__class__, "_cotenant_sent", None)
        if sent is None:
            raise Untraceable(
                f"stage {stage.stage_index} of a pipeline learns the shapes of its inputs from stage {source}, which "
                "is not traced; `input_args` of its `PipelineStage` say them"
            )
        return sent

    def vote(stage: Any, has_backward: bool, **_: Any) -> Any:
        dynamic = module.InferenceMode.needs_dynamic(stage._user_meta, has_backward)
        stage._cotenant_vote = module.torch.tensor([0 if dynamic else 1], dtype=module.torch.int32)
        return stage._cotenant_vote

    kind._send_meta, kind._recv_meta = send, receive
    kind._warmup_forward_vote = vote
    kind._warmup_backward_result = lambda stage, **_: stage._cotenant_vote


def _gradient(meta: Any) -> Any:
    """What is told of the gradient of an output; None of one that has none."""
    return dataclasses.replace(meta, requires_grad=False) if meta.requires_grad else None


def _trained(meta: Any) -> Any:
    return dataclasses.replace(meta, requires_grad=meta.dtype.is_floating_point)
