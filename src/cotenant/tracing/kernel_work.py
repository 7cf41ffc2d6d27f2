"""Counts the kernels of an optimizer step: FLOPs of products, bytes that are read and written, and how many there are.

An operator counts as one kernel; one over lists of tensors as the launches of `multi_tensor_apply`. Views launch none.
Temporary copies and reductions inside an operator are left out. Only the first GPU is counted, and only the first two
steps, in which a step is as it repeats.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch._ops import OpOverload

from cotenant.core.trace import KernelGroup, KernelKind

COUNTED_STEPS = 2
"""The second step is taken, since the first allocates gradients and states; the first where there is no second."""

LIST_TENSORS = 48
LIST_ELEMENTS = 320 * 65536
"""Tensors and elements of one launch over lists. Source: ATen/native/cuda/MultiTensorApply.cuh, depth 3."""

_NO_KERNEL = {
    "aten::empty", "aten::empty_like", "aten::empty_strided", "aten::new_empty", "aten::new_empty_strided",
    "aten::resize_", "aten::set_", "aten::_unsafe_view", "aten::_reshape_alias", "aten::lift_fresh",
    "aten::_local_scalar_dense", "aten::record_stream", "aten::is_pinned", "prim::device",
}  # fmt: skip
_LOOKUPS = {"aten::embedding", "aten::index_select", "aten::gather", "aten::index", "aten::_embedding_bag"}
"""They read as many elements of their table as they write."""
_PRODUCTS = {
    "aten::mm": 0, "aten::bmm": 0, "aten::mv": 0, "aten::_int_mm": 0, "aten::_scaled_mm": 0, "aten::_grouped_mm": 0,
    "aten::addmm": 1, "aten::baddbmm": 1, "aten::addbmm": 1, "aten::addmv": 1, "aten::_addmm_activation": 1,
}  # fmt: skip
"""Matrix products, and which argument is the left matrix."""
_ATTENTION = {
    "aten::_scaled_dot_product_flash_attention": -2,
    "aten::_scaled_dot_product_efficient_attention": -2,
    "aten::_scaled_dot_product_cudnn_attention": -2,
    "aten::_flash_attention_forward": -3,
    "aten::_efficient_attention_forward": -3,
}
"""Fused attention, and the dimension of its keys' length. The backward pass has five products in place of two."""
_RNNS = {"aten::_cudnn_rnn": 1.0, "aten::_cudnn_rnn_backward": 2.0}

Work = tuple[KernelKind, float, int]
"""Kind, FLOPs, and kernels, of a call."""
_Rule = Callable[[Any, Any], Work]


