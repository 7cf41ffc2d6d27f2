"""Data-parallel wrappers and process groups, of which this process plays one member.

Nothing is sent anywhere. Collective calls leave their tensors as they are; `DistributedDataParallel` becomes its
module plus the buckets in which it sums gradients. FSDP2 (`fully_shard`) and `ZeroRedundancyOptimizer` run their own
code, as rank 0 of a group that answers everything at once. What NCCL itself takes is no part of a trace; the header
tells the sizes of its groups. Not modeled: a second making of DDP's buckets after the first step; the map of unused
parameters, a number for each.
Source: torch/nn/parallel/distributed.py and torch/csrc/distributed/c10d/reducer.cpp.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from cotenant.tracing.distributed import data_parallel, multiprocessing, pipelines, zero_consolidation
from cotenant.tracing.distributed.nccl_groups import NcclGroups

_FIRST_BUCKET_BYTES = 1 << 20
_BUCKET_MIB = 25
_BROADCAST_BYTES = 250 << 20
_ONE_RANK_WARNING = "traced as one process of a distributed job"


class _CompletedWork:
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


def install(recorder: Any) -> NcclGroups:
    """Replace what talks to other GPUs and processes; gives the groups of them, of which some will be used."""
    groups = NcclGroups(recorder)
    data_parallel.install(groups.used_by_data_parallel)
    multiprocessing.install(recorder)
    if not torch.distributed.is_available():
        return groups
    _install_groups(recorder, groups)
    _install_spawn(recorder)
    pipelines.install(recorder)
    zero_consolidation.install()
    ddp: Any = torch.nn.parallel.DistributedDataParallel
    ddp.__init__, ddp.forward, ddp.no_sync = _ddp_init, _ddp_forward, _ddp_no_sync
    for name in ("register_comm_hook", "_set_static_graph", "_register_fused_optim", "join"):
        setattr(ddp, name, lambda self, *args, **kwargs: contextlib.nullcontext())
    return groups


# -- process groups -------------------------------------------------------------------------------------------------

_COLLECTIVES = (
    "all_reduce", "broadcast", "reduce", "all_gather", "all_gather_into_tensor", "reduce_scatter",
    "reduce_scatter_tensor", "scatter", "gather", "all_to_all", "all_to_all_single", "send", "recv", "isend", "irecv",
    "_all_gather_base", "_reduce_scatter_base", "all_reduce_coalesced", "all_gather_single", "reduce_scatter_single",
)  # fmt: skip


def _install_groups(recorder: Any, groups: NcclGroups) -> None:
    import torch.distributed.distributed_c10d as c10d

    real_init, real_group = c10d.init_process_group, c10d.new_group

    def init_process_group(
        backend: Any = None, init_method: Any = None, timeout: Any = None, world_size: int = -1, rank: int = -1,
        *args: Any, **kwargs: Any,
    ) -> None:  # fmt: skip
        from torch.testing._internal.distributed.fake_pg import FakeStore

        size = world_size if world_size > 0 else int(os.environ.get("WORLD_SIZE", "1"))
        own = rank if rank >= 0 else int(os.environ.get("RANK", "0"))
        recorder.warn(_ONE_RANK_WARNING)
        recorder.header = replace(recorder.header, processes=size)
        real_init(backend="fake", store=FakeStore(), rank=own, world_size=size)
        groups.made(c10d._get_default_group(), backend)

    def new_group(ranks: Any = None, timeout: Any = None, backend: Any = None, *_: Any, **kwargs: Any) -> Any:
        made = real_group(ranks, timeout, **{**kwargs, "pg_options": None})  # of the default one's kind, the fake
        if made is not None and made is not c10d.GroupMember.NON_GROUP_MEMBER:
            groups.made(made, backend)
        return made

    def collective(*args: Any, **kwargs: Any) -> _CompletedWork:
        groups.used(*args, *kwargs.values())
        return _CompletedWork()

    sent: list[Any] = []

    def send_objects(objects: list[Any], *_: Any, **__: Any) -> None:
        sent[:] = objects

    def receive_objects(objects: list[Any], *_: Any, **__: Any) -> int:
        """Of another member, which is taken to send what this one sent."""
        if len(sent) == len(objects):
            objects[:] = sent
        return 0

    def gather_objects(objects: list[Any], value: Any, group: Any = None) -> None:
        objects[:] = [value] * len(objects)

    replaced: dict[str, Any] = dict.fromkeys(_COLLECTIVES, collective)
    replaced.update(
        init_process_group=init_process_group,
        new_group=new_group,
        barrier=collective,
        monitored_barrier=collective,
        all_gather_object=gather_objects,
        broadcast_object_list=collective,
        send_object_list=send_objects,
        recv_object_list=receive_objects,
        is_nccl_available=lambda: True,
    )
    originals = {name: getattr(c10d, name) for name in replaced if hasattr(c10d, name)}
    for label, module in list(sys.modules.items()):
        if label.startswith("torch.distributed"):  # several have taken the functions by name
            for name, original in originals.items():
                if vars(module).get(name) is original:
                    setattr(module, name, replaced[name])


def _install_spawn(recorder: Any) -> None:
    """`torch.multiprocessing.spawn` runs the first of its processes, here."""

    def spawn(
        fn: Any, args: Any = (), nprocs: int = 1, join: bool = True, daemon: bool = False, start_method: str = "spawn"
    ) -> None:
        recorder.header = replace(recorder.header, processes=nprocs)
        fn(0, *args)

    torch.multiprocessing.spawn = spawn


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
    torch.distributed.broadcast(None, 0, group=self.process_group)
    for sizes in _by_kind([*module.parameters(), *module.buffers()], _BROADCAST_BYTES, _BROADCAST_BYTES):
        _bucket(*sizes)  # the first worker's values go around in flat pieces
    cap = int(kwargs.get("bucket_cap_mb") or _BUCKET_MIB) << 20
    trained = [each for each in module.parameters() if each.requires_grad][::-1]
    self._buckets = [_bucket(*each) for each in _by_kind(trained, _FIRST_BUCKET_BYTES, cap)]
    if self.gradient_as_bucket_view:
        _view_buckets(trained, self._buckets)


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


def _view_buckets(trained: list[Any], buckets: list[torch.Tensor]) -> None:
    """Have each gradient be a piece of its bucket as soon as it was made."""
    free = [[bucket, 0] for bucket in buckets]
    for each in trained:
        place = next((one for one in free if _has_room(one, each)), None)
        if place is None:
            continue
        start, place[1] = place[1], place[1] + each.numel()
        each.register_post_accumulate_grad_hook(_put_into(place[0][start : start + each.numel()].view(each.shape)))


def _has_room(place: Any, tensor: torch.Tensor) -> bool:
    bucket, used = place
    same = (bucket.dtype, bucket.device) == (tensor.dtype, tensor.device)
    return same and bucket.numel() - used >= tensor.numel()


def _put_into(view: torch.Tensor) -> Any:
    def hook(parameter: Any) -> None:
        parameter.grad = view

    return hook


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
