"""Parameters and buffers that move to the GPU and back, and stay the same objects.

So an optimizer made before `.to("cuda")`, weights tied to each other, and what a script has attached to a parameter are
afterwards as they are on a GPU. A real tensor cannot hold fake data, so object and content are exchanged.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from cotenant.tracing.recorder import TraceRecorder
from cotenant.tracing.training import lazy_modules

_recorders: list[TraceRecorder] = []  # who is told that a tensor is a module's parameter or buffer
_data: Any = torch.Tensor.data
_subclass: Any = torch.Tensor._make_subclass
_view_as: Any = torch.Tensor.as_subclass
_fakes: dict[tuple[type, torch.device], type] = {}  # by a class of tensors and a GPU, the same for fake ones
_plain: dict[type, type] = {}  # the other way round
_NO_DISPATCH = (None, torch.Tensor.__torch_dispatch__, torch._C._disabled_torch_dispatch_impl)
_OF_FAKES = frozenset({"pytype", "dispatch_keys", "fake_mode", "real_tensor", "constant", "_fake_device", "_is_param"})


class _Results:
    """Results are of the class of what they were made from, which is not so of fake tensors."""

    __torch_function__ = vars(torch.Tensor)["__torch_function__"]


def install(recorder: TraceRecorder) -> None:
    """Replace how modules and tensors move, for all of the process."""
    torch.nn.Module._apply = _apply
    torch.Tensor.data = property(_data.__get__, _set_data)
    torch.Tensor._make_subclass = staticmethod(_make_subclass)
    torch.Tensor.as_subclass = _as_subclass
    lazy_modules.install(_become)
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
        if torch._has_compatible_shallow_copy_type(tensor, moved) or not is_traceable_wrapper_subclass(moved):
            _data.__set__(tensor, moved)
        else:  # a tensor made of others, such as a DTensor of shapes that gets memory: PyTorch exchanges it, too
            is_param = isinstance(tensor, torch.nn.Parameter)
            moved = torch.nn.Parameter(moved, tensor.requires_grad) if is_param else moved
            _swap_slots(tensor, moved)
            _swap(tensor, moved)
        return
    wanted, is_param = tensor.requires_grad, isinstance(tensor, torch.nn.Parameter)
    kept = {name: value for name, value in vars(tensor).items() if not _is_of_fake(name)}
    if isinstance(moved, FakeTensor):
        kind = _fake_class(type(tensor), moved)
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


def _swap_slots(first: Any, second: Any) -> None:
    """What objects of one class hold outside of their `__dict__`."""
    names = {each for kind in type(first).__mro__ for each in vars(kind).get("__slots__", ())}
    for name in names - {"__dict__", "__weakref__"}:
        ours, theirs = getattr(first, name), getattr(second, name)
        setattr(first, name, theirs)
        setattr(second, name, ours)


def _fake_class(kind: type, like: FakeTensor) -> type:
    """The class of a fake tensor that was of class `kind`: its own, if a library or script gave it methods."""
    kind = _plain.get(kind, kind)
    if kind in (torch.Tensor, torch.nn.Parameter) or issubclass(kind, FakeTensor):
        return FakeTensor
    if getattr(kind, "__torch_dispatch__", None) not in _NO_DISPATCH:
        return FakeTensor
    return _fake_subclass(kind, like)


def _fake_subclass(kind: type, like: FakeTensor) -> type:
    """A class that holds by itself what makes `like` a fake tensor: libraries exchange the `__dict__` of an image."""
    made = _fakes.get((kind, like.fake_device))
    if made is None:
        above = [_fake_subclass(each, like) for each in kind.__bases__ if issubclass(each, torch.Tensor)]
        between = (_Results,) if torch.Tensor in kind.__bases__ else ()
        bases = (FakeTensor,) if kind is torch.Tensor else (kind, *between, *above)
        more = {name: value for name, value in vars(like).items() if _is_of_fake(name) and name != "_is_param"}
        more["__torch_dispatch__"] = FakeTensor.__torch_dispatch__
        made = _fakes[kind, like.fake_device] = type(kind)(kind.__name__, bases, more)
        _plain[made] = kind
    return made


@contextlib.contextmanager
def as_plain_fake_tensors(values: Any) -> Iterator[None]:
    """Inside, fake tensors in `values` are of no class of a library's: a meta kernel would call its methods."""
    dressed = {id(each): (each, type(each)) for each in _tensors(values) if is_library_subclass(type(each))}
    for each, _ in dressed.values():
        each.__class__ = _fake_subclass(torch.Tensor, each)
    try:
        yield
    finally:
        for each, kind in dressed.values():
            each.__class__ = kind


def is_library_subclass(kind: type) -> bool:
    """Whether fake tensors of this class have methods of a library or script."""
    return _plain.get(kind, torch.Tensor) is not torch.Tensor


def _tensors(values: Any) -> Iterator[Any]:
    for each in values:
        if isinstance(each, torch.Tensor):
            yield each
        elif isinstance(each, (list, tuple)):
            yield from _tensors(each)


def _is_of_fake(name: str) -> bool:
    return name in _OF_FAKES or "_memo" in name


def _make_subclass(*args: Any, **kwargs: Any) -> Any:
    """`Tensor._make_subclass`; of fake data, a fake tensor of that class, as libraries make of quantized weights."""
    kind, data, *rest = args
    if not isinstance(data, FakeTensor):
        return _subclass(_plain.get(kind, kind), data, *rest, **kwargs)
    wanted = rest[0] if rest else kwargs.get("require_grad", False)
    made = data.detach().requires_grad_(wanted)
    if issubclass(kind, torch.nn.Parameter):
        made._is_param = True
    made.__class__ = _fake_class(kind, made)
    return made


def _as_subclass(self: Any, cls: type) -> Any:
    """`Tensor.as_subclass`; of fake data, a fake tensor of that class, as images and volumes of libraries are."""
    if not isinstance(self, FakeTensor):
        return _view_as(self, _plain.get(cls, torch.Tensor if cls is FakeTensor else cls))
    with torch._C.DisableTorchFunctionSubclass():
        made: Any = torch.ops.aten.alias.default(self)
    kind = _plain.get(cls, cls)
    made.__class__ = _fake_subclass(kind, made) if kind is torch.Tensor else _fake_class(kind, made)
    if type(made) is not FakeTensor:
        for name in list(filter(_is_of_fake, vars(made))):
            del vars(made)[name]
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
