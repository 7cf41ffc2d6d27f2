"""Errors for tensors of several devices in one call, as PyTorch's CUDA build raises them.

Meta kernels know no devices, and `FakeTensorMode` lets CPU scalars pass where a GPU does not. Three rules cover what
scripts call: most kernels want all tensors on one device; element-wise ones take 0-d CPU tensors beside CUDA tensors,
but do not write to them; indices may be on the CPU, or where the indexed tensor is.

Source: PyTorch 2.13, aten/src/ATen/native/native_functions.yaml, `device_check`;
torchgen/dest/register_dispatch_key.py, `gen_device_check`; aten/src/ATen/TensorIterator.cpp,
`TensorIteratorBase::compute_types`. Not checked: operators of other libraries, and generators, since a generator that
comes to the dispatch mode is a new object, which does not know that it stands for a GPU's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor

from cotenant.tracing.operators.registry import Args, Kwargs

DeviceCheck = Callable[[OpOverload, Args, Kwargs], None]

# Kernels whose generated wrapper compares the devices of all tensors: `device_check` is ExactSame.
SAME_DEVICE = frozenset(
    """
    _cdist_forward _embedding_bag _embedding_bag_forward_only _fused_adagrad_ _fused_adam_ _fused_adamw_
    _fused_rms_norm _fused_sgd_ _grouped_mm _int_mm _linalg_solve_ex _prelu_kernel
    _scaled_dot_product_cudnn_attention _scaled_dot_product_efficient_attention
    _scaled_dot_product_flash_attention _scaled_mm _sparse_addmm _sparse_coo_tensor_with_dims_and_tensors
    _sparse_mm _thnn_fused_gru_cell _thnn_fused_lstm_cell _weight_norm_interface addbmm addmm addmv addr baddbmm
    bincount bmm bucketize cat clamp clamp_max clamp_min dot embedding equal gather gcd grid_sampler_2d
    grid_sampler_3d huber_loss igamma igammac index_add index_copy index_reduce index_select isin lcm
    linalg_cross linalg_lu_solve linalg_solve_triangular logaddexp logaddexp2 masked_scatter masked_select mm
    multi_margin_loss multilabel_margin_loss_forward mv native_batch_norm native_group_norm native_layer_norm
    nextafter nll_loss2d_forward nll_loss_forward normal put scatter scatter_add scatter_reduce searchsorted
    stack take triangular_solve vdot
    """.split()  # noqa: SIM905 - a name a line would be a page
)
# Kernels over `TensorIterator`, which CPU scalars may enter.
ELEMENTWISE = frozenset(
    """
    add atan2 bitwise_and bitwise_left_shift bitwise_or bitwise_right_shift bitwise_xor copysign div eq
    floor_divide fmax fmin fmod ge gt heaviside hypot le lerp logical_and logical_or logical_xor lt maximum
    minimum mul ne pow remainder rsub soft_margin_loss sub where xlogy
    """.split()  # noqa: SIM905
)
# ... and those that CPU scalars may not enter. `smooth_l1_loss` and `lerp` by a number fail in the kernel
# (aten/src/ATen/native/cuda/Loops.cuh).
NO_CPU_SCALARS = frozenset(
    ("addcdiv", "binary_cross_entropy", "index_fill", "lerp.Scalar", "mse_loss", "smooth_l1_loss")
)
_INDEXED = frozenset(("index", "_unsafe_index"))
_WRITTEN_BY_INDEX = frozenset(("index_put", "_index_put_impl", "_unsafe_index_put"))
# These make their result where the first operand is, so that it cannot be a CPU scalar.
_LIKE_FIRST = frozenset(("logical_and", "logical_or", "logical_xor", "soft_margin_loss"))


def check_for(func: OpOverload) -> DeviceCheck | None:
    """What `func` wants of the devices of its arguments; None: nothing, or nothing that is known here."""
    if func.namespace != "aten":
        return None
    name = func._opname
    if name in SAME_DEVICE:
        return _check_same
    if name.startswith("_foreach_") and "copy" not in name:
        return _check_lists
    name = name.rstrip("_")
    if name in SAME_DEVICE:
        return _check_same
    if name in _INDEXED:
        return _check_index
    if name in _WRITTEN_BY_INDEX:
        return _check_index_put
    if name == "convolution":
        return _check_convolution
    if name == "masked_fill":
        return _check_masked_fill
    if name == "addcmul":
        return _check_addcmul
    if name in NO_CPU_SCALARS or f"{name}.{func._overloadname}" in NO_CPU_SCALARS:
        return _check_without_scalars
    return _check_elementwise if name in ELEMENTWISE else None


def check_recurrent_layer(x: torch.Tensor, hidden: tuple[torch.Tensor, ...], params: Any) -> None:
    """Source: aten/src/ATen/native/RNN.cpp, `check_attributes`."""
    for kind, tensors in (("hidden", hidden), ("parameter", params)):
        for tensor in tensors:
            if tensor.device != x.device:
                raise RuntimeError(
                    f"Input and {kind} tensors are not at the same device, found input tensor at {x.device} and "
                    f"{kind} tensor at {tensor.device}"
                )


def check_attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
    """Source: aten/src/ATen/native/transformers/attention.cpp, `validate_sdpa_input`."""
    if not query.device == key.device == value.device:
        raise RuntimeError(
            "Expected query, key, and value to have the same device type, but got query.device: "
            f"{query.device} key.device: {key.device} and value.device: {value.device} instead."
        )


def _device_of(value: Any) -> torch.device | None:
    """The device of a tensor, without the dispatcher; None for what is no tensor of data."""
    if isinstance(value, FakeTensor):
        device = value.fake_device
    elif isinstance(value, torch.Tensor):
        device = value.device
    else:
        return None
    return None if device.type == "meta" else device


def _mixes(values: Any) -> bool:
    """Whether tensors among `values`, and in lists among them, are on several devices."""
    first = None
    for value in values:
        if isinstance(value, (list, tuple)):
            devices = [device for item in value if (device := _device_of(item)) is not None]
        else:
            device = _device_of(value)
            devices = [] if device is None else [device]
        for device in devices:
            if first is None:
                first = device
            elif device != first:
                return True
    return False


def _named(func: OpOverload, args: Args, kwargs: Kwargs) -> Iterator[tuple[str, Any]]:
    """Tensors of a call and the names of their parameters, in the schema's order."""
    for position, parameter in enumerate(func._schema.arguments):
        value = args[position] if position < len(args) else kwargs.get(parameter.name)
        for item in value if isinstance(value, (list, tuple)) else (value,):
            if _device_of(item) is not None:
                yield parameter.name, item


