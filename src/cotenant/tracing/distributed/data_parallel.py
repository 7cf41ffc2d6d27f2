"""`nn.DataParallel` over several GPUs of one process: where its copies, scattered inputs and gathered outputs live.

Replicas run one after the other: on a GPU they run in threads of their own, but each on its own device, so that the
order of events on a device is the same.
Source: torch/nn/parallel/{data_parallel,replicate,parallel_apply}.py, torch/csrc/cuda/comm.cpp.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch


def install(note_group: Callable[[int], None]) -> None:
    """Replace what copies between GPUs; `note_group` is told, once, of how many GPUs NCCL joins."""
    seen: set[int] = set()

    def broadcast_coalesced(tensors: Any, devices: Sequence[int], size: int) -> list[list[torch.Tensor]]:
        if len(devices) > 1 and len(devices) not in seen:
            seen.add(len(devices))
            note_group(len(devices))
        return _broadcast_coalesced(tensors, devices, size)

    torch._C._scatter = _scatter
    torch._C._broadcast_coalesced = broadcast_coalesced
    torch._C._gather = _gather
    torch.cuda.nccl.is_available = lambda tensors: True
    torch.cuda.nccl.reduce = lambda *_, **__: None
    module: Any = torch.nn.parallel
    module.parallel_apply.__globals__["parallel_apply"] = module.parallel_apply = _parallel_apply
    module.DataParallel.forward.__globals__["parallel_apply"] = _parallel_apply


def _scatter(tensor: torch.Tensor, devices: Any, sizes: Any, dim: int, streams: Any) -> tuple[torch.Tensor, ...]:
    parts = tensor.split(list(sizes), dim) if sizes is not None else tensor.chunk(len(devices), dim)
    return tuple(part.to(torch.device("cuda", index)) for part, index in zip(parts, devices, strict=False))


def _broadcast_coalesced(tensors: Any, devices: Sequence[int], size: int) -> list[list[torch.Tensor]]:
    """Copies for each device, the originals for the first; `size`: bytes of a flat piece, of which copies are views."""
    copies: list[list[Any]] = [list(tensors), *([None] * len(tensors) for _ in devices[1:])]
    for piece in _pieces(tensors, size):
        flat = torch.cat([tensors[i].detach().reshape(-1) for i in piece]) if len(piece) > 1 else None
        numel = sum(tensors[i].numel() for i in piece)
        for copy, device in zip(copies[1:], devices[1:], strict=True):
            whole = torch.empty(numel, dtype=tensors[piece[0]].dtype, device=torch.device("cuda", device))
            start = 0
            for i in piece:
                copy[i] = whole[start : start + tensors[i].numel()].view(tensors[i].shape)
                start += tensors[i].numel()
        del flat  # the source of the broadcast
    return copies


def _pieces(tensors: Sequence[torch.Tensor], size: int) -> Iterator[list[int]]:
    """Indices of tensors of one type, together of `size` bytes at most unless one alone is larger."""
    open_: dict[torch.dtype, list[int]] = {}
    filled: dict[torch.dtype, int] = {}
    for i, each in enumerate(tensors):
        nbytes = each.numel() * each.element_size()
        if open_.get(each.dtype) and filled[each.dtype] + nbytes > size:
            yield open_.pop(each.dtype)
        if each.dtype not in open_:
            open_[each.dtype], filled[each.dtype] = [], 0
        open_[each.dtype].append(i)
        filled[each.dtype] += nbytes
    yield from open_.values()


def _gather(tensors: Sequence[torch.Tensor], dim: int, destination: int | None) -> torch.Tensor:
    """One tensor of them all, on the GPU `destination`; -1 or None: the CPU."""
    shape = list(tensors[0].shape)
    shape[dim] = sum(each.shape[dim] for each in tensors)
    device = torch.device("cpu") if destination in (None, -1) else torch.device("cuda", destination)
    return torch.empty(shape, dtype=tensors[0].dtype, device=device)


def _parallel_apply(modules: Any, inputs: Any, kwargs_tup: Any = None, devices: Any = None) -> list[Any]:
    """Output of each module for its inputs, one after the other."""
    named = kwargs_tup if kwargs_tup is not None else ({},) * len(modules)
    places = devices if devices is not None else range(len(modules))
    outputs = []
    for module, args, kwargs, place in zip(modules, inputs, named, places, strict=True):
        given = args if isinstance(args, (list, tuple)) else (args,)
        with torch.cuda.device(place):
            outputs.append(module(*given, **kwargs))
    return outputs
