"""Values of small tensors on a null GPU, where nothing is computed: masks, labels and lengths of a batch, constants.

They are the values that a trace knows (`assumptions.known_values`): what the script copied to the GPU, or filled with a
constant, and what operators on known values make of it, computed on the CPU. So a mask of ones is ones when a library
asks whether it masks anything, and copies to the host are what a GPU would give.

PyTorch runs its own kernels all the same, for their memory. What they made is seen at the dispatch key between autograd
and the kernels: a dispatch mode would see it too, but it disables `torch.compile` and some shortcuts of autograd.
Values belong to a storage, and end with it. What writes to a storage counts up the version of its tensor, and a tensor
of another version than the value's is unknown; so is everything after a kernel that is not PyTorch's own.
Not followed: a tensor and its `.data`, which have a version each.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import torch
from torch._ops import OpOverload

from cotenant.tracing.assumptions import booleans
from cotenant.tracing.assumptions.known_values import (
    ALL_FOUND,
    EVEN_ROUTING,
    KnownValues,
    assumption_of,
    may_have_values,
)
from cotenant.tracing.assumptions.moe_routing import even_choices, is_routing
from cotenant.tracing.cuda_build.driver import null_driver
from cotenant.tracing.patches.registry import KernelPatch, PatchTable, Phase

_BELOW_AUTOGRAD = "ADInplaceOrView"
_EVERY_DEVICE = torch._C.DispatchKey.CompositeExplicitAutograd
_NO_DISPATCH = torch.Tensor.__torch_dispatch__
_AFTER = torch._C._after_ADInplaceOrView_keyset
_NOT_AFTER = torch._C._dispatch_keyset_full() - _AFTER
_VERSION_ATTRIBUTE = "_cotenant_version"
_MAX_RANGE = 1 << 16
_SOURCE = "tools/autograd/gen_inplace_or_view_type.py"
_REASON = "The null GPU computes nothing."

_COMPUTED = (
    "abs", "add", "all", "amax", "amin", "any", "argmax", "argmin", "bincount", "bitwise_and", "bitwise_left_shift",
    "bitwise_not", "bitwise_or", "bitwise_right_shift", "bitwise_xor", "cat", "clamp", "clamp_max", "clamp_min",
    "clone", "constant_pad_nd", "count_nonzero", "cumsum", "div", "eq", "flip", "full_like", "gather", "ge", "gt",
    "index", "index_select", "isin", "isinf", "isnan", "isneginf", "isposinf", "le", "logical_and", "logical_not",
    "logical_or", "logical_xor", "lt",
    "masked_fill", "max", "maximum", "min", "minimum", "mul", "ne", "neg", "new_full", "new_ones", "new_zeros",
    "nonzero", "ones_like", "prod", "remainder", "repeat", "roll", "rsub", "scatter", "sign", "sort", "stack", "sub",
    "sum", "tril", "triu", "where", "zeros_like", "_to_copy",
)  # fmt: skip
"""Operators that make tensors. Of others the result is unknown."""

_WRITTEN = (
    "add_", "bitwise_and_", "bitwise_not_", "bitwise_or_", "bitwise_xor_", "clamp_", "clamp_max_", "clamp_min_",
    "copy_", "div_", "eq_", "fill_", "ge_", "gt_", "index_copy_", "index_fill_", "index_put_", "le_", "logical_and_",
    "logical_not_", "logical_or_", "logical_xor_", "lt_", "masked_fill_", "masked_scatter_", "mul_", "ne_", "neg_",
    "remainder_", "scatter_", "scatter_add_", "sub_", "tril_", "triu_", "zero_",
)  # fmt: skip
"""Operators that write to their first argument. What others wrote to is unknown."""

_FILLED = ("fill_", "zero_", "copy_")
"""What factories call for the tensor that they make: below autograd already, where only the kernel itself is seen."""

_INNER = (
    "all", "any", "bitwise_and", "bitwise_left_shift", "bitwise_not", "bitwise_or", "bitwise_right_shift",
    "bitwise_xor", "cumsum", "eq", "ge", "gt", "le", "lt", "ne",
)  # fmt: skip
"""Computed operators that others call below autograd, or that pass over `ADInplaceOrView` (seen with torch 2.13)."""

_FACTORIES = ("arange", "full", "ones", "zeros")
"""Factories that are followed themselves where kernels are not seen."""

_READ = torch.ops.aten._local_scalar_dense.default
_ARANGE, _NONZERO = torch.ops.aten.arange.start_out, torch.ops.aten.nonzero.default
_TOP = torch.ops.aten.topk.default
_REPEAT = torch.ops.aten.repeat_interleave.Tensor
_RUNNING = ("native_batch_norm", "cudnn_batch_norm", "_batch_norm_with_update")
"""Operators that write to the running statistics, their fourth and fifth argument, and do not count up versions."""


_installed: list[PatchTable] = []  # kernels end with the table


class KnownTensors(KnownValues):
    """Values of real tensors.

    `driver`: the library of the null GPU. `assumed` is called where a size depends on a mask that is not known.
    """

    def __init__(self, driver: Any, assumed: Callable[[], object] = lambda: None) -> None:
        super().__init__()
        self._driver, self._assumed = driver, assumed
        self._sees_kernels = hasattr(torch.library, "get_kernel")

    @staticmethod
    def is_on_gpu(value: Any) -> bool:
        """Whether it is a tensor in the memory of a GPU, or some; not one that a compiler traces, or that wraps others.

        These have no address of their own, and what they do to tensors that have one is seen there.
        """
        if isinstance(value, (tuple, list)):
            return bool(value) and all(map(KnownTensors.is_on_gpu, value))
        if (
            not isinstance(value, torch.Tensor)
            or type(value).__torch_dispatch__ is not _NO_DISPATCH
            or not value.is_cuda
        ):
            return False
        return value.layout is torch.strided and not torch._is_functional_tensor(value)

    def patches(self) -> list[KernelPatch]:
        """Kernels for the operators of which results are known; with `get_kernel` of newer versions of torch also for
        those that factories call, and for `nonzero`; in older ones for factories themselves.
        """
        below_autograd = [
            *((func, self._computing(func)) for name in _COMPUTED for func in _overloads(name)),
            *((func, self._writing(func)) for name in _WRITTEN for func in _overloads(name)),
            *((func, self._updating(func)) for name in _RUNNING for func in _overloads(name)),
        ]
        below_autograd.append((_TOP, self._routing(_TOP)))
        found = [_patch(func, kernel, _BELOW_AUTOGRAD) for func, kernel in below_autograd]
        if self._sees_kernels:
            found += [_patch(func, self._filling(func), "CUDA") for name in _FILLED for func in _overloads(name)]
            found += [
                _patch(func, self._computing_inside(func), "CUDA") for name in _INNER for func in _overloads(name)
            ]
            found.append(_patch(_REPEAT, self._repeating(_REPEAT), "CUDA"))
            found.append(_patch(_ARANGE, self._ranging(_ARANGE), "CUDA"))
            found.append(_patch(_NONZERO, self._counting(_NONZERO), "CUDA"))
        else:
            found += [
                _patch(func, self._making(func), "CUDA")
                for name in _FACTORIES
                for func in _overloads(name, factories=True)
            ]
        return found

    def _computing(self, func: OpOverload) -> Callable[..., Any]:
        def call(keyset: Any, *args: Any, **kwargs: Any) -> Any:
            out = _redispatch(func, keyset, args, kwargs)
            if self.is_on_gpu(out):
                self._follow(func, args, kwargs, out)
            elif func._opname == "_to_copy":
                self._copy_to_host(args[0], out)
            return out

        return call

    def _making(self, func: OpOverload) -> Callable[..., Any]:
        """Of a factory that has one implementation for all devices, which can be called by its key."""

        def call(keyset: Any, *args: Any, **kwargs: Any) -> Any:
            out = func._op_dk(_EVERY_DEVICE, *args, **kwargs)
            if self.is_on_gpu(out):
                self._follow(func, args, kwargs, out)
            return out

        return call

    def _writing(self, func: OpOverload) -> Callable[..., Any]:
        seen = self._sees_kernels and func._opname in _FILLED

        def call(keyset: Any, *args: Any, **kwargs: Any) -> Any:
            with torch._C._AutoDispatchBelowADInplaceOrView():
                _redispatch(func, keyset, args, kwargs)
                if not seen:
                    self._write_to(func, args, kwargs)
                is_known = self.is_on_gpu(args[0]) and self._values(args[0]) is not None
            if not args[0].is_inference():
                torch._C._increment_version([args[0]])
            if is_known:  # the version has changed, and not the value
                self._stamp(args[0])
            return args[0]

        return call

    def _filling(self, func: OpOverload) -> Callable[..., Any]:
        kernel = torch.library.get_kernel(func, "CUDA")

        def call(keyset: Any, *args: Any, **kwargs: Any) -> Any:
            kernel.call_boxed(keyset, *args, **kwargs)
            self._write_to(func, args, kwargs)
            return args[0]

        return call

    def _computing_inside(self, func: OpOverload) -> Callable[..., Any]:
        kernel = torch.library.get_kernel(func, "CUDA")

        def call(keyset: Any, *args: Any, **kwargs: Any) -> Any:
            out = kernel.call_boxed(keyset, *_with_tensors(func, args), **kwargs)
            if self.is_on_gpu(out):
                self._follow(func, args, kwargs, out)
            return out

        return call

    def _follow(self, func: OpOverload, args: Any, kwargs: Any, out: Any) -> None:
        """What is known of the new tensor `out`, and what is assumed of booleans."""
        if _in_backward():
            return
        self.propagate(func, args, kwargs, out)
        if isinstance(out, torch.Tensor) and out.dtype is torch.bool:
            booleans.propagate(func, args, out)

    def _repeating(self, func: OpOverload) -> Callable[..., Any]:
        kernel = torch.library.get_kernel(func, "CUDA")

        def call(keyset: Any, repeats: torch.Tensor, **kwargs: Any) -> Any:
            is_assumed = self.is_on_gpu(repeats) and self._values(repeats) is None
            if is_assumed:  # it reads that none is negative, and their sum
                self._assumed()
                self._set(repeats, torch.ones(repeats.shape, dtype=repeats.dtype))
            out = kernel.call_boxed(keyset, repeats, **kwargs)
            if is_assumed:
                self.forget(repeats)
            return out

        return call

    def _ranging(self, func: OpOverload) -> Callable[..., Any]:
        kernel = torch.library.get_kernel(func, "CUDA")

        def call(keyset: Any, *args: Any, out: torch.Tensor) -> Any:
            kernel.call_boxed(keyset, *args, out=out)
            if self.is_on_gpu(out) and out.numel() <= _MAX_RANGE and out.is_contiguous():
                self._set(out, torch.arange(*args, dtype=out.dtype))
            return out

        return call

    def _counting(self, func: OpOverload) -> Callable[..., Any]:
        kernel = torch.library.get_kernel(func, "CUDA")

        def call(keyset: Any, mask: torch.Tensor) -> Any:
            if not self.is_on_gpu(mask):
                return kernel.call_boxed(keyset, mask)
            known = self._values(mask)
            found = torch.ones(mask.shape, dtype=torch.bool) if known is None else known
            count = ctypes.c_int(int(found.count_nonzero()))
            self._driver.null_answer(ctypes.byref(count), ctypes.c_size_t(ctypes.sizeof(count)))
            out = kernel.call_boxed(keyset, mask)
            self._driver.null_answer(ctypes.byref(count), ctypes.c_size_t(0))
            if mask.numel() and (known is None or assumption_of(mask) == EVEN_ROUTING):
                self._assumed()
            if out.numel() <= self.max_assumed_elements and out.shape[0] == count.value:
                self.assume(out, found.nonzero(), ALL_FOUND if known is None else assumption_of(mask))
            return out

        return call

    def _routing(self, func: OpOverload) -> Callable[..., Any]:
        """Experts that a router chooses are spread evenly, as in a trace (`assumptions.moe_routing`)."""

        def call(keyset: Any, *args: Any, **kwargs: Any) -> Any:
            out = _redispatch(func, keyset, args, kwargs)
            indices = out[1]
            if self.is_on_gpu(indices) and is_routing(args, kwargs) and indices.numel() <= self.max_assumed_elements:
                self.assume(indices, even_choices(indices.shape, args[0].shape[-1]), EVEN_ROUTING)
            return out

        return call

    def _updating(self, func: OpOverload) -> Callable[..., Any]:
        def call(keyset: Any, *args: Any, **kwargs: Any) -> Any:
            for tensor in args[3:5]:
                if self.is_on_gpu(tensor):
                    self.forget(tensor)
            return _redispatch(func, keyset, args, kwargs)

        return call

    def _write_to(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        target = args[0]
        if self.is_on_gpu(target):
            if self._values(target) is None or _in_backward():
                self.forget(target)
            if not _in_backward():
                self.propagate(func, args, kwargs, target)
        elif func._opname == "copy_":
            self._copy_to_host(args[1], target)

    def _copy_to_host(self, source: Any, target: Any) -> None:
        if self.is_on_gpu(source) and isinstance(target, torch.Tensor) and target.device.type == "cpu":
            values = self._values(source)
            if values is not None:
                target.copy_(values)
            elif target.dtype is torch.bool and booleans.assumed(source) in (True, "likely"):
                target.fill_(1)

    def item(self, tensor: torch.Tensor) -> complex | float | bool | None:
        """The value of a tensor of one element on the GPU; None if it is not known."""
        values = self._values(tensor) if self.is_on_gpu(tensor) else None
        return None if values is None else values.item()

    def _values(self, tensor: Any) -> torch.Tensor | None:
        if self.is_on_gpu(tensor):
            if not may_have_values(tensor):
                return None
            version = self._version(tensor)
            if version is None or getattr(tensor.untyped_storage(), _VERSION_ATTRIBUTE, None) != version:
                return None
        return super()._values(tensor)

    def _set(self, tensor: Any, value: torch.Tensor) -> None:
        super()._set(tensor, value)
        self._stamp(tensor)

    def _stamp(self, tensor: torch.Tensor) -> None:
        setattr(tensor.untyped_storage(), _VERSION_ATTRIBUTE, self._version(tensor))

    def _version(self, tensor: torch.Tensor) -> tuple[int, int] | None:
        """What changes when a tensor is written to, or might be; None where nothing tells."""
        return None if tensor.is_inference() else (tensor._version, self._driver.null_foreign_launches())


def install() -> None:
    """Give this process the values that are known; others stay what PyTorch reads from the null GPU, zeros."""
    tensors = KnownTensors(null_driver())
    sees_kernels = hasattr(torch.library, "get_kernel")
    kernel = torch.library.get_kernel(_READ, "CUDA") if sees_kernels else None

    def item(keyset: Any, tensor: torch.Tensor) -> Any:
        known = tensors.item(tensor)
        if known is None and isinstance(booleans.assumed(tensor), bool):
            return booleans.assumed(tensor)
        if known is not None:
            return known
        return _redispatch(_READ, keyset, (tensor,), {}) if kernel is None else kernel.call_boxed(keyset, tensor)

    table = PatchTable([*tensors.patches(), _patch(_READ, item, "CUDA" if sees_kernels else _BELOW_AUTOGRAD)])
    table.apply()
    _installed.append(table)


def _patch(func: OpOverload, kernel: Callable[..., Any], key: str) -> KernelPatch:
    target = f"aten::{func._opname}" + ("" if func._overloadname == "default" else f".{func._overloadname}")
    return KernelPatch(
        target=target, phase=Phase.OPERATORS, key=key, kernel=kernel, with_keyset=True, reason=_REASON, source=_SOURCE
    )


def _with_tensors(func: OpOverload, args: tuple[Any, ...]) -> list[Any]:
    """`args` with a tensor for each number that stands for one; it has the type that the number promotes to."""
    wanted = [str(argument.type) == "Tensor" for argument in func._schema.arguments]
    if not any(is_tensor and isinstance(arg, (bool, int, float)) for is_tensor, arg in zip(wanted, args, strict=False)):
        return list(args)
    like = next(arg for arg in args if isinstance(arg, torch.Tensor))
    return [
        torch.tensor(arg, dtype=torch.result_type(like, arg))
        if is_tensor and not isinstance(arg, torch.Tensor)
        else arg
        for is_tensor, arg in zip(wanted, args, strict=False)
    ]


def _in_backward() -> bool:
    """Whether autograd computes gradients: none of them is read, and none is looked at, for `may_have_values`."""
    return torch._C._current_graph_task_id() != -1 and not torch.is_grad_enabled()


def _redispatch(func: OpOverload, keyset: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call what comes after this key."""
    if any(isinstance(arg, (bool, int, float, complex)) for arg in args):
        # A number in the place of a tensor, which `redispatch` does not take: torch/csrc/jit/python/pybind_utils.cpp,
        # `ToIValueAllowNumbersAsTensors`.
        with torch._C._ExcludeDispatchKeyGuard(_NOT_AFTER):
            return func(*args, **kwargs)
    return func.redispatch(keyset & _AFTER, *args, **kwargs)


def _overloads(operator: str, *, factories: bool = False) -> list[OpOverload]:
    """Overloads of tensors, or `factories`, that this version has; not those that write to `out` or are about names."""
    packet = getattr(torch.ops.aten, operator, None)
    found = [getattr(packet, name) for name in (packet.overloads() if packet is not None else ())]
    # TorchScript has more than the dispatcher.
    known = (func for func in found if torch._C._dispatch_has_kernel(func.name()))
    return [func for func in known if _is_followed(func._schema, factories=factories)]


def _is_followed(schema: Any, *, factories: bool) -> bool:
    types = [str(argument.type) for argument in schema.arguments]
    if any(argument.is_out for argument in schema.arguments) or any(
        "Dimname" in name or name == "str" for name in types
    ):
        return False
    return factories or any(name in ("Tensor", "List[Tensor]") for name in types[:1])