class KernelCounter:
    """The kernels of the first steps, by step."""

    def __init__(self) -> None:
        self._steps: dict[int, Counter[tuple[KernelKind, torch.dtype | str, float, int, int]]] = {}
        self._rules: dict[OpOverload, tuple[_Rule | None, bool]] = {}  # the rule, and whether it looks something up

    def count(self, step: int, func: OpOverload, args: Any, out: Any) -> None:
        """Count a call of an operator on the GPU."""
        try:
            rule, is_lookup = self._rules[func]
        except KeyError:
            rule, is_lookup = self._rules[func] = _rule_of(func), func.name().partition(".")[0] in _LOOKUPS
        if rule is None:
            return
        kind, flops, kernels = rule(args, out)
        read = written = results = 0
        dtype: torch.dtype | str = ""
        for tensor in _tensors(args):
            read += tensor.numel() * tensor.itemsize
        for tensor in _tensors((out,)):
            numel = tensor.numel()
            results += numel
            written += numel * tensor.itemsize
            dtype = dtype or tensor.dtype
        if not written:  # over lists in place: all are read and written, about half of them both
            written, results = read // 2, read // 8
        if is_lookup:
            read = written
        if kernels < 1:
            return
        key = (kind, dtype, flops / kernels, (read + written) // kernels, results // kernels)
        self._steps.setdefault(step, Counter())[key] += kernels

    def counted(self, step: int) -> Counter[Any]:
        """What was counted in a step so far; to be subtracted from what will be."""
        return Counter(self._steps.get(step, ()))

    def count_again(self, step: int, kernels: Counter[Any]) -> None:
        """Count kernels once more, of work that is not computed again."""
        self._steps.setdefault(step, Counter()).update(kernels)

    def groups(self, steps: int) -> tuple[KernelGroup, ...]:
        """The kernels of the last counted step that is complete after `steps`, those with most bytes first."""
        found = self._steps.get(min(steps, COUNTED_STEPS) - 1) or self._steps.get(0) or Counter()
        groups = [
            KernelGroup(kind, str(dtype).removeprefix("torch."), count, flops, nbytes, results)
            for (kind, dtype, flops, nbytes, results), count in found.items()
        ]
        return tuple(sorted(groups, key=lambda group: (-group.bytes * group.times, group)))


def _tensors(values: Iterable[Any]) -> Iterable[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            if value.layout is torch.strided:
                yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)


def _rule_of(func: OpOverload) -> _Rule | None:
    """How a call of `func` is counted; None if it launches no kernel."""
    name = func.name().partition(".")[0]
    returns = func._schema.returns
    if name in _NO_KERNEL or any(one.alias_info is not None and not one.alias_info.is_write for one in returns):
        return None
    if name in _PRODUCTS:
        return _product(_PRODUCTS[name])
    if name.startswith(("aten::_foreach_", "aten::_fused_")):
        return _over_lists
    if name in _ATTENTION:
        length = _ATTENTION[name]
        return lambda args, _out: ("product", 4.0 * args[0].numel() * args[1].shape[length], 1)
    forward = name.removesuffix("_backward").replace("_attention_backward", "_attention_forward")
    forward = forward if forward in _ATTENTION else f"{forward}_forward"
    if name.endswith("_backward") and forward in _ATTENTION:
        length = _ATTENTION[forward]
        return lambda args, _out: ("product", 10.0 * args[1].numel() * args[2].shape[length], 1)
    special = {"aten::convolution": _convolution, "aten::convolution_backward": _convolution_backward}.get(name)
    if special is None and name in _RNNS:
        return _rnn(_RNNS[name])
    return special or _elementwise


def _elementwise(_args: Any, _out: Any) -> Work:
    return ("memory", 0.0, 1)


def _over_lists(args: Any, _out: Any) -> Work:
    lists = [arg for arg in args if isinstance(arg, (list, tuple)) and arg and isinstance(arg[0], torch.Tensor)]
    if not lists:
        return ("memory", 0.0, 1)
    elements = sum([tensor.numel() for tensor in lists[0]])
    return ("memory", 0.0, max(math.ceil(len(lists[0]) / LIST_TENSORS), math.ceil(elements / LIST_ELEMENTS)))


def _product(left: int) -> _Rule:
    return lambda args, out: ("product", 2.0 * out.numel() * args[left].shape[-1], 1)


def _convolution(args: Any, out: Any) -> Work:
    return ("product", _convolution_flops(args[0], args[1], out, transposed=args[6]), 1)


def _convolution_backward(args: Any, _out: Any) -> Work:
    gradients = sum(args[10][:2])
    flops = _convolution_flops(args[1], args[2], args[0], transposed=args[7])
    return ("product", gradients * flops, max(1, gradients))


def _convolution_flops(x: Any, weight: Any, result: Any, *, transposed: bool) -> float:
    return 2.0 * (x if transposed else result).numel() * math.prod(weight.shape[1:])


def _rnn(passes: float) -> _Rule:
    def rule(args: Any, _out: Any) -> Work:
        rows = args[0].numel() // args[0].shape[-1]
        return ("product", passes * 2.0 * rows * sum([weight.numel() for weight in args[1]]), 1)

    return rule
