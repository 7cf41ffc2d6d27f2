"""`module.to("cuda")`: parameters and buffers move between the CPU and the fake GPU, and stay the same objects.

So an optimizer made before the move, tied weights, and attributes that a script has set on a parameter stay valid, as
on a GPU. A real tensor cannot hold fake data, so the contents of the two objects are swapped.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from cotenant.tracing.patches.registry import Patch, PatchContext, Phase
from cotenant.tracing.recorder import TraceRecorder
from cotenant.tracing.training import lazy_modules

_recorders: list[TraceRecorder] = []  # of this process's trace; one element
_data: Any = torch.Tensor.data
_subclass: Any = torch.Tensor._make_subclass
_view_as: Any = torch.Tensor.as_subclass
_new: Any = torch.Tensor.__new__
_fake_classes: dict[tuple[type, torch.device], type] = {}  # by tensor class and GPU
_plain_classes: dict[type, type] = {}  # by fake class
_NO_DISPATCH = (None, torch.Tensor.__torch_dispatch__, torch._C._disabled_torch_dispatch_impl)
_FAKE_ATTRIBUTES = frozenset(
    {"pytype", "dispatch_keys", "fake_mode", "real_tensor", "constant", "_fake_device", "_is_param"}
)


class _KeepClass:
    """Results of operators keep the tensor's class, as for other subclasses; FakeTensor disables that."""

    __torch_function__ = vars(torch.Tensor)["__torch_function__"]


def patches(context: PatchContext) -> list[Patch]:
    """How modules and tensors move."""
    _recorders[:] = [context.recorder]
    mixed = "It refuses to mix a real tensor and fake data."
    return [
        Patch(
            target="torch.nn:Module._apply", phase=Phase.TRAINING, replacement=_apply,
            reason="It sets `param.data`, which cannot hold fake data on a real parameter.",
            source="torch/nn/modules/module.py, `Module._apply`",
        ),
        Patch(
            target="torch:Tensor.data", phase=Phase.TRAINING, replacement=property(_data.__get__, _set_data),
            reason=mixed, source="torch/csrc/autograd/variable.cpp, `VariableHooks::set_data`",
        ),
        Patch(
            target="torch:Tensor._make_subclass", phase=Phase.TRAINING, replacement=staticmethod(_make_subclass),
            reason=mixed, source="torch/csrc/autograd/python_variable.cpp, `THPVariable_make_subclass`",
        ),
        Patch(
            target="torch:Tensor.as_subclass", phase=Phase.TRAINING, replacement=_as_subclass,
            reason=mixed, source="torch/csrc/autograd/python_variable.cpp, `THPVariable_as_subclass`",
        ),
        Patch(
            target="torch:Tensor.__new__", phase=Phase.TRAINING, replacement=staticmethod(_new_of_class),
            reason="Under a dispatch mode the new tensor has a Python object already, which is not of the subclass.",
            source="torch/csrc/autograd/python_variable.cpp, `THPVariable_NewWithVar`",
        ),
        *lazy_modules.patches(_become),
    ]  # fmt: skip


def _apply(self: torch.nn.Module, fn: Callable[[Any], Any], recurse: bool = True) -> torch.nn.Module:
    """`Module._apply`, which keeps every parameter the same object when it moves between real and fake."""
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
        if lazy_modules.is_lazy(parameter):
            lazy_modules.record_move(parameter, fn)
        else:
            _move(parameter, fn)
    _apply_to_buffers(module, fn, done)
    return module


def _apply_to_buffers(module: torch.nn.Module, fn: Callable[[Any], Any], done: dict[int, Any]) -> None:
    for name, buffer in module._buffers.items():
        if lazy_modules.is_lazy(buffer):
            lazy_modules.record_move(buffer, fn)
        elif buffer is not None:
            known = done.get(id(buffer))
            if known is None:
                known = (fn(buffer), buffer)  # with the old buffer, or another object could get its id
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
    """Give `tensor` the content of `moved`, in place; attributes that a script has set on it stay."""
    if moved is tensor:
        return
    if isinstance(moved, FakeTensor) == isinstance(tensor, FakeTensor):
        # The test of nn/modules/module.py, `Module._apply`: compatible types set `param.data`, others are swapped.
        if torch._has_compatible_shallow_copy_type(tensor, moved) or not is_traceable_wrapper_subclass(moved):
            _data.__set__(tensor, moved)
        else:  # a wrapper subclass, such as a DTensor on `meta`: `Module._apply` swaps it, too
            is_param = isinstance(tensor, torch.nn.Parameter)
            moved = torch.nn.Parameter(moved, tensor.requires_grad) if is_param else moved
            _swap_slots(tensor, moved)
            _swap(tensor, moved)
        return
    requires_grad, is_param = tensor.requires_grad, isinstance(tensor, torch.nn.Parameter)
    attached = {name: value for name, value in vars(tensor).items() if not _is_fake_attribute(name)}
    if isinstance(moved, FakeTensor):
        kind = _fake_class(type(tensor), moved)
        moved = moved.detach().requires_grad_(requires_grad)
        if is_param:
            moved._is_param = True
    else:
        kind = _plain_classes.get(type(tensor), torch.nn.Parameter if is_param else torch.Tensor)
        moved = torch.nn.Parameter(moved, requires_grad) if is_param else moved.detach().requires_grad_(requires_grad)
    _swap(tensor, moved)
    tensor.__class__ = kind
    tensor.__dict__.update(attached)


