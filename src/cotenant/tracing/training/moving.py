"""Parameters and buffers that move to the GPU and back, and stay the same objects.

So an optimizer made before `.to("cuda")`, weights tied to each other, and what a script has attached to a parameter are
afterwards as they are on a GPU. A real tensor cannot hold fake data, so object and content are exchanged.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from cotenant.tracing.recorder import Recorder
from cotenant.tracing.training import lazy

_recorders: list[Recorder] = []  # who is told that a tensor is a module's parameter or buffer
_data: Any = torch.Tensor.data
_subclass: Any = torch.Tensor._make_subclass
_fakes: dict[type, type] = {}  # by a class of tensors, the same for fake ones
_plain: dict[type, type] = {}  # the other way round
_NO_DISPATCH = (None, torch.Tensor.__torch_dispatch__, torch._C._disabled_torch_dispatch_impl)
_OF_FAKES = frozenset({"pytype", "dispatch_keys", "fake_mode", "real_tensor", "constant", "_fake_device", "_is_param"})


def install(recorder: Recorder) -> None:
    """Replace how modules and tensors move, for all of the process."""
    torch.nn.Module._apply = _apply
    torch.Tensor.data = property(_data.__get__, _set_data)
    torch.Tensor._make_subclass = staticmethod(_make_subclass)
    lazy.install(_become)
    _recorders.append(recorder)


def _apply(self: torch.nn.Module, fn: Callable[[Any], Any], recurse: bool = True) -> torch.nn.Module:
    """`Module._apply`, keeping every parameter the same object when it moves between real and fake.

    So an optimizer made before `.to("cuda")` and weights tied to each other stay as they are on a GPU.
    Differs from PyTorch, which puts new data into the same parameter: a real tensor cannot hold fake data.
    """
    return _apply_once(self, fn, recurse, {})


def _apply_once(
    module: torch.nn.Module, fn: Callable[[Any], Any], recurse: bool, done: dict[int, Any]
) -> torch.nn.Module:
    if recurse:
        for child in module.children():
            # A subclass that overrides `_apply` (RNNs flatten their weights) must still see the call.
            if type(child)._apply is _apply:
                _apply_once(child, fn, recurse, done)
            else:
                child._apply(fn)
    for parameter in module._parameters.values():
        if parameter is None or id(parameter) in done:
            continue
        done[id(parameter)] = parameter
        if lazy.is_lazy(parameter):
            lazy.moved(parameter, fn)
        else:
            _move(parameter, fn)
    _apply_to_buffers(module, fn, done)
    return module


def _apply_to_buffers(module: torch.nn.Module, fn: Callable[[Any], Any], done: dict[int, Any]) -> None:
    for name, buffer in module._buffers.items():
        if lazy.is_lazy(buffer):
            lazy.moved(buffer, fn)
        elif buffer is not None:
            known = done.get(id(buffer))
            if known is None:
                known = (fn(buffer), buffer)  # the old one is kept, or its id could be given to another
                done[id(buffer)] = known
            module._buffers[name] = known[0] if isinstance(known, tuple) else known
            for recorder in _recorders:
                recorder.classify(module._buffers[name], "buffer")


def _move(parameter: Any, fn: Callable[[Any], Any]) -> None:
    with torch.no_grad():
        moved = fn(parameter)
    grad = parameter.grad
    _become(parameter, moved)
    for recorder in _recorders:
        recorder.classify(parameter, "parameter")
    if grad is not None:
        with torch.no_grad():
            parameter.grad = fn(grad)


def _become(tensor: Any, moved: torch.Tensor) -> None:
    """Give `tensor` the content of `moved`, in place; what a script has attached to it, stays."""
    if moved is tensor:
        return
    if isinstance(moved, FakeTensor) == isinstance(tensor, FakeTensor):
        _data.__set__(tensor, moved)
        return
    wanted, is_param = tensor.requires_grad, isinstance(tensor, torch.nn.Parameter)
    kept = {name: value for name, value in vars(tensor).items() if name not in _OF_FAKES and "_memo" not in name}
    if isinstance(moved, FakeTensor):
        kind = _faked(type(tensor))
        moved = moved.detach().requires_grad_(wanted)
        if is_param:
            moved._is_param = True
    else:
        kind = _plain.get(type(tensor), torch.nn.Parameter if is_param else torch.Tensor)
        moved = torch.nn.Parameter(moved, wanted) if is_param else moved.detach().requires_grad_(wanted)
    _swap(tensor, moved)
    tensor.__class__ = kind
    tensor.__dict__.update(kept)


def _swap(first: Any, second: Any) -> None:
    # As torch.utils.swap_tensors, without its refusal of weak references: they should follow the object.
    first.__class__, second.__class__ = second.__class__, first.__class__
    first.__dict__, second.__dict__ = second.__dict__, first.__dict__
    torch._C._swap_tensor_impl(first, second)


def _faked(kind: type) -> type:
    """The class of a fake tensor that was of class `kind`: its own, if a library or script gave it methods."""
    if kind in (torch.Tensor, torch.nn.Parameter, FakeTensor) or issubclass(kind, FakeTensor):
        return kind if issubclass(kind, FakeTensor) else FakeTensor
    if getattr(kind, "__torch_dispatch__", None) not in _NO_DISPATCH:
        return FakeTensor
    made = _fakes.get(kind)
    if made is None:
        more = {"__torch_dispatch__": FakeTensor.__torch_dispatch__}
        made = _fakes[kind] = type(kind)(kind.__name__, (kind, FakeTensor), more)
        _plain[made] = kind
    return made


def _make_subclass(*args: Any, **kwargs: Any) -> Any:
    """`Tensor._make_subclass`; of fake data, a fake tensor of that class, as libraries make of quantized weights."""
    kind, data, *rest = args
    if not isinstance(data, FakeTensor):
        return _subclass(_plain.get(kind, kind), data, *rest, **kwargs)
    wanted = rest[0] if rest else kwargs.get("require_grad", False)
    made = data.detach().requires_grad_(wanted)
    if issubclass(kind, torch.nn.Parameter):
        made._is_param = True
    made.__class__ = _faked(kind)
    return made


def _set_data(tensor: Any, value: torch.Tensor) -> None:
    """`tensor.data = value`, also between the CPU and the fake GPU; the general way keeps the old kind of tensor."""
    if isinstance(value, FakeTensor) != isinstance(tensor, FakeTensor):
        _become(tensor, value)
    else:
        _data.__set__(tensor, value)
        if getattr(tensor, "_is_param", False):
            for recorder in _recorders:
                recorder.classify(tensor, "parameter")
