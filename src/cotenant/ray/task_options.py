"""Options of a Ray task or actor that runs a training script: the part of a GPU that the script needs.

Ray counts GPUs and their parts for each GPU by itself (`num_gpus=0.3`), and knows nothing of their memory. The part is
therefore the script's share of the GPU's memory: what is on one GPU then fits into it. A sum of GiB for each node, as
a custom resource, would not do: two tasks of 60 GiB were put on one GPU of 80 GiB of a node with two (Ray 2.60).
"""

from __future__ import annotations

import math
import os
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from cotenant.core.errors import UsageError
from cotenant.core.units import format_bytes, parse_bytes
from cotenant.estimators.api import explain
from cotenant.gpu_specs import GpuSpec, all_gpu_specs, gpu_spec

PARTS = 10_000
"""Ray counts resources in ten thousandths. Source: fixed_point.h of Ray 2.60."""
_ACCELERATOR = "accelerator_type:"
"""Begins the name of the resource that states the model of a node's GPUs."""


def options(
    script: str | os.PathLike[str],
    args: Sequence[str] = (),
    *,
    gpu: str | None = None,
    gpus: int = 1,
    memory: int | str | None = None,
    **estimating: Any,
) -> dict[str, Any]:
    """Options for Ray with which a task or an actor can run `script`: `train.options(**options("train.py")).remote()`.

    With one GPU `num_gpus` is the share of its memory that the bound of the estimate takes, rounded up, so that Ray
    packs tasks whose memory fits together; with several it is their number, since Ray gives parts of one only. Memory
    of the host and CPUs are not estimated. The task must run the script in its own process: Ray's worker keeps what it
    has once allocated.

    Args:
        script: the training script, which is traced on this machine, without a GPU.
        args: its arguments.
        gpu: model, e.g. `A100-40GB`; by default, once Ray is initialized, the one with the least memory that the
            cluster's nodes name.
        gpus: how many GPUs the script uses.
        memory: what it needs on each GPU, as bytes or as `9G`; nothing is estimated then.
        estimating: further arguments of `cotenant.estimate`.

    Raises:
        TraceError: there is no estimate, for the reason given.
        UsageError: no GPU is known, or it has less memory than the script needs.
    """
    spec = gpu_spec(gpu) if gpu is not None else _smallest_gpu()
    if memory is None:
        estimate = explain(script, args, gpu=spec.name, gpus=gpus, **estimating).estimate
        if estimate.partial:
            warnings.warn(
                f"the estimate of `{os.fspath(script)}` is a lower bound, so it gets whole GPUs: "
                f"{'; '.join(estimate.warnings)}",
                stacklevel=2,
            )
            return {"num_gpus": gpus}
        needed_bytes = estimate.bound_bytes
    else:
        needed_bytes = parse_bytes(memory) if isinstance(memory, str) else memory
    if not 0 < needed_bytes <= spec.memory_total_bytes:
        raise UsageError(
            f"`{os.fspath(script)}` needs {format_bytes(needed_bytes)}, and the {spec.name} has "
            f"{format_bytes(spec.memory_total_bytes)}",
            hint="a smaller batch needs less",
        )
    if gpus != 1:
        return {"num_gpus": gpus}
    return {"num_gpus": math.ceil(PARTS * needed_bytes / spec.memory_total_bytes) / PARTS}


def _smallest_gpu() -> GpuSpec:
    hint = "name it, e.g. gpu='A100-40GB'"
    try:
        import ray
    except ImportError as error:
        raise UsageError("no `gpu` is named, and ray is not installed", hint=hint) from error
    if not ray.is_initialized():
        raise UsageError("no `gpu` is named, and there is no connection to a Ray cluster", hint=hint)
    return smallest_gpu(ray.nodes(), hint)


def smallest_gpu(nodes: Iterable[Mapping[str, Any]], hint: str) -> GpuSpec:
    """The GPU with the least memory among those that the nodes with GPUs, as Ray lists them, may have.

    Raises:
        UsageError: a node has no GPU model among its resources, or one that is unknown here.
    """
    found: list[GpuSpec] = []
    for node in nodes:
        resources = node["Resources"]
        if not node["Alive"] or not resources.get("GPU"):
            continue
        names = [name.removeprefix(_ACCELERATOR) for name in resources if name.startswith(_ACCELERATOR)]
        models = [spec for name in names for spec in all_gpu_specs() if _is_called(spec, name)]
        if not models:
            called = f"`{names[0]}`" if names else "of an unknown model"
            raise UsageError(f"a node of the cluster has GPUs {called}, which is not in the table of GPUs", hint=hint)
        found += models
    if not found:
        raise UsageError("no node of the cluster has a GPU", hint=hint)
    return min(found, key=lambda spec: spec.memory_total_bytes)


def _is_called(spec: GpuSpec, accelerator: str) -> bool:
    """Whether Ray may call the GPU so: `A100` for both sizes, `GeForce-RTX-3090`."""
    names = (spec.name.partition("-")[0], *spec.nvml_names)
    return _key(accelerator) in {_key(name) for name in names}


def _key(name: str) -> str:
    return re.sub(r"[^a-z0-9]|^nvidia", "", name.lower())
