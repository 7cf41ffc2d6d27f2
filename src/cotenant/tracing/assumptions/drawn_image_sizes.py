"""Images that a script resizes on the GPU to a size that it draws for each step, as detectors do (`--multi-scale`).

The steps that are traced have a few of the sizes, and the largest one decides the peak: a warning.
A module of its own: the dispatch mode sees the sizes, no other assumption is about them.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from typing import Any

from torch._ops import OpOverload

from cotenant.tracing import script_location
from cotenant.tracing.operators.registry import Args, Kwargs, OpContext, OperatorTable

operators = OperatorTable()

_WARNING = (
    "{line}, resizes images to other sizes in each step: the largest of those traced is included, a larger one not"
)


@dataclass(slots=True)
class _StepSizes:
    """Sizes at one line, of images of one shape, in this step and the one before."""

    step: int
    now: list[Any] = field(default_factory=list)
    before: list[Any] = field(default_factory=list)


_SEEN: weakref.WeakKeyDictionary[Any, dict[Any, _StepSizes]] = weakref.WeakKeyDictionary()
"""By the recorder of a trace."""


@operators.assumption_for(
    "aten::upsample_bilinear2d", "aten::upsample_bicubic2d", "aten::upsample_nearest2d",
    "aten::_upsample_bilinear2d_aa", "aten::_upsample_bicubic2d_aa",
)  # fmt: skip
def _note(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs, out: Any) -> None:
    """Compare the size with the one at the same place of the step before; features have gradients, images none."""
    images, line = args[0], script_location.innermost_line()
    if images.requires_grad or line is None:
        return
    seen = _SEEN.setdefault(ctx.recorder, {})
    sizes = seen.setdefault((line, images.shape), _StepSizes(ctx.recorder.steps))
    if sizes.step != ctx.recorder.steps:
        sizes.step, sizes.before, sizes.now = ctx.recorder.steps, sizes.now, []
    sizes.now.append(out.shape)
    if len(sizes.now) <= len(sizes.before) and sizes.before[len(sizes.now) - 1] != out.shape:
        ctx.recorder.warn(_WARNING.format(line=line))
