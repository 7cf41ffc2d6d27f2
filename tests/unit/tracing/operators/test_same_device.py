"""Calls with tensors of several devices: each ends as in PyTorch 2.13's CUDA build on the null GPU."""

from __future__ import annotations

from contextlib import nullcontext

import pytest

torch = pytest.importorskip("torch")

from torch._subclasses.fake_tensor import FakeTensor  # noqa: E402 - torch may be absent

from cotenant.tracing.operators import same_device  # noqa: E402
from cotenant.tracing.operators.meta_kernels import make_fake_mode  # noqa: E402

aten = torch.ops.aten
MODE = make_fake_mode()


def cpu(*shape):
    return torch.zeros(shape)


def gpu(*shape, index=0):
    return FakeTensor(MODE, torch.zeros(shape, device="meta"), torch.device("cuda", index))


def check(func, *args, **kwargs):
    checked = same_device.check_for(func)
    if checked is not None:
        checked(func, args, kwargs)


c, g, c0, g0, c1 = cpu(3), gpu(3), cpu(), gpu(), cpu(1)
C, G = cpu(3, 3), gpu(3, 3)
ANY = "Expected all tensors to be on the same device, but"
TWO = f"{ANY} found at least two devices, cuda:0 and cpu!"


@pytest.mark.parametrize(
    ("func", "args", "message"),
    [
        (aten.mm.default, (G, C), f"{ANY} got mat2 is on cpu, different from other tensors on cuda:0"),
        (aten.mm.default, (C, G), f"{ANY} got mat2 is on cuda:0, different from other tensors on cpu"),
        (aten.mm.default, (G, gpu(3, 3, index=1)), "got mat2 is on cuda:1, different from other tensors on cuda:0"),
        (aten.addmm.default, (c, G, G), f"{ANY} got mat1 is on cuda:0"),
        (aten.gather.default, (c, 0, g), "when checking argument in method wrapper_CUDA_gather"),
        (aten.scatter_.src, (g, 0, g, c), "got src is on cpu, .*method wrapper_CUDA_scatter__src"),
        (aten.index_select.default, (g, 0, c0), "got index is on cpu"),
        (aten.embedding.default, (C, g), "got indices is on cuda:0"),
        (aten.cat.default, ([g, c],), "got tensors is on cpu"),
        (aten.stack.default, ([g0, c0],), "got tensors is on cpu"),
        (aten.native_layer_norm.default, (G, [3], g, c, 1e-5), "got bias is on cpu"),
        (aten.nll_loss_forward.default, (G, c, None, 1, -100), "got target is on cpu"),
        (aten.clamp.Tensor, (g, c0), "got min is on cpu"),
        (aten._fused_adam_.default, ([g], [g], [c], [g], [], [g]), "got exp_avgs is on cpu"),
        (aten.add.Tensor, (g, c0), None),
        (aten.add.Tensor, (c0, g), None),
        (aten.add.Tensor, (g, c), TWO),
        (aten.add.Tensor, (g, c1), TWO),
        (aten.add.Tensor, (c, g0), TWO),
        (aten.add_.Tensor, (g0, c0), None),
        (aten.add_.Tensor, (c0, g0), TWO),
        (aten.logical_and.default, (g, c0), None),
        (aten.logical_and.default, (c0, g), TWO),
        (aten.lerp.Tensor, (g, g, c0), None),
        (aten.lerp.Scalar, (g, c0, 0.5), TWO),
        (aten.mse_loss.default, (g0, c0), TWO),
        (aten.where.self, (g, c0, c0), None),
        (aten.where.self, (c, g, g), TWO),
        (aten.addcmul.default, (g, g, c0), None),
        (aten.addcmul.default, (g, c0, g), "CPU Scalar support for tensor1 argument is not supported"),
        (aten.addcmul.default, (g, g, c), TWO),
        (aten.addcdiv.default, (g, g, c0), TWO),
        (aten._foreach_mul_.Tensor, ([g], c0), None),
        (aten._foreach_div_.List, ([g], [c0]), None),
        (aten._foreach_add_.List, ([g, g], [g, c]), TWO),
        (aten._foreach_addcmul_.Scalar, ([g], [c0], [g]), TWO),
        (aten._foreach_copy_.default, ([g], [c]), None),
        (aten.index.Tensor, (g, [c]), None),
        (aten.index.Tensor, (G, [None, c]), None),
        (aten.index.Tensor, (c, [g]), r"on the same device as the indexed tensor \(cpu\)"),
        (aten.index_put_.default, (c, [g], c), None),
        (aten.index_put_.default, (c, [c], g0), None),
        (aten.index_put_.default, (g, [g], c), TWO),
        (aten.index_fill_.int_Tensor, (g, 0, g, c0), None),
        (aten.index_fill_.int_Tensor, (g, 0, c, c0), TWO),
        (aten.masked_fill_.Tensor, (g, g, c0), None),
        (aten.masked_fill_.Tensor, (c, c, g0), "Expected inputs to be on same device"),
        (aten.masked_fill.Scalar, (g, c0, 0.0), "expected self and mask to be on the same device, but got mask on cpu"),
        (aten.copy_.default, (g, c), None),
        (aten.fill_.Tensor, (c, g0), None),
        (
            aten.convolution.default,
            (G, C, None),
            r"Input type \(torch.cuda.FloatTensor\) and weight type \(torch.FloatTensor\) should be the same",
        ),
        (aten.convolution.default, (G, G, c), r"and bias type \(torch.FloatTensor\) should be the same"),
    ],
)  # fmt: skip
def test_a_call_raises_where_a_gpu_raises(func, args, message):
    with nullcontext() if message is None else pytest.raises(RuntimeError, match=message):
        check(func, *args)


def test_a_tensor_of_shapes_alone_is_on_no_device():
    check(aten.mm.default, G, torch.zeros(3, 3, device="meta"))


def test_the_hidden_state_of_a_recurrent_layer_is_where_its_input_is():
    same_device.check_recurrent_layer(g, (g, g), [g])
    with pytest.raises(RuntimeError, match="found input tensor at cuda:0 and hidden tensor at cpu"):
        same_device.check_recurrent_layer(g, (g, c), [g])
    with pytest.raises(RuntimeError, match="found input tensor at cpu and parameter tensor at cuda:0"):
        same_device.check_recurrent_layer(c, (c,), [g])


def test_attention_names_the_devices_of_all_three():
    same_device.check_attention(g, g, g)
    with pytest.raises(RuntimeError, match=r"query.device: cuda:0 key.device: cpu and value.device: cuda:0"):
        same_device.check_attention(g, c, g)


def test_every_name_is_an_operator():
    names = same_device.SAME_DEVICE | same_device.ELEMENTWISE | {n.split(".")[0] for n in same_device.NO_CPU_SCALARS}
    assert [name for name in names if not hasattr(aten, name)] == []
