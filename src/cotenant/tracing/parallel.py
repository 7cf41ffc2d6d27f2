"""Data-parallel wrappers and process groups, of which this process plays one member.

Nothing is sent anywhere. Collective calls leave their tensors as they are; `DistributedDataParallel` becomes its
module plus the buckets in which it sums gradients. Not modeled: memory of NCCL itself, sharding (FSDP, ZeRO).
Source: torch/nn/parallel/distributed.py and torch/csrc/distributed/c10d/reducer.cpp.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import torch

_FIRST_BUCKET_BYTES = 1 << 20
_BUCKET_MIB = 25
_BROADCAST_BYTES = 250 << 20
_ALONE = "traced as one process of a distributed job; NCCL's own memory is not counted"


class _Done:
    """What an asynchronous collective call returns."""

    def wait(self, timeout: object = None) -> bool:
        """It is done."""
        return True

    def is_completed(self) -> bool:
        """It is done."""
        return True

    def get_future(self) -> torch.futures.Future[Any]:
        """It is done."""
        future: torch.futures.Future[Any] = torch.futures.Future()
        future.set_result(None)
        return future


def install(recorder: Any) -> None:
    """Replace what talks to other GPUs and processes."""
    torch._C._scatter = _scatter
    torch._C._broadcast_coalesced = lambda tensors, devices, size: [list(tensors) for _ in devices]
    torch._C._gather = lambda tensors, dim, destination: tensors[0] if len(tensors) == 1 else torch.cat(tensors, dim)
    if not torch.distributed.is_available():
        return
    _install_groups(recorder)
    ddp: Any = torch.nn.parallel.DistributedDataParallel
    ddp.__init__, ddp.forward, ddp.no_sync = _ddp_init, _ddp_forward, _ddp_no_sync
    for name in ("register_comm_hook", "_set_static_graph", "_register_fused_optim", "join"):
        setattr(ddp, name, lambda self, *args, **kwargs: contextlib.nullcontext())


def _scatter(tensor: torch.Tensor, devices: Any, sizes: Any, dim: int, streams: Any) -> tuple[torch.Tensor, ...]:
    parts = tensor.split(list(sizes), dim) if sizes is not None else tensor.chunk(len(devices), dim)
    return tuple(part.to(torch.device("cuda", index)) for part, index in zip(parts, devices, strict=False))


# -- process groups -------------------------------------------------------------------------------------------------

_IN_PLACE = (
    "all_reduce", "broadcast", "reduce", "all_gather", "all_gather_into_tensor", "reduce_scatter",
    "reduce_scatter_tensor", "scatter", "gather", "all_to_all", "all_to_all_single", "send", "recv", "isend", "irecv",
    "_all_gather_base", "_reduce_scatter_base", "all_reduce_coalesced",
)  # fmt: skip


def _install_groups(recorder: Any) -> None:
    import torch.distributed.distributed_c10d as c10d

    real_init = c10d.init_process_group

    def init_process_group(
        backend: Any = None, init_method: Any = None, timeout: Any = None, world_size: int = -1, rank: int = -1,
        *args: Any, **kwargs: Any,
    ) -> None:  # fmt: skip
        from torch.testing._internal.distributed.fake_pg import FakeStore

        size = world_size if world_size > 0 else int(os.environ.get("WORLD_SIZE", "1"))
        own = rank if rank >= 0 else int(os.environ.get("RANK", "0"))
        recorder.warn(_ALONE)
        real_init(backend="fake", store=FakeStore(), rank=own, world_size=size)

    def collective(*args: Any, **kwargs: Any) -> _Done:
        return _Done()

    def gather_objects(objects: list[Any], value: Any, group: Any = None) -> None:
        objects[:] = [value] * len(objects)

    replaced: dict[str, Any] = dict.fromkeys(_IN_PLACE, collective)
    replaced.update(
        init_process_group=init_process_group,
        barrier=collective,
        monitored_barrier=collective,
        all_gather_object=gather_objects,
        broadcast_object_list=collective,
        is_nccl_available=lambda: True,
    )
    for module in (torch.distributed, c10d):
        for name, value in replaced.items():
            if hasattr(module, name):
                setattr(module, name, value)


# -- DistributedDataParallel ----------------------------------------------------------------------------------------


def _ddp_init(self: Any, module: torch.nn.Module, device_ids: Any = None, *args: Any, **kwargs: Any) -> None:
    torch.nn.Module.__init__(self)
    self.module = module
    self.device_ids = [torch.device("cuda", each).index if isinstance(each, int) else each for each in device_ids or ()]
    self.device = next(iter(module.parameters())).device
    self.process_group = kwargs.get("process_group")
    self.find_unused_parameters = kwargs.get("find_unused_parameters", False)
    self.gradient_as_bucket_view = kwargs.get("gradient_as_bucket_view", False)
    self.broadcast_buffers = kwargs.get("broadcast_buffers", True)
    self.require_backward_grad_sync = self.require_forward_param_sync = True
    self.static_graph = kwargs.get("static_graph", False)
    for sizes in _by_kind([*module.parameters(), *module.buffers()], _BROADCAST_BYTES, _BROADCAST_BYTES):
        _bucket(*sizes)  # the first worker's values go around in flat pieces
    cap = int(kwargs.get("bucket_cap_mb") or _BUCKET_MIB) << 20
    trained = [each for each in module.parameters() if each.requires_grad][::-1]
    # Gradients that are views of the buckets need no second copy; which of the two is counted makes no difference.
    first = 0 if self.gradient_as_bucket_view else _FIRST_BUCKET_BYTES
    self._buckets = [_bucket(*each) for each in _by_kind(trained, first, cap)] if first else []


def _by_kind(tensors: list[Any], first: int, cap: int) -> Iterator[tuple[int, torch.dtype, torch.device]]:
    """(elements, type, device) of each bucket: filled in order until its limit is reached."""
    open_: dict[tuple[torch.dtype, torch.device], int] = {}
    full: dict[tuple[torch.dtype, torch.device], int] = {}
    for each in tensors:
        if each.device.type != "cuda":
            continue
        kind = (each.dtype, each.device)
        open_[kind] = open_.get(kind, 0) + each.numel()
        if open_[kind] * each.element_size() >= (cap if full.get(kind) else first):
            yield open_.pop(kind), *kind
            full[kind] = 1
    for kind, numel in open_.items():
        yield numel, *kind


def _bucket(numel: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    return torch.empty(numel, dtype=dtype, device=device)


def _ddp_forward(self: Any, *args: Any, **kwargs: Any) -> Any:
    if self.device_ids:
        from torch.nn.parallel.scatter_gather import scatter_kwargs

        moved, named = scatter_kwargs(args, kwargs, self.device_ids[:1])
        args, kwargs = moved[0], named[0]
    return self.module(*args, **kwargs)


@contextlib.contextmanager
def _ddp_no_sync(self: Any) -> Iterator[None]:
    before, self.require_backward_grad_sync = self.require_backward_grad_sync, False
    try:
        yield
    finally:
        self.require_backward_grad_sync = before
