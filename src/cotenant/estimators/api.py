"""The Python function `cotenant.estimate`, and `explain`, which also returns the trace and the replays."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from cotenant.core.errors import UsageError
from cotenant.core.estimate import Estimate
from cotenant.core.ports import EstimateRequest, TraceOptions
from cotenant.core.trace import CompiledCode
from cotenant.estimators.trace_cache import TraceCache, default_folder
from cotenant.estimators.traced import TracedEstimator, fake_gpu_of
from cotenant.estimators.traced_result import TracedResult
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
    compiled_code: CompiledCode = "auto",
) -> Estimate:
    """Predicted GPU memory of a training script, or of a function that does one training step; no GPU is used.

    A script runs unchanged in its own process, with `args`, in `workdir`, by the interpreter `python` (default: this
    one). A function is called repeatedly in a fork of this process, until `steps` optimizer steps are traced; its model
    may exist on the CPU before, but must be moved to `cuda` inside the function.

    `gpus`: number of GPUs that it sees; `per_gpu` of the estimate has one entry for each that it uses.
    `synthetic_data`, `sequence_lengths`, `allow_network` and `compiled_code` are those of `core.ports.TraceOptions`;
    they, `workdir`, `env` and `python` are for scripts only: compiled code of a function is traced eagerly.

    Raises:
        TraceError: it could not be traced; `kind` says why.
        UsageError: no such script or GPU, or the option does not apply to a function.
    """
    found = explain(
        target, args, gpu=gpu, workdir=workdir, env=env, python=python, steps=steps, timeout_s=timeout_s, gpus=gpus,
        synthetic_data=synthetic_data, sequence_lengths=sequence_lengths, allow_network=allow_network,
        compiled_code=compiled_code, cache=False,
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
    compiled_code: CompiledCode = "auto",
    cache: bool = True,
) -> TracedResult:
    """As `estimate`, with the trace, its replay, the range of the reserved bytes and the verdict for the GPU.

    `cache`: reuse and store the trace of a script; see `estimators.trace_cache` for the key. Traces of functions are
    never stored.

    Raises:
        TraceError, UsageError: as `estimate` does.
    """
    if isinstance(args, str):
        raise UsageError(f"`args` is a string, `{args}`, wanted a list", hint="split it with `shlex.split`")
    if steps < 1:
        raise UsageError(f"`steps` must be at least 1, got {steps}")
    if callable(target):
        _refuse_for_functions(
            {
                "workdir": workdir,
                "env": env,
                "python": python,
                "synthetic_data": synthetic_data,
                "sequence_lengths": sequence_lengths,
                "allow_network": allow_network,
                "compiled_code": compiled_code == "inductor",
            },
            args,
        )
        return _explain_function(target, gpu=gpu, gpus=gpus, steps=steps, timeout_s=timeout_s)
    folder = default_folder() if cache else None
    estimator = TracedEstimator(steps=steps, python=python, cache=TraceCache(folder) if folder else None)
    request = EstimateRequest(
        command=(str(Path(target)), *args),
        workdir=str(Path(workdir) if workdir is not None else Path.cwd()),
        env=dict(env if env is not None else os.environ),
        gpu=gpu,
        timeout_s=timeout_s,
        gpus=gpus,
        trace=TraceOptions(
            synthetic_data=tuple(synthetic_data),
            sequence_lengths=sequence_lengths,
            allow_network=allow_network,
            compiled_code=compiled_code,
        ),
    )
    return estimator.explain(request)


def _refuse_for_functions(script_options: Mapping[str, object], args: Sequence[str]) -> None:
    """Raises `UsageError` for arguments and options that only scripts have, by their names in `explain`."""
    if args:
        raise UsageError("a function is called without arguments", hint="bind them: `functools.partial(step, batch)`")
    for name, value in script_options.items():
        if value:
            raise UsageError(f"`{name}` is for scripts: a function runs in a fork of this process")


def _explain_function(
    function: Callable[[], object], *, gpu: str, gpus: int, steps: int, timeout_s: float
) -> TracedResult:
    from cotenant.tracing.process.trace_function import trace_function

    known = gpu_spec(gpu)
    recorded = trace_function(function, gpu=fake_gpu_of(known, gpus), steps=steps, timeout_s=timeout_s)
    return TracedEstimator(steps=steps).on(recorded, known)