def _swap(first: Any, second: Any) -> None:
    # As `swap_tensors` of torch/utils/__init__.py, but weak references are allowed: they should follow the object.
    first.__class__, second.__class__ = second.__class__, first.__class__
    first.__dict__, second.__dict__ = second.__dict__, first.__dict__
    torch._C._swap_tensor_impl(first, second)


def _swap_slots(first: Any, second: Any) -> None:
    """Attributes of two objects of one class that are not in their `__dict__`."""
    names = {name for kind in type(first).__mro__ for name in vars(kind).get("__slots__", ())}
    for name in names - {"__dict__", "__weakref__"}:
        ours, theirs = getattr(first, name), getattr(second, name)
        setattr(first, name, theirs)
        setattr(second, name, ours)


def _fake_class(kind: type, like: FakeTensor) -> type:
    """The class of a fake tensor that was of class `kind`: a subclass of its own if a library or script defined it."""
    kind = _plain_classes.get(kind, kind)
    if kind in (torch.Tensor, torch.nn.Parameter) or issubclass(kind, FakeTensor):
        return FakeTensor
    if getattr(kind, "__torch_dispatch__", None) not in _NO_DISPATCH:
        return FakeTensor
    return _fake_subclass(kind, like)


def _fake_subclass(kind: type, like: FakeTensor) -> type:
    """A class that has the attributes which make `like` a fake tensor: libraries swap the `__dict__` of an image."""
    made = _fake_classes.get((kind, like.fake_device))
    if made is None:
        above = [_fake_subclass(base, like) for base in kind.__bases__ if issubclass(base, torch.Tensor)]
        between = (_KeepClass,) if torch.Tensor in kind.__bases__ else ()
        bases = (FakeTensor,) if kind is torch.Tensor else (kind, *between, *above)
        more = {name: value for name, value in vars(like).items() if _is_fake_attribute(name) and name != "_is_param"}
        more["__torch_dispatch__"] = FakeTensor.__torch_dispatch__
        made = _fake_classes[kind, like.fake_device] = type(kind)(kind.__name__, bases, more)
        _plain_classes[made] = kind
    return made


@contextlib.contextmanager
def as_plain_fake_tensors(values: Any) -> Iterator[None]:
    """Inside, fake tensors in `values` have no library's class, whose methods a meta kernel would call."""
    found = (tensor for tensor in _tensors(values) if is_library_subclass(type(tensor)))
    subclassed = {id(tensor): (tensor, type(tensor)) for tensor in found}
    for tensor, _ in subclassed.values():
        tensor.__class__ = _fake_subclass(torch.Tensor, tensor)
    try:
        yield
    finally:
        for tensor, kind in subclassed.values():
            tensor.__class__ = kind


def is_library_subclass(kind: type) -> bool:
    """Whether fake tensors of this class have a library's or a script's methods."""
    return _plain_classes.get(kind, torch.Tensor) is not torch.Tensor


def _tensors(values: Any) -> Iterator[Any]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)


def _is_fake_attribute(name: str) -> bool:
    return name in _FAKE_ATTRIBUTES or "_memo" in name


def _make_subclass(*args: Any, **kwargs: Any) -> Any:
    """`Tensor._make_subclass`; for fake data a fake tensor of that class, as libraries make of quantized weights."""
    kind, data, *rest = args
    if not isinstance(data, FakeTensor):
        return _subclass(_plain_classes.get(kind, kind), data, *rest, **kwargs)
    made = data.detach().requires_grad_(rest[0] if rest else kwargs.get("require_grad", False))
    if issubclass(kind, torch.nn.Parameter):
        made._is_param = True
    made.__class__ = _fake_class(kind, made)
    return made


def _as_subclass(self: Any, cls: type) -> Any:
    """`Tensor.as_subclass`; for fake data a fake tensor of that class, as images and volumes of libraries are."""
    if not isinstance(self, FakeTensor):
        return _view_as(self, _plain_classes.get(cls, torch.Tensor if cls is FakeTensor else cls))
    with torch._C.DisableTorchFunctionSubclass():
        made: Any = torch.ops.aten.alias.default(self)
    kind = _plain_classes.get(cls, cls)
    made.__class__ = _fake_subclass(kind, made) if kind is torch.Tensor else _fake_class(kind, made)
    if type(made) is not FakeTensor:
        for name in list(filter(_is_fake_attribute, vars(made))):
            del vars(made)[name]
    return made


def _new_of_class(*args: Any, **kwargs: Any) -> Any:
    """`Tensor.__new__`; a subclass without one of its own comes to it: `class Scores(torch.Tensor)`, `Scores(x)`.

    Dynamo compares its signature with one of another name: torch/_dynamo/polyfills/tensor.py, `tensor_pynew`.
    """
    cls, *values = args
    made = _new(torch.Tensor, *values, **kwargs)
    return made if cls is torch.Tensor else _as_subclass(made, cls)


def _set_data(tensor: Any, value: torch.Tensor) -> None:
    """`tensor.data = value`, also between the CPU and the fake GPU."""
    if isinstance(value, FakeTensor) != isinstance(tensor, FakeTensor):
        _become(tensor, value)
    else:
        _data.__set__(tensor, value)
        if getattr(tensor, "_is_param", False):
            for recorder in _recorders:
                recorder.classify(tensor, "parameter")
