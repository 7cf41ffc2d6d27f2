"""Results without values: PyTorch's meta kernels, `FakeTensorMode`, and a cache of what meta kernels returned.

A meta kernel takes 20 us to 5 ms, since many are written in Python, and a model calls it with the same shapes in every
layer and step. Cached are operators that make new tensors or write to their first argument only, and whose arguments
are tensors of one GPU and plain values. Views are not cached: they share the storage of what they are views of.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Iterable
from typing import Any

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from cotenant.tracing.operators.registry import Args, Kwargs, OpContext

_MAX_ENTRIES = 1 << 14  # calls; a script with more different ones than that starts over with an empty cache
_NUMBER_TYPES = frozenset((int, float, bool))
_HASHABLE_TYPES = frozenset((str, type(None), torch.dtype, torch.layout, torch.memory_format))
_IGNORED_KEYWORDS = frozenset(("device", "pin_memory", "generator"))
_REPLACES_STORAGE = ("set_", "resize")
_SHAPE_POSITION = 3  # of the first argument's shape in a key; its strides come after it
_UNCACHEABLE: Any = object()
_RETURNS_FIRST_ARGUMENT: Any = object()
_MISSING: Any = object()


def make_fake_mode() -> FakeTensorMode:
    """A `FakeTensorMode`, made without importing the compiler.

    PyTorch's constructor imports `torch._dynamo.config` for two settings, and with it the compiler, which takes 0.8 s.
    A stand-in module answers for them. Source: torch/_subclasses/fake_tensor.py, `FakeTensorMode.__init__`.
    """
    if "torch._dynamo" in sys.modules:
        return FakeTensorMode(allow_non_fake_inputs=True)
    config: Any = types.ModuleType("torch._dynamo.config")
    config.fake_tensor_cache_enabled = False
    config.fake_tensor_cache_crosscheck_enabled = False
    package: Any = types.ModuleType("torch._dynamo")
    package.__path__, package.config = [], config
    sys.modules.update({"torch._dynamo": package, "torch._dynamo.config": config})
    try:
        return FakeTensorMode(allow_non_fake_inputs=True)
    finally:
        del sys.modules["torch._dynamo"], sys.modules["torch._dynamo.config"]


def run_meta_kernel(fake: FakeTensorMode, func: OpOverload, *args: Any, **kwargs: Any) -> Any:
    """Meta tensors, as the meta kernel of `func` returns them for fake tensors.

    Does what `in_kernel_invocation_manager` of torch/_subclasses/fake_tensor.py does, whose generator-based context
    takes longer than most kernels.
    """
    # The guard restores the dispatch keys: resetting the meta key alone can leave `Dense` on, which it implies
    # (torch/_subclasses/fake_tensor.py, `in_kernel_invocation_manager`).
    with torch._C._DisableTorchDispatch(), torch._C._PreserveDispatchKeyGuard():
        before, fake.in_kernel_invocation = fake.in_kernel_invocation, True
        torch._C._set_meta_in_tls_dispatch_include(True)
        try:
            return func(*args, **kwargs)
        finally:
            fake.in_kernel_invocation = before


class MetaCache:
    """Results of operators, by shapes, strides, dtypes and plain values of the arguments."""

    def __init__(self) -> None:
        self._results: dict[tuple[Any, ...], Any] = {}
        self._cacheable: dict[OpOverload, bool] = {}

    def key_of(self, func: OpOverload, args: Args, kwargs: Kwargs, device: torch.device) -> tuple[Any, ...] | None:
        """The key of a call; None for a call that is never cached. The GPU is not part of the key."""
        cacheable = self._cacheable.get(func)
        if cacheable is None:
            cacheable = self._cacheable[func] = _is_cacheable(func)
        if not cacheable:
            return None
        # `id`: hashing an operator runs Python code, and `_cacheable` keeps the operator alive.
        parts = [id(func), torch.get_default_dtype()]
        if not _append_key(parts, args, device):
            return None
        for name, value in kwargs.items():
            if name not in _IGNORED_KEYWORDS:
                parts.append(name)
                if not _append_key(parts, (value,), device):
                    return None
        return tuple(parts)

    def find(self, ctx: OpContext, key: tuple[Any, ...], args: Args, device: torch.device) -> Any:
        """A new result of that kind on `device`; NotImplemented if the call is not cached."""
        spec = self._results.get(key, _UNCACHEABLE)
        if spec is _UNCACHEABLE:
            return NotImplemented
        if spec is _RETURNS_FIRST_ARGUMENT:
            return args[0]
        return _make_output(ctx, spec, device)

    def put(self, key: tuple[Any, ...], args: Args, out: Any) -> None:
        """Cache the result of a call, if shapes, strides and dtypes say all about it."""
        if self._results.get(key, _MISSING) is not _MISSING:
            return
        if len(self._results) >= _MAX_ENTRIES:
            self._results.clear()
        if isinstance(out, torch.Tensor) and args and out is args[0]:
            is_unchanged = key[_SHAPE_POSITION : _SHAPE_POSITION + 2] == (out.shape, out.stride())
            self._results[key] = _RETURNS_FIRST_ARGUMENT if is_unchanged else _UNCACHEABLE
            return
        storages = {tensor.untyped_storage()._cdata for tensor in _tensors(args)}
        self._results[key] = _output_spec(out, storages)


def _is_cacheable(func: OpOverload) -> bool:
    """Whether `func` only makes new tensors, or only writes to its first argument and leaves its shape."""
    if torch.Tag.inplace_view in func.tags or func._opname.startswith(_REPLACES_STORAGE):
        return False
    schema = func._schema
    written = [argument.alias_info is not None for argument in schema.arguments]
    if any(written[1:]) or not schema.returns:
        return False
    if written[:1] == [True]:
        first, result = schema.arguments[0].alias_info, schema.returns[0].alias_info
        return len(schema.returns) == 1 and first.is_write and result is not None and result.is_write
    return all(result.alias_info is None for result in schema.returns)


def _append_key(parts: list[Any], values: Iterable[Any], device: torch.device) -> bool:
    for value in values:
        cls = type(value)
        if cls is FakeTensor or issubclass(cls, FakeTensor):
            if value.fake_device != device or value.layout is not torch.strided:
                return False
            parts += (value.dtype, value.shape, value.stride())
            if value.dtype.is_complex:  # a conjugate view has the shape, strides and dtype of its base
                parts.append(value.is_conj())
        elif cls in _NUMBER_TYPES:
            parts += (cls, value)  # 1, 1.0 and True are equal, and would be one key
        elif cls in _HASHABLE_TYPES:
            parts.append(value)
        elif cls is list or cls is tuple:
            parts += (cls, len(value))
            if not _append_key(parts, value, device):
                return False
        else:
            return False
    return True


def _output_spec(out: Any, storages: set[int]) -> Any:
    """What `_make_output` needs; `_UNCACHEABLE` where an output is not simply a new tensor.

    `storages`: addresses of storages that are not new; those of outputs are added.
    """
    if isinstance(out, (list, tuple)):
        specs = [_output_spec(item, storages) for item in out]
        return _UNCACHEABLE if any(spec is _UNCACHEABLE for spec in specs) else (type(out), specs)
    if out is None:
        return None
    if type(out) is not FakeTensor or out.layout is not torch.strided or (out.dtype.is_complex and out.is_conj()):
        return _UNCACHEABLE
    storage = out.untyped_storage()
    spans = sum((size - 1) * stride for size, stride in zip(out.shape, out.stride(), strict=True)) + 1
    # A result that does not own its whole storage is a view into something, and must not be made anew.
    nbytes = spans * out.element_size() if out.numel() else 0
    if out.storage_offset() or storage._cdata in storages or storage.nbytes() != nbytes:
        return _UNCACHEABLE
    storages.add(storage._cdata)
    return out.shape, out.stride(), out.dtype


def _make_output(ctx: OpContext, spec: Any, device: torch.device) -> Any:
    if spec is None:
        return None
    if len(spec) == 3:
        shape, stride, dtype = spec
        return ctx.empty_strided(shape, stride, dtype, device)
    cls, specs = spec
    return cls([_make_output(ctx, item, device) for item in specs])


def _tensors(values: Iterable[Any]) -> Iterable[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)