def _check_same(func: OpOverload, args: Args, kwargs: Kwargs) -> None:
    if not _mixes((*args, *kwargs.values())):
        return
    common = None
    for name, tensor in _named(func, args, kwargs):
        device = _device_of(tensor)
        common = common or device
        if device != common:
            overload = "" if func._overloadname == "default" else f"_{func._overloadname}"
            raise RuntimeError(
                f"Expected all tensors to be on the same device, but got {name} is on {device}, different from other "
                f"tensors on {common} (when checking argument in method wrapper_CUDA_{func._opname}{overload})"
            )


def _several_devices(*devices: torch.device | None) -> RuntimeError:
    first, second = sorted({str(device) for device in devices}, reverse=True)[:2]
    return RuntimeError(
        f"Expected all tensors to be on the same device, but found at least two devices, {first} and {second}!"
    )


def _check_elementwise(func: OpOverload, args: Args, kwargs: Kwargs) -> None:
    if _mixes((*args, *kwargs.values())):
        _compare([tensor for _, tensor in _named(func, args, kwargs)], func, takes_scalars=True)


def _check_without_scalars(func: OpOverload, args: Args, kwargs: Kwargs) -> None:
    if _mixes((*args, *kwargs.values())):
        tensors = [tensor for _, tensor in _named(func, args, kwargs)]
        if func._opname.startswith("index_fill"):
            tensors = tensors[:2]  # the value is read by `item`
        _compare(tensors, func, takes_scalars=False)


