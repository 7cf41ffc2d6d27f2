"""The Python call `cotenant.estimate`."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from cotenant.core.errors import UsageError
from cotenant.core.estimate import Estimate
from cotenant.core.ports import EstimateRequest
from cotenant.estimators.profiles import profile
from cotenant.estimators.traced import TracedEstimator, card_of

DEFAULT_GPU = "A100-40GB"


def estimate(
    target: str | os.PathLike[str] | Callable[[], object],
    args: Sequence[str] = (),
    *,
    gpu: str = DEFAULT_GPU,
    workdir: str | os.PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
    python: str | None = None,
    steps: int = 3,
    timeout_s: float = 120.0,
) -> Estimate:
    """Predicted GPU memory of a training script, or of a function that does one training step; no GPU is used.

    A script runs unchanged in a process of its own, with `args`, in `workdir`, by the interpreter `python` (default:
    this one). A function is called again and again in a forked copy of this process, until `steps` optimizer steps
    were seen; the model may be on the CPU before, or be made by the function, and must go to `cuda` inside it.

    Raises:
        TraceError: it could not be traced; `kind` says why.
        UsageError: no such script, or no such GPU.
    """
    estimator = TracedEstimator(steps=steps, python=python)
    if callable(target):
        from cotenant.tracing.forked import trace_function

        if args:
            raise UsageError("a function takes no arguments", hint="bind them: `functools.partial(step, batch)`")
        known = profile(gpu)
        recorded = trace_function(target, card=card_of(known), steps=steps, timeout_s=timeout_s)
        return estimator.on(recorded, known).estimate
    script = Path(target)
    folder = Path(workdir) if workdir is not None else Path.cwd()
    request = EstimateRequest(
        command=(str(script), *args),
        workdir=str(folder),
        env=dict(env if env is not None else os.environ),
        gpu=gpu,
        timeout_s=timeout_s,
    )
    return estimator.estimate(request)
