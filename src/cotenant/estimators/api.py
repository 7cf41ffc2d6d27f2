"""The Python call `cotenant.estimate`, and `explain`, which gives all that an estimate came from."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from cotenant.core.errors import UsageError
from cotenant.core.estimate import Estimate
from cotenant.core.ports import EstimateRequest
from cotenant.estimators.trace_cache import TraceCache, default_folder
from cotenant.estimators.traced import TracedEstimator, TracedResult, fake_gpu_of
from cotenant.gpu_specs import gpu_spec

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
    gpus: int = 1,
    synthetic_data: Sequence[str] = (),
    sequence_lengths: str = "",
    allow_network: bool = False,
) -> Estimate:
    """Predicted GPU memory of a training script, or of a function that does one training step; no GPU is used.

    A script runs unchanged in a process of its own, with `args`, in `workdir`, by the interpreter `python` (default:
    this one). A function is called again and again in a forked copy of this process, until `steps` optimizer steps
    were seen; the model may be on the CPU before, or be made by the function, and must go to `cuda` inside it.

    `gpus`: how many it sees; `per_gpu` of the answer tells of each that it uses. `synthetic_data`, `sequence_lengths`, `allow_network`: as
    of `core.ports.EstimateRequest`; they, `workdir`, `env` and `python` are for scripts only.

    Raises:
        TraceError: it could not be traced; `kind` says why.
        UsageError: no such script, no such GPU, or an option that is not for a function.
    """
    found = explain(
        target, args, gpu=gpu, workdir=workdir, env=env, python=python, steps=steps, timeout_s=timeout_s, gpus=gpus,
        synthetic_data=synthetic_data, sequence_lengths=sequence_lengths, allow_network=allow_network, cache=False,
    )  # fmt: skip
    return found.estimate


def explain(
    target: str | os.PathLike[str] | Callable[[], object],
    args: Sequence[str] = (),
    *,
    gpu: str = DEFAULT_GPU,
    workdir: str | os.PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
    python: str | None = None,
    steps: int = 3,
    timeout_s: float = 120.0,
    gpus: int = 1,
    synthetic_data: Sequence[str] = (),
    sequence_lengths: str = "",
    allow_network: bool = False,
    cache: bool = True,
) -> TracedResult:
    """As `estimate`, with the trace, its replay, the interval and the verdict for the GPU.

    `cache`: look for the trace of a script among those kept from before, and keep it; see `estimators.cache` for what
    makes two traces the same. Traces of functions are never kept.

    Raises:
        TraceError, UsageError: as `estimate` does.
    """
    if isinstance(args, str):
        raise UsageError(f"`args` is one text, `{args}`", hint="give a list: `shlex.split` makes one")
    if steps < 1:
        raise UsageError(f"{steps} optimizer steps are none to see", hint="`steps` is at least 1")
    if callable(target):
        from cotenant.tracing.process.trace_function import trace_function

        if args:
            raise UsageError("a function takes no arguments", hint="bind them: `functools.partial(step, batch)`")
        own = {
            "workdir": workdir,
            "env": env,
            "python": python,
            "synthetic_data": synthetic_data,
            "sequence_lengths": sequence_lengths,
        }
        for name, value in {**own, "allow_network": allow_network}.items():
            if value:
                raise UsageError(f"`{name}` is for scripts: a function runs in a copy of this process, as it is")
        known = gpu_spec(gpu)
        recorded = trace_function(target, card=fake_gpu_of(known, gpus), steps=steps, timeout_s=timeout_s)
        return TracedEstimator(steps=steps).on(recorded, known)
    folder = default_folder() if cache else None
    estimator = TracedEstimator(steps=steps, python=python, cache=TraceCache(folder) if folder else None)
    request = EstimateRequest(
        command=(str(Path(target)), *args),
        workdir=str(Path(workdir) if workdir is not None else Path.cwd()),
        env=dict(env if env is not None else os.environ),
        gpu=gpu,
        timeout_s=timeout_s,
        gpus=gpus,
        synthetic_data=tuple(synthetic_data),
        sequence_lengths=sequence_lengths,
        allow_network=allow_network,
    )
    return estimator.explain(request)
