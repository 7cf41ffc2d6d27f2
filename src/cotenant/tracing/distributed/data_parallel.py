"""`nn.DataParallel` over several GPUs of one process: its replicas, scattered inputs and gathered outputs.

Replicas run one after the other. On real GPUs each runs in a thread of its own, but on its own device, so the order of
events on each device is the same.
Source: torch/nn/parallel/{data_parallel,replicate,parallel_apply}.py, torch/csrc/cuda/comm.cpp.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from cotenant.tracing.patches.registry import Patch, PatchContext, Phase, patch_attributes


def patches(context: PatchContext) -> list[Patch]:
    """Whatever copies between GPUs of one process; the first broadcast registers a group of NCCL."""
    seen: set[int] = set()

    def broadcast_coalesced(tensors: Any, devices: Sequence[int], size: int) -> list[list[torch.Tensor]]:
        if len(devices) > 1 and len(devices) not in seen:
            seen.add(len(devices))
            context.groups.used_by_data_parallel(len(devices))
        return _broadcast_coalesced(tensors, devices, size)

    return [
        *patch_attributes(
            "torch._C", {"_scatter": _scatter, "_broadcast_coalesced": broadcast_coalesced, "_gather": _gather},
            phase=Phase.DISTRIBUTED, reason="They copy between GPUs in C++.", source="torch/csrc/cuda/comm.cpp",
            create=True, missing="builds without CUDA",
        ),
        *patch_attributes(
            "torch.cuda.nccl", {"is_available": lambda tensors: True, "reduce": lambda *_, **__: None},
            phase=Phase.DISTRIBUTED, reason="A CPU build has no NCCL.", source="torch/cuda/nccl.py, `is_available`",
        ),
        Patch(
            target="torch.nn.parallel.parallel_apply:parallel_apply", phase=Phase.DISTRIBUTED,
            replacement=_parallel_apply, also_in="torch.nn.parallel",
            reason="It starts a thread per GPU; a trace needs one order of events.",
            source="torch/nn/parallel/parallel_apply.py, `parallel_apply`",
        ),
    ]  # fmt: skip


def _scatter(tensor: torch.Tensor, devices: Any, sizes: Any, dim: int, streams: Any) -> tuple[torch.Tensor, ...]:
    parts = tensor.split(list(sizes), dim) if sizes is not None else tensor.chunk(len(devices), dim)
    return tuple(part.to(torch.device("cuda", index)) for part, index in zip(parts, devices, strict=False))


def _broadcast_coalesced(tensors: Any, devices: Sequence[int], size: int) -> list[list[torch.Tensor]]:
    """Copies per device, which are views of flat chunks of `size` bytes; the first device has the originals."""
    copies: list[list[Any]] = [list(tensors), *([None] * len(tensors) for _ in devices[1:])]
    for chunk in _chunks(tensors, size):
        flat = torch.cat([tensors[i].detach().reshape(-1) for i in chunk]) if len(chunk) > 1 else None
        numel = sum(tensors[i].numel() for i in chunk)
        for copy, device in zip(copies[1:], devices[1:], strict=True):
            whole = torch.empty(numel, dtype=tensors[chunk[0]].dtype, device=torch.device("cuda", device))
            start = 0
            for i in chunk:
                copy[i] = whole[start : start + tensors[i].numel()].view(tensors[i].shape)
                start += tensors[i].numel()
        del flat  # the source of the broadcast
    return copies


def _chunks(tensors: Sequence[torch.Tensor], size: int) -> Iterator[list[int]]:
    """Indices of tensors of one dtype, together at most `size` bytes unless one alone is larger."""
    open_: dict[torch.dtype, list[int]] = {}
    filled: dict[torch.dtype, int] = {}
    for i, tensor in enumerate(tensors):
        nbytes = tensor.numel() * tensor.element_size()
        if open_.get(tensor.dtype) and filled[tensor.dtype] + nbytes > size:
            yield open_.pop(tensor.dtype)
        if tensor.dtype not in open_:
            open_[tensor.dtype], filled[tensor.dtype] = [], 0
        open_[tensor.dtype].append(i)
        filled[tensor.dtype] += nbytes
    yield from open_.values()


def _gather(tensors: Sequence[torch.Tensor], dim: int, destination: int | None) -> torch.Tensor:
    """All tensors concatenated, on the GPU `destination`; -1 or None: on the CPU."""
    shape = list(tensors[0].shape)
    shape[dim] = sum(tensor.shape[dim] for tensor in tensors)
    device = torch.device("cpu") if destination in (None, -1) else torch.device("cuda", destination)
    return torch.empty(shape, dtype=tensors[0].dtype, device=device)


def _parallel_apply(modules: Any, inputs: Any, kwargs_tup: Any = None, devices: Any = None) -> list[Any]:
    """Outputs of the modules for their inputs, one after the other."""
    named = kwargs_tup if kwargs_tup is not None else ({},) * len(modules)
    gpus = devices if devices is not None else range(len(modules))
    outputs = []
    for module, args, kwargs, gpu in zip(modules, inputs, named, gpus, strict=True):
        given = args if isinstance(args, (list, tuple)) else (args,)
        with torch.cuda.device(gpu):
            outputs.append(module(*given, **kwargs))
    return outputs