def _compare(tensors: list[Any], func: OpOverload, *, takes_scalars: bool) -> None:
    common = next((device for tensor in tensors if (device := _device_of(tensor)) and device.type != "cpu"), None)
    if common is None:
        return
    is_written = func._opname.endswith("_") or func._opname in _LIKE_FIRST
    for position, tensor in enumerate(tensors):
        device = _device_of(tensor)
        is_scalar = takes_scalars and device is not None and device.type == "cpu" and tensor.dim() == 0
        if device != common and not (is_scalar and not (is_written and position == 0)):
            raise _several_devices(common, device)


def _check_lists(func: OpOverload, args: Args, kwargs: Kwargs) -> None:
    if not _mixes(args):
        return
    takes_scalars = "addc" not in func._opname
    lists = [arg for arg in args if isinstance(arg, (list, tuple)) and arg and isinstance(arg[0], torch.Tensor)]
    for operands in zip(*lists, strict=False):
        if _mixes(operands):
            _compare(list(operands), func, takes_scalars=takes_scalars)


def _check_addcmul(func: OpOverload, args: Args, kwargs: Kwargs) -> None:
    if not _mixes(args):
        return
    common = next(device for arg in args if (device := _device_of(arg)) and device.type != "cpu")
    for name, tensor in zip(("self", "tensor1"), args, strict=False):
        if _device_of(tensor) != common and tensor.dim() == 0:
            raise RuntimeError(
                f"CPU Scalar support for {name} argument is not supported when calling addcmul on CUDA tensors."
            )
    _compare(list(args[:3]), func, takes_scalars=True)


def _check_index(func: OpOverload, args: Args, kwargs: Kwargs) -> None:
    # aten/src/ATen/native/IndexingUtils.h, `checkIndexTensorTypes`, and TensorAdvancedIndexing.cpp, `make_info`: CPU
    # indices are copied to where the indexed tensor is.
    home = _device_of(args[0])
    for index in args[1]:
        device = _device_of(index)
        if device is not None and device.type != "cpu" and device != home:
            raise RuntimeError(f"indices should be either on cpu or on the same device as the indexed tensor ({home})")


def _check_index_put(func: OpOverload, args: Args, kwargs: Kwargs) -> None:
    # TensorAdvancedIndexing.cpp, `_index_put_impl_`: indices are copied in both directions, and 0-d values too.
    home, device = _device_of(args[0]), _device_of(args[2])
    if device != home and args[2].dim():
        raise _several_devices(home, device)


def _check_masked_fill(func: OpOverload, args: Args, kwargs: Kwargs) -> None:
    # aten/src/ATen/native/cuda/Indexing.cu, `masked_fill__cuda`
    home, mask = _device_of(args[0]), _device_of(args[1])
    if mask != home:
        raise RuntimeError(
            f"expected self and mask to be on the same device, but got mask on {mask} and self on {home}"
        )
    value = _device_of(args[2])
    if value is not None and value != home and value.type != "cpu":
        raise RuntimeError("masked_fill_: Expected inputs to be on same device")


def _check_convolution(func: OpOverload, args: Args, kwargs: Kwargs) -> None:
    # aten/src/ATen/native/Convolution.cpp, `check_input_same_type_as_parameters`
    home = _device_of(args[0])
    for kind, tensor in (("weight", args[1]), ("bias", args[2])):
        if tensor is not None and _device_of(tensor) != home:
            raise RuntimeError(
                f"Input type ({_legacy_type(args[0])}) and {kind} type ({_legacy_type(tensor)}) should be the same"
            )


def _legacy_type(tensor: torch.Tensor) -> str:
    device = _device_of(tensor)
    kind = torch.empty((), dtype=tensor.dtype).type().rpartition(".")[2]
    return f"torch.{'cuda.' if device is not None and device.type == 'cuda' else ''}{kind}"
