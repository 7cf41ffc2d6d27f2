"""`DistributedDataParallel` as its module plus the buckets in which it sums gradients.

Nothing is sent. Not modeled: DDP's second set of buckets after the first step; its map of unused parameters, one number
for each.
Source: torch/nn/parallel/distributed.py and torch/csrc/distributed/c10d/reducer.cpp.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch._utils import _get_device_index

from cotenant.tracing.patches.registry import Patch, Phase, patch_attributes

_FIRST_BUCKET_BYTES = 1 << 20
_BUCKET_MIB = 25
_BROADCAST_BYTES = 250 << 20


def patches() -> list[Patch]:
    """Construction, forward, and what registers with the reducer."""
    reducer_methods = ("register_comm_hook", "_set_static_graph", "_register_fused_optim", "join")
    return patch_attributes(
        "torch.nn.parallel:DistributedDataParallel",
        {
            "__init__": _init,
            "forward": _forward,
            "no_sync": _no_sync,
            "_get_ddp_logging_data": lambda self: {},
            "__getstate__": _state,
            "__setstate__": _set_state,
            **dict.fromkeys(reducer_methods, lambda self, *args, **kwargs: contextlib.nullcontext()),
        },
        phase=Phase.DISTRIBUTED,
        reason="Its C++ reducer talks to other processes, and a dispatch mode does not see its buckets.",
        source="torch/nn/parallel/distributed.py, `DistributedDataParallel.__init__`",
    )


def _init(self: Any, module: torch.nn.Module, device_ids: Any = None, *args: Any, **kwargs: Any) -> None:
    torch.nn.Module.__init__(self)
    self.module = module
    self.device_ids = [_get_device_index(gpu, True) for gpu in device_ids or ()]
    self.device = next(iter(module.parameters())).device
    self.process_group = kwargs.get("process_group")
    self.find_unused_parameters = kwargs.get("find_unused_parameters", False)
    self.gradient_as_bucket_view = kwargs.get("gradient_as_bucket_view", False)
    self.broadcast_buffers = kwargs.get("broadcast_buffers", True)
    self.require_backward_grad_sync = self.require_forward_param_sync = True
    self.static_graph = kwargs.get("static_graph", False)
    torch.distributed.broadcast(None, 0, group=self.process_group)
    for sizes in _bucket_sizes([*module.parameters(), *module.buffers()], _BROADCAST_BYTES, _BROADCAST_BYTES):
        _bucket(*sizes)  # rank 0 broadcasts its values in flat buffers
    self.bucket_bytes_cap = int(kwargs.get("bucket_cap_mb") or _BUCKET_MIB) << 20
    _make_buckets(self)


def _make_buckets(self: Any) -> None:
    trained = [parameter for parameter in self.module.parameters() if parameter.requires_grad][::-1]
    sizes = _bucket_sizes(trained, _FIRST_BUCKET_BYTES, self.bucket_bytes_cap)
    self._buckets = [_bucket(*size) for size in sizes]
    if self.gradient_as_bucket_view:
        _view_buckets(trained, self._buckets)


def _state(self: Any) -> dict[str, Any]:
    """What a copy gets, as `copy.deepcopy` for a moving average makes it: its reducer has buckets of its own."""
    return {name: value for name, value in vars(self).items() if name not in ("process_group", "_buckets")}


def _set_state(self: Any, state: dict[str, Any]) -> None:
    torch.nn.Module.__setstate__(self, state)
    self.process_group = None
    _make_buckets(self)


def _bucket_sizes(tensors: list[Any], first: int, cap: int) -> Iterator[tuple[int, torch.dtype, torch.device]]:
    """(elements, dtype, device) of each bucket, which is filled in order until its size is reached.

    The first bucket of a dtype and device has `first` bytes, all others `cap`.
    """
    open_: dict[tuple[torch.dtype, torch.device], int] = {}
    has_full: set[tuple[torch.dtype, torch.device]] = set()
    for tensor in tensors:
        if tensor.device.type != "cuda":
            continue
        kind = (tensor.dtype, tensor.device)
        open_[kind] = open_.get(kind, 0) + tensor.numel()
        if open_[kind] * tensor.element_size() >= (cap if kind in has_full else first):
            yield open_.pop(kind), *kind
            has_full.add(kind)
    for kind, numel in open_.items():
        yield numel, *kind


def _view_buckets(trained: list[Any], buckets: list[torch.Tensor]) -> None:
    """Make every gradient a view of its bucket, as soon as it was accumulated."""
    fill = [[bucket, 0] for bucket in buckets]
    for parameter in trained:
        slot = next((slot for slot in fill if _has_room(slot, parameter)), None)
        if slot is None:
            continue
        start, slot[1] = slot[1], slot[1] + parameter.numel()
        view = slot[0][start : start + parameter.numel()].view(parameter.shape)
        parameter.register_post_accumulate_grad_hook(_set_grad(view))


def _has_room(slot: Any, tensor: torch.Tensor) -> bool:
    bucket, used = slot
    same = (bucket.dtype, bucket.device) == (tensor.dtype, tensor.device)
    return same and bucket.numel() - used >= tensor.numel()


def _set_grad(view: torch.Tensor) -> Any:
    def hook(parameter: Any) -> None:
        parameter.grad = view

    return hook


def _bucket(numel: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    return torch.empty(numel, dtype=dtype, device=device)


def _forward(self: Any, *args: Any, **kwargs: Any) -> Any:
    if self.device_ids:
        from torch.distributed.utils import _to_kwargs

        # As DDP's own `_pre_forward`: each tensor is moved as a whole, also one without dimensions.
        moved, named = _to_kwargs(args, kwargs, torch.device("cuda", self.device_ids[0]), False)
        args, kwargs = moved[0], named[0]
    # `torch.compile` divides its graph by buckets below DDP: torch/_dynamo/backends/distributed.py, `DDPOptimizer`.
    with self._inside_ddp_forward():
        return self.module(*args, **kwargs)


@contextlib.contextmanager
def _no_sync(self: Any) -> Iterator[None]:
    before, self.require_backward_grad_sync = self.require_backward_grad_sync, False
    try:
        yield
    finally:
        self.require_backward_grad_sync = before
